"""Routes of points: what is read, in which form, in which order, and how requests are refused."""

from __future__ import annotations

import base64
import json
import threading

import numpy as np
import pytest
from fake_index import PAYLOAD, VECTORS
from real_index import put_index
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """One application for all tests here: none of them changes what another one reads."""
    with TestClient(create_app(Settings(data_dir=tmp_path_factory.mktemp("points") / "data"))) as running:
        yield running


@pytest.fixture(scope="module")
def engine(client):
    return client.app.state.parts.engine


@pytest.fixture(scope="module")
def three(engine):
    """Collection `three`: cosine, ids 1, 2, 3 with payload."""
    return put_index(engine, "three", VECTORS, ids=[1, 2, 3], payload=PAYLOAD)


def query(client, collection="three", **body):
    return client.post(f"/collections/{collection}/points/query", json=body)


def points(answer):
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["status"] == "ok"
    assert body["time"] >= 0
    return body["result"]["points"]


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"status", "time", "code", "request_id"}
    assert answer.headers["x-request-id"] == body["request_id"]
    for word in words:
        assert str(word) in body["status"]["error"]
    return body


@pytest.mark.parametrize(
    "wanted",
    [
        [1, 0, 0],
        {"nearest": [1, 0, 0]},
        {"base64": base64.b64encode(np.array([1, 0, 0], "<f4").tobytes()).decode()},
        {"nearest": {"base64": base64.b64encode(np.array([1, 0, 0], "<f4").tobytes()).decode()}},
    ],
)
def test_every_form_of_a_vector(client, three, wanted):
    found = points(query(client, query=wanted))
    assert [point["id"] for point in found] == [1, 3, 2]
    assert [point["score"] for point in found] == pytest.approx([1.0, 0.993884, 0.0], abs=1e-6)
    assert found[0] == {"id": 1, "version": 0, "score": 1.0}


def test_limit_offset_threshold(client, three):
    assert [p["id"] for p in points(query(client, query=[1, 0, 0], limit=1, offset=1))] == [3]
    assert points(query(client, query=[1, 0, 0], offset=3)) == []
    assert [p["id"] for p in points(query(client, query=[1, 0, 0], score_threshold=1.0))] == [1]
    assert [p["id"] for p in points(query(client, query=[1, 0, 0], score_threshold=0.0))] == [1, 3, 2]


def test_query_by_id_leaves_that_id_out(client, three):
    assert [p["id"] for p in points(query(client, query=1, limit=2))] == [3, 2]
    assert [p["id"] for p in points(query(client, query={"nearest": 1}, limit=1, offset=1))] == [2]
    refused(query(client, query=99), 404, 99)


def test_without_a_query_points_come_in_id_order(client, three):
    found = points(query(client, limit=2, offset=1, with_payload=True))
    assert found == [
        {"id": 2, "version": 0, "score": 1.0, "payload": {"n": 2}},
        {"id": 3, "version": 0, "score": 1.0, "payload": {}},
    ]
    refused(query(client, score_threshold=0.5), 400, "score_threshold")


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (True, {"n": 1, "a": {"b": 2, "c": 3}}),
        (["a.b"], {"a": {"b": 2}}),
        ({"include": ["n"]}, {"n": 1}),
        ({"exclude": ["a.c", "n"]}, {"a": {"b": 2}}),
        ([], {}),
        (False, None),
    ],
)
def test_payload_selections(client, three, selection, expected):
    found = points(query(client, query=[1, 0, 0], limit=1, with_payload=selection))
    assert found[0].get("payload") == expected


def test_vectors_come_as_given(client, engine):
    put_index(engine, "bytes", np.array([[3, 4], [1, 2]], dtype=np.uint8), ids=[7, 8])
    found = points(query(client, "bytes", query=[3, 4], limit=1, with_vector=True))
    assert found[0]["vector"] == [3, 4]
    assert found[0]["score"] == 1.0


def test_profile(client, three):
    answer = query(client, query=[1, 0, 0], profile=True).json()["result"]["profile"]
    assert answer["pages_read"] >= 1
    assert answer["io_mode"] in {"linux_aio", "threads", "buffered"}
    assert "rerank" in answer["microseconds"]
    assert answer["operating_point"]["preview"] == "flat"
    exact = query(client, query=[1, 0, 0], params={"exact": True, "profile": True}).json()["result"]["profile"]
    assert exact["operating_point"]["exact"] is True


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"query": [1, 0]}, 400, ["2", "3"]),
        ({"query": [0, 0, 0]}, 400, ["zero"]),
        ({"query": [1, 0, 1e39]}, 400, ["finite"]),
        ({"query": [1, "x", 0]}, 400, ["$.query[1]"]),
        ({"query": [1, True, 0]}, 400, ["$.query[1]"]),
        ({"query": 1.5}, 400, ["1.5"]),
        ({"query": True}, 400, ["True"]),
        ({"query": -1}, 400, ["-1"]),
        ({"query": 2**64}, 400, [2**64]),
        ({"query": ""}, 400, ["0 characters"]),
        ({"query": {"neerest": 1}}, 400, ["neerest"]),
        ({"query": {}}, 400, ["nearest"]),
        ({"query": {"nearest": None}}, 400, ["null"]),
        ({"query": [1, 0, 0], "limit": 0}, 422, ["limit"]),
        ({"query": [1, 0, 0], "limit": -1}, 422, ["limit", "-1"]),
        ({"query": [1, 0, 0], "limit": 0.01}, 400, ["limit"]),
        ({"query": [1, 0, 0], "limit": 10**18}, 422, ["limit"]),
        ({"query": [1, 0, 0], "offset": -1}, 422, ["offset"]),
        ({"query": [1, 0, 0], "params": {"hnsw_ef": 0}}, 422, ["beam"]),
        ({"query": [1, 0, 0], "params": {"recall": 1.5}}, 422, ["recall"]),
        ({"query": [1, 0, 0], "with_payload": {"incl": []}}, 400, ["incl"]),
        ({"query": [1, 0, 0], "with_payload": {}}, 400, ["include"]),
        ({"query": [1, 0, 0], "filter": {"shoud": []}}, 400, ["shoud", "$.filter"]),
        ({"query": [1, 0, 0], "filter": {"must": [{"key": "a"}]}}, 400, ["$.filter.must[0]"]),
    ],
)
def test_bad_queries(client, three, body, status, words):
    refused(query(client, **body), status, *words)


@pytest.mark.parametrize(
    ("body", "feature"),
    [
        ({"query": {"recommend": {"positive": [1]}}}, "recommend"),
        ({"query": {"fusion": "rrf"}}, "fusion"),
        ({"query": {"indices": [1], "values": [1.0]}}, "sparse"),
        ({"query": [[1, 0, 0]]}, "multi"),
        ({"query": [1, 0, 0], "using": "title"}, "title"),
        ({"query": [1, 0, 0], "prefetch": [{}]}, "prefetch"),
        ({"query": [1, 0, 0], "lookup_from": {"collection": "x"}}, "lookup_from"),
        ({"query": [1, 0, 0], "with_vector": ["title"]}, "title"),
    ],
)
def test_what_comes_later_is_501_and_named(client, three, body, feature):
    assert refused(query(client, **body), 501, feature)["code"] == "unsupported"


def test_what_qdrant_clients_send_beside_is_accepted(client, three):
    body = {
        "query": {"nearest": [1, 0, 0], "mmr": None}, "using": "", "shard_key": None, "filter": {"must": []},
        "prefetch": [], "params": {"hnsw_ef": 128, "exact": True, "quantization": {"rescore": True}},
        "with_vector": [""], "lookup_from": None, "unknown": 1,
    }  # fmt: skip
    assert points(query(client, **body))[0]["vector"] == [1.0, 0.0, 0.0]


def test_batches(client, three):
    url = "/collections/three/points/query/batch"
    searches = [{"query": [1, 0, 0], "limit": 1}, {"query": 2, "limit": 5}, {"limit": 1}]
    answer = client.post(url, json={"searches": searches}).json()["result"]
    assert [[p["id"] for p in one["points"]] for one in answer] == [[1], [3, 1], [1]]
    assert client.post(url, json={"searches": []}).json()["result"] == []
    refused(client.post(url, json={"searches": [{"query": [1], "limit": 1}]}), 400, "1", "3")
    refused(client.post(url, json={"searches": [{"query": [1, "x"]}]}), 400, "$.searches[0].query[1]")
    refused(client.post(url, json={"searches": [{}] * 2000}), 413, "2000", "batch")


def test_retrieve(client, three):
    url = "/collections/three/points"
    answer = client.post(url, json={"ids": [3, 1, 99, 1]}).json()["result"]
    assert answer == [{"id": 3, "payload": {}}, {"id": 1, "payload": {"n": 1, "a": {"b": 2, "c": 3}}}]
    answer = client.post(url, json={"ids": [2], "with_payload": False, "with_vector": True}).json()["result"]
    assert answer == [{"id": 2, "vector": [0.0, 1.0, 0.0]}]
    refused(client.post(url, json={"ids": [1.5]}), 400, "1.5")


def test_one_point(client, three, engine):
    answer = client.get("/collections/three/points/2").json()["result"]
    assert answer == {"id": 2, "payload": {"n": 2}, "vector": [0.0, 1.0, 0.0]}
    refused(client.get("/collections/three/points/99"), 404, 99)
    refused(client.get("/collections/three/points/-1"), 400, "-1")
    refused(client.get(f"/collections/three/points/{2**64}"), 400, 2**64)
    put_index(engine, "names", [[1.0], [2.0]], ids=["12", "a/b"])
    assert client.get("/collections/names/points/a%2Fb").json()["result"]["id"] == "a/b"
    assert client.get("/collections/names/points/12?id_type=string").json()["result"]["id"] == "12"
    refused(client.get("/collections/names/points/12"), 404, 12)


def test_uuids_in_any_spelling(client, engine):
    uuid = "0d8f1c9e-1f52-4d4c-9a54-3b1f3f0c2a11"
    put_index(engine, "uuids", [[1.0]], ids=[uuid])
    for spelling in (uuid, uuid.upper(), uuid.replace("-", ""), f"{{{uuid}}}", f"urn:uuid:{uuid}"):
        answer = client.post("/collections/uuids/points", json={"ids": [spelling]}).json()["result"]
        assert [point["id"] for point in answer] == [uuid]


def test_count(client, three):
    url = "/collections/three/points/count"
    assert client.post(url, json={}).json()["result"] == {"count": 3}
    assert client.post(url, json={"exact": False, "filter": {}}).json()["result"] == {"count": 3}
    refused(client.post(url, json={"filter": []}), 400, "$.filter")


def raw(client, vectors, collection="three", **options):
    return client.post(
        f"/collections/{collection}/points/query",
        content=np.asarray(vectors, dtype="<f4").tobytes(),
        headers={"content-type": "application/octet-stream"},
        params=options,
    )


def parsed(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    line, _, rest = answer.content.partition(b"\n")
    header = json.loads(line)
    n, k = header["shape"]
    assert (len(line) + 1) % 8 == 0
    ids = np.frombuffer(rest, "<u8", n * k).reshape(n, k)
    scores = np.frombuffer(rest, "<f4", n * k, offset=8 * n * k).reshape(n, k)
    assert len(rest) == 12 * n * k
    return header, ids, scores


def test_octet_stream(client, three):
    header, ids, scores = parsed(raw(client, [[1, 0, 0], [0, 1, 0]], limit=2))
    assert header == {"shape": [2, 2], "dtypes": {"ids": "<u8", "scores": "<f4"}, "counts": [2, 2]}
    assert ids.tolist() == [[1, 3], [2, 3]]
    assert scores[0].tolist() == pytest.approx([1.0, 0.993884], abs=1e-6)


def test_octet_stream_options(client, three):
    header, ids, scores = parsed(raw(client, [[1, 0, 0]], limit=10, score_threshold=0.5))
    assert header["counts"] == [2]
    assert ids.tolist() == [[1, 3, 0]]
    assert scores[0, 2] == 0
    assert parsed(raw(client, [[1, 0, 0]], limit=1, offset=1))[1].tolist() == [[3]]
    refused(raw(client, [[1, 0]]), 400, "8", "12")
    refused(raw(client, []), 400, "0 bytes")
    refused(raw(client, [[1, 0, 0]], limit="x"), 400, "limit")
    refused(raw(client, [[1, 0, 0]], limit=0), 422, "limit")
    refused(raw(client, [[1, 0, float("nan")]]), 400, "nan")
    refused(raw(client, [[1, 0, 0]] * 1025), 413, "1025")


def test_octet_stream_of_many_queries_equals_one_by_one(client, engine):
    rng = np.random.default_rng(7)
    vectors = rng.standard_normal((500, 8)).astype(np.float32)
    put_index(engine, "some", vectors)
    header, ids, scores = parsed(raw(client, vectors[:70], "some", limit=5))
    assert header["shape"] == [70, 5]
    for place in (0, 34, 35, 69):
        _, one_ids, one_scores = parsed(raw(client, vectors[place : place + 1], "some", limit=5))
        assert np.array_equal(one_ids[0], ids[place])
        assert np.array_equal(one_scores[0], scores[place])
    found = points(query(client, "some", query=vectors[3].tolist(), limit=5))
    assert [p["id"] for p in found] == ids[3].tolist()


def test_octet_stream_needs_integer_ids(client, engine):
    put_index(engine, "names", [[1.0], [2.0]], ids=["a", "b"])
    refused(raw(client, [[1.0]], "names"), 501, "octet-stream", "string ids")


def test_deadline(fake_client):
    fake_client.three.blocked = threading.Event()
    url = "/collections/three/points/query"
    try:
        refused(fake_client.post(f"{url}?timeout=0.05", json={"query": [1, 0, 0]}), 408, "timeout")
    finally:
        fake_client.three.blocked.set()
    refused(fake_client.post(f"{url}?timeout=x", json={}), 400, "timeout")
    refused(fake_client.post(f"{url}?timeout=0", json={}), 422, "timeout")
    assert points(query(fake_client, query=[1, 0, 0]))


def test_s09_ids_above_2_to_the_53_come_back_exactly(client, engine):
    ids = [9007199254740993, 2637283987631399372, 18446744073709551615]
    put_index(engine, "big", [[1.0, 0], [0, 1.0], [1.0, 1.0]], ids=ids)
    base = "/collections/big/points"
    for id_ in ids:
        assert f'"id":{id_},' in client.get(f"{base}/{id_}").text
        assert f'"id":{id_}' in client.post(base, json={"ids": [id_]}).text
        assert str(id_) in client.post(f"{base}/query", json={"query": [1, 0]}).text
    assert f'"next_page_offset":{ids[1]}' in client.post(f"{base}/scroll", json={"limit": 1}).text
    assert parsed(raw(client, [[1, 0]], "big"))[1].tolist()[0] == [ids[0], ids[2], ids[1]]
    for bad in ("-1", "18446744073709551616", "1.5", "true"):
        text = bad.replace("true", "True")
        headers = {"content-type": "application/json"}
        refused(client.post(base, content=f'{{"ids":[{bad}]}}', headers=headers), 400, text)


@pytest.mark.parametrize("limit", [63, 64, 65, 66, 100])
def test_s19_limit_larger_than_the_collection(client, engine, limit):
    rng = np.random.default_rng(19)
    vectors = rng.standard_normal((65, 4)).astype(np.float32)
    put_index(engine, "few", vectors)
    found = points(query(client, "few", query=vectors[0].tolist(), limit=limit))
    assert len({point["id"] for point in found}) == min(limit, 65)
    searches = [{"query": vector.tolist(), "limit": limit} for vector in vectors]
    batch = client.post("/collections/few/points/query/batch", json={"searches": searches}).json()["result"]
    assert all(len({p["id"] for p in one["points"]}) == min(limit, 65) for one in batch)
    refused(query(client, "few", query=vectors[0].tolist(), limit=0), 422, "limit")


def test_s19_an_empty_collection_answers_nothing(client):
    client.put("/collections/empty", json={"vectors": {"size": 3, "distance": "Cosine"}})
    assert points(query(client, "empty", query=[1, 0, 0], limit=5)) == []
    assert points(query(client, "empty")) == []
    assert client.post("/collections/empty/points/scroll", json={}).json()["result"] == {
        "points": [], "next_page_offset": None,
    }  # fmt: skip
    assert client.post("/collections/empty/points/count", json={}).json()["result"]["count"] == 0
    assert parsed(raw(client, [[1, 0, 0]], "empty"))[0]["counts"] == [0]
    refused(query(client, "empty", query=[1, 0]), 400, "2", "3")
    refused(client.post("/collections/empty/points/recall", json={}), 422, "empty")


def test_s23_scroll_shows_each_id_once(client, engine):
    put_index(engine, "many", np.ones((1003, 2), dtype=np.float32), ids=list(range(5, 1008)))
    seen, pages, offset = [], 0, None
    while True:
        body = {"limit": 100} if offset is None else {"limit": 100, "offset": offset}
        page = client.post("/collections/many/points/scroll", json=body).json()["result"]
        seen += [point["id"] for point in page["points"]]
        pages += 1
        offset = page["next_page_offset"]
        if offset is None:
            break
    assert (pages, seen) == (11, list(range(5, 1008)))
