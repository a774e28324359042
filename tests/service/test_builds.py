"""Build jobs over HTTP, with real builds in real processes."""

from __future__ import annotations

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from live import wait_for
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data folder of the module's application."""
    return tmp_path_factory.mktemp("builds") / "data"


@pytest.fixture(scope="module")
def client(place):
    (place / "import").mkdir(parents=True)
    with TestClient(create_app(Settings(data_dir=place, builds_parallel=2))) as running:
        yield running


def vectors(rows, dim=8, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)


def submit(client, **body):
    return client.post("/v1/admin/builds", json=body)


def ended(client, answer):
    assert answer.status_code == 202, answer.text
    job = answer.json()["job"]
    wait_for(lambda: client.get(f"/v1/admin/builds/{job}").json()["state"] not in ("queued", "running"), 60)
    return client.get(f"/v1/admin/builds/{job}").json()


def build(client, **body):
    return ended(client, submit(client, **body))


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    for word in words:
        assert str(word) in answer.json()["status"]["error"]


def test_a_build_from_columns(client, place):
    rows = vectors(300)
    ids = [2**64 - 1, *range(1, 300)]
    table = pa.table(
        {
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 8),
            "key": pa.array(ids, pa.uint64()),
            "title": [f"row {i}" for i in range(300)],
            "year": list(range(300)),
        }
    )
    pq.write_table(table, place / "import" / "wiki.parquet")
    answer = submit(
        client,
        collection="wiki",
        source={"path": "wiki.parquet", "vector": "embedding", "id": "key", "payload": ["title"]},
        alias="wiki-live",
    )
    assert answer.json()["state"] in {"queued", "running"}
    assert answer.json()["passes"] == 3
    job = ended(client, answer)
    assert job["state"] == "done", job
    assert job["report"]["rows"] == 300
    assert job["peak_memory_bytes"] > 0
    info = client.get("/collections/wiki-live").json()["result"]
    assert info["points_count"] == 300
    assert info["config"]["params"]["vectors"] == {"size": 8, "distance": "Cosine"}
    assert info["fullview"]["order"] == "higher is better"
    query = {"query": rows[0].tolist(), "limit": 1, "with_payload": True, "with_vector": True}
    answer = client.post("/collections/wiki-live/points/query", json=query)
    assert f'"id":{2**64 - 1}' in answer.text
    point = answer.json()["result"]["points"][0]
    assert point["payload"] == {"title": "row 0"}
    assert point["vector"] == rows[0].tolist()
    assert point["score"] == 1.0
    recall = client.post("/collections/wiki/points/recall", json={"sample": 50}).json()["result"]
    assert recall["recall"] >= 0.95
    assert recall["low"] <= recall["recall"] <= recall["high"]
    assert recall["queries"] == 50


def test_events_end_with_the_job(client, place):
    np.save(place / "import" / "events.npy", vectors(500))
    job = submit(client, collection="events", source={"path": "events.npy"}).json()["job"]
    with client.stream("GET", f"/v1/admin/builds/{job}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        states = [json.loads(line[6:])["state"] for line in stream.iter_lines() if line.startswith("data: ")]
    assert states[-1] == "done"
    assert states == sorted(states, key=("queued", "running", "done").index)


def test_replace_and_modes(client, place):
    np.save(place / "import" / "first.npy", vectors(100, seed=1))
    np.save(place / "import" / "second.npy", vectors(200, seed=2))
    assert build(client, collection="r", source={"path": "first.npy"}, metric="l2")["state"] == "done"
    refused(submit(client, collection="r", source={"path": "second.npy"}), 409, "'r'", "replace")
    job = build(client, collection="r", source={"path": "second.npy"}, mode="replace")
    assert job["state"] == "done", job
    info = client.get("/collections/r").json()["result"]
    assert info["points_count"] == 200
    assert info["fullview"]["generation"] == 2
    assert info["config"]["params"]["vectors"]["distance"] == "Euclid"
    refused(submit(client, collection="none", source={"path": "second.npy"}, mode="append"), 404, "'none'", "create")
    refused(submit(client, collection="r2", source={"path": "first.npy"}, alias="r"), 409, "'r'")
    client.post(
        "/collections/aliases", json={"actions": [{"create_alias": {"collection_name": "r", "alias_name": "ra"}}]}
    )
    refused(submit(client, collection="ra", source={"path": "first.npy"}), 400, "alias")


def test_replace_keeps_dimension_and_metric_unless_told(client, place):
    np.save(place / "import" / "eight.npy", vectors(100))
    np.save(place / "import" / "four.npy", vectors(100, dim=4))
    assert build(client, collection="kept", source={"path": "eight.npy"}, metric="dot")["state"] == "done"
    replace = {"collection": "kept", "mode": "replace"}
    refused(submit(client, source={"path": "four.npy"}, **replace), 409, "dimension 4", "have 8", "allow_change")
    refused(submit(client, source={"path": "eight.npy"}, metric="l2", **replace), 409, "dot", "l2", "allow_change")
    refused(submit(client, collection="kept", source={"path": "four.npy"}, allow_change=True), 400, "allow_change")
    job = build(client, source={"path": "eight.npy"}, metric="dot", **replace)
    assert job["state"] == "done", job
    job = build(client, source={"path": "four.npy"}, metric="l2", allow_change=True, **replace)
    assert job["state"] == "done", job
    info = client.get("/collections/kept").json()["result"]
    assert info["config"]["params"]["vectors"] == {"size": 4, "distance": "Euclid"}


def test_a_build_into_an_empty_collection(client, place):
    np.save(place / "import" / "eight.npy", vectors(100))
    body = {"vectors": {"size": 8, "distance": "Dot"}, "fullview": {"preview": "flat", "bits": 4}, "metadata": {"a": 1}}
    client.put("/collections/prepared", json=body)
    refused(submit(client, collection="prepared", source={"path": "eight.npy"}, metric="l2"), 409, "dot", "l2")
    job = build(client, collection="prepared", source={"path": "eight.npy"})
    assert job["state"] == "done", job
    assert job["report"]["bits"] == 4
    info = client.get("/collections/prepared").json()["result"]
    assert info["config"]["params"]["vectors"]["distance"] == "Dot"
    assert info["config"]["metadata"] == {"a": 1}
    client.put("/collections/other", json={"vectors": {"size": 5, "distance": "Dot"}})
    refused(submit(client, collection="other", source={"path": "eight.npy"}), 409, "dimension 8", "have 5")
    assert client.post("/collections/other/points/count", json={}).json()["result"]["count"] == 0


def test_uploads(client, place):
    rows = vectors(120, seed=3)
    np.save(place / "up.npy", rows)
    content = (place / "up.npy").read_bytes()
    headers = {"content-type": "application/octet-stream"}
    made = client.post("/v1/admin/uploads?name=up.npy", content=content, headers=headers)
    assert made.status_code == 201
    upload = made.json()["upload"]
    assert made.json()["bytes"] == len(content)
    assert client.get("/v1/admin/uploads").json()["uploads"] == [
        {"upload": upload, "name": "up.npy", "bytes": len(content)}
    ]
    job = build(client, collection="uploaded", source={"upload": upload}, queries={"upload": upload})
    assert job["state"] == "done", job
    assert client.delete(f"/v1/admin/uploads/{upload}").json() == {"deleted": True}
    assert client.get("/v1/admin/uploads").json()["uploads"] == []
    refused(submit(client, collection="u2", source={"upload": upload}), 404, upload)
    refused(client.post("/v1/admin/uploads", content=content), 400, "name")
    for name in ("notes.csv", "base", "base.npy.gz"):
        answer = client.post("/v1/admin/uploads", params={"name": name}, content=content)
        refused(answer, 400, repr(name), ".npy, ", ".parquet", ".fvecs")
    for bad in ("../x.npy", "a/b.npy", ".", "..", ".part", "", "x" * 256, "a\0b"):
        assert client.post("/v1/admin/uploads", params={"name": bad}, content=content).status_code == 400
    assert list((place / "uploads").iterdir()) == []


def test_s01_bad_rows(client, place):
    rows = vectors(1000)
    rows[417, 3], rows[900, 0] = np.nan, np.inf
    np.save(place / "import" / "bad.npy", rows)
    job = build(client, collection="bad", source={"path": "bad.npy"})
    assert job["state"] == "failed"
    for word in ("bad.npy", "417", "3", "2 bad rows"):
        assert word in job["error"]["message"]
    assert client.get("/collections/bad").status_code == 404
    job = build(client, collection="bad", source={"path": "bad.npy"}, on_bad_rows="skip")
    assert job["state"] == "done", job
    assert client.post("/collections/bad/points/count", json={}).json()["result"]["count"] == 998
    skipped = [row[1] for row in job["report"]["skipped_rows"]]
    assert skipped == [417, 900]


def test_s06_empty_shards(client, place):
    shards = place / "import" / "shards"
    shards.mkdir()
    np.save(shards / "a.npy", vectors(100))
    np.save(shards / "b.npy", np.zeros((0,), np.float32))
    np.save(shards / "c.npy", np.zeros((0, 8), np.float32))
    np.save(shards / "d.npy", vectors(50, seed=4))
    job = build(client, collection="shards", source={"path": "shards"})
    assert job["state"] == "done", job
    assert client.post("/collections/shards/points/count", json={}).json()["result"]["count"] == 150
    assert [path.rsplit("/", 1)[1] for path in job["report"]["empty_files"]] == ["b.npy", "c.npy"]
    hollow = place / "import" / "hollow"
    hollow.mkdir()
    np.save(hollow / "b.npy", np.zeros((0, 8), np.float32))
    job = build(client, collection="hollow", source={"path": "hollow"})
    assert job["state"] == "failed"
    assert "hollow" in job["error"]["message"]
    assert client.get("/collections/hollow").status_code == 404
    refused(submit(client, collection="hollow", source={"path": "hollow/*.fvecs"}), 404, "hollow/*.fvecs")


def test_s11_a_budget_too_small_is_refused_at_once(client, place):
    np.save(place / "import" / "wide.npy", np.lib.stride_tricks.as_strided(vectors(1), (100_000, 64), (0, 0)))
    begun = time.monotonic()
    answer = submit(client, collection="wide", source={"path": "wide.npy"}, memory_budget=1)
    assert time.monotonic() - begun < 1
    refused(answer, 422, "1.0 MB", "least")
    assert client.get("/v1/admin/builds").json()["builds"][-1]["collection"] != "wide"
    (place / "import" / "wide.npy").unlink()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, ["collection"]),
        ({"collection": "x"}, 400, ["source"]),
        ({"collection": "x", "source": {}}, 400, ["path"]),
        ({"collection": "x", "source": {"path": "eight.npy", "upload": "u"}}, 400, ["path"]),
        ({"collection": "x", "source": {"path": "eight.npy", "pth": 1}}, 400, ["pth"]),
        ({"collection": "x", "source": {"path": "eight.npy"}, "metrc": "dot"}, 400, ["metrc"]),
        ({"collection": "x", "source": {"path": "eight.npy"}, "metric": "manhattan"}, 400, ["manhattan"]),
        ({"collection": "x", "source": {"path": "eight.npy"}, "recall": 1.5}, 422, ["recall", "1.5"]),
        ({"collection": "x", "source": {"path": "eight.npy"}, "bits": 3}, 422, ["bits", "3"]),
        ({"collection": "x", "source": {"path": "eight.npy"}, "threads": 0}, 422, ["threads"]),
        ({"collection": "x", "source": {"path": "eight.npy"}, "memory_budget": "x"}, 422, ["memory_budget"]),
        ({"collection": "x", "source": {"path": "eight.npy"}, "queries": {"path": "none"}}, 404, ["queries.path"]),
        ({"collection": "a/b", "source": {"path": "eight.npy"}}, 400, ["a/b"]),
    ],
)
def test_what_can_be_refused_at_once(client, place, body, status, words):
    np.save(place / "import" / "eight.npy", vectors(100))
    refused(submit(client, **body), status, *words)


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../secret.npy", "a/../../secret.npy", "/etc/passwd", "a\\b", "a\0b", "~/x", "out.npy", "out"],
)
def test_s50_build_paths_stay_inside(client, place, path):
    """out.npy and out are links that lead outside."""
    secret = place.parent / "secret"
    secret.mkdir(exist_ok=True)
    np.save(secret / "secret.npy", vectors(10))
    root = place / "import"
    for link, target in (("out.npy", secret / "secret.npy"), ("out", secret)):
        if not (root / link).is_symlink():
            (root / link).symlink_to(target)
    try:
        for body in ({"source": {"path": path}}, {"source": {"path": "eight.npy"}, "queries": {"path": path}}):
            np.save(root / "eight.npy", vectors(100))
            answer = submit(client, collection="outside", **body)
            assert answer.status_code in {400, 404}, answer.text
            assert client.get("/collections/outside").status_code == 404
    finally:
        (root / "out.npy").unlink()
        (root / "out").unlink()


NAMES = ["", ".", "..", "a/b", "a%2Fb", "..%2Fx", "a\\b", "a\0b", "x" * 256, "/etc/passwd", "a:b", "a*b"]


@pytest.mark.parametrize("name", NAMES)
def test_s50_names_that_escape(client, place, name):
    from urllib.parse import quote

    before = sorted(path.name for path in (place / "collections").iterdir())
    raw = name if "%" in name else quote(name, safe="")
    answer = client.put(f"/collections/{raw}", json={"vectors": {"size": 2, "distance": "Dot"}})
    assert answer.status_code in {400, 404, 405}, answer.text
    actions = [{"create_alias": {"collection_name": "wiki", "alias_name": name}}]
    if name not in {"a%2Fb", "..%2Fx"}:  # in a body these are names like others
        assert client.post("/collections/aliases", json={"actions": actions}).status_code == 400
    assert sorted(path.name for path in (place / "collections").iterdir()) == before


@pytest.mark.parametrize("name", ["тест-集合", "a.b", "50%", "con", "a b"])
def test_s50_odd_names_that_are_fine(client, name):
    from urllib.parse import quote

    url = f"/collections/{quote(name, safe='')}"
    assert client.put(url, json={"vectors": {"size": 2, "distance": "Dot"}}).status_code == 200
    assert client.get(url).status_code == 200
    assert name in {c["name"] for c in client.get("/collections").json()["result"]["collections"]}
    assert client.put(url, json={"vectors": {"size": 2, "distance": "Dot"}}).status_code == 409
    assert client.delete(url).json()["result"] is True
    assert client.delete(url).json()["result"] is False


def test_deleting_jobs(client, place):
    np.save(place / "import" / "eight.npy", vectors(100))
    job = build(client, collection="gone", source={"path": "eight.npy"})["job"]
    refused(client.post(f"/v1/admin/builds/{job}/cancel"), 409, "done")
    refused(client.post(f"/v1/admin/builds/{job}/restart"), 409, "done")
    assert client.delete(f"/v1/admin/builds/{job}").json() == {"deleted": True}
    assert client.get(f"/v1/admin/builds/{job}").status_code == 404
    assert client.get("/collections/gone").status_code == 200


def test_metrics_count_what_happened(client):
    text = client.get("/metrics").text
    assert 'fullview_builds{state="done"}' in text
    assert 'fullview_collection_points{collection="wiki"} 300.0' in text
    assert 'fullview_queries_total{collection="wiki' in text
    assert 'fullview_resident_bytes{part="codes"}' in text
    assert "process_resident_memory_bytes" in text
    assert 'route="/collections/{collection}/points/query"' in text
