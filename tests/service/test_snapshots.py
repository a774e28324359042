"""Snapshots over HTTP: of one moment, complete or refused, and nothing changed by what is broken."""

from __future__ import annotations

import io
import json
import tarfile
import threading

import numpy as np
import pytest
from live import live_server

DIM = 8
ROWS = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("snapshots") / "data") as running:
        fill(running.client, "source")
        yield running


def fill(client, name, rows=ROWS):
    body = {"vectors": {"size": DIM, "distance": "Cosine"}, "metadata": {"of": "tests"}}
    assert client.put(f"/collections/{name}", json=body).status_code == 200
    vectors = np.random.default_rng(1).standard_normal((rows, DIM)).astype(np.float32)
    points = [{"id": i, "vector": v.tolist(), "payload": {"n": i, "even": i % 2 == 0}} for i, v in enumerate(vectors)]
    points += [{"id": f"bare {i}", "vector": {}, "payload": {"bare": i}} for i in range(5)]
    assert client.put(f"/collections/{name}/points", json={"points": points}).status_code == 200


def everything(client, name):
    answer = client.post(f"/collections/{name}/points/scroll", json={"limit": 10_000, "with_vector": True})
    assert answer.status_code == 200, answer.text
    query = client.post(f"/collections/{name}/points/query", json={"query": [1.0] * DIM, "limit": 20})
    return answer.json()["result"]["points"], query.json()["result"]["points"]


def make(client, name):
    answer = client.post(f"/collections/{name}/snapshots")
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def compacted(server, name):
    job = server.client.post(f"/v1/admin/collections/{name}/compact").json()["job"]
    assert server.wait_job(job)["state"] == "done"


def upload(client, name, content, **query):
    return client.post(f"/collections/{name}/snapshots/upload", params=query, files={"snapshot": ("x", content)})


@pytest.mark.parametrize("built", [False, True])
def test_s36_a_restored_collection_is_what_it_was_at_that_moment(tmp_path, built):
    """Taken while writes go on; also after a restart, and after the source was deleted."""
    with live_server(tmp_path / "data") as server:
        client = server.client
        fill(client, "a")
        if built:
            compacted(server, "a")
            client.post("/collections/a/points/delete", json={"points": [1, 2, 3]})
            client.post("/collections/a/points/payload", json={"payload": {"late": 1}, "points": [5]})
        client.post(
            "/collections/aliases", json={"actions": [{"create_alias": {"collection_name": "a", "alias_name": "now"}}]}
        )
        before = everything(client, "a")
        made = make(client, "now")
        assert made["size"] > 0 and len(made["checksum"]) == 64
        client.post("/collections/a/points/delete", json={"filter": {"must": []}})
        location = {"location": f"file:///a/{made['name']}", "checksum": made["checksum"]}
        assert client.put("/collections/b/snapshots/recover", json=location).json()["result"] is True
        assert everything(client, "b") == before
        assert client.get("/collections/b").json()["result"]["config"]["metadata"] == {"of": "tests"}
        assert client.delete("/collections/a").json()["result"] is True
        server.kill()
    with live_server(tmp_path / "data") as server:
        client = server.client
        assert everything(client, "b") == before
        # It takes writes as any other.
        assert (
            client.put("/collections/b/points", json={"points": [{"id": 7, "vector": [1.0] * DIM}]}).status_code == 200
        )
        assert everything(client, "b")[1][0]["id"] == 7


def test_s36_a_snapshot_under_writes_is_of_one_moment(server):
    """Each batch writes the same number to two points: a snapshot shows no half of one."""
    client = server.client
    fill(client, "busy", rows=200)
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            body = {"payload": {"n": number}, "points": [0, 199]}
            assert client.post("/collections/busy/points/payload", json=body).status_code == 200

    thread = threading.Thread(target=write)
    thread.start()
    try:
        names = [make(client, "busy")["name"] for _ in range(5)]
    finally:
        stop.set()
        thread.join()
    for name in names:
        location = {"location": f"file:///busy/{name}"}
        assert client.put("/collections/calm/snapshots/recover", json=location).status_code == 200
        found = client.post("/collections/calm/points", json={"ids": [0, 199]}).json()["result"]
        assert found[0]["payload"]["n"] == found[1]["payload"]["n"]


def test_lists_downloads_and_deletes(server):
    client = server.client
    fill(client, "listed", rows=10)
    assert client.get("/collections/listed/snapshots").json()["result"] == []
    made = make(client, "listed")
    assert client.get("/collections/listed/snapshots").json()["result"] == [made]
    raw = client.get(f"/collections/listed/snapshots/{made['name']}").content
    assert len(raw) == made["size"]
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        assert archive.getnames() == ["points.db", "snapshot.json"]
        described = json.load(archive.extractfile("snapshot.json"))
    assert described["collection"] == "listed" and described["format_version"] == 1
    assert upload(client, "up", raw, checksum=made["checksum"]).json()["result"] is True
    assert everything(client, "up") == everything(client, "listed")
    assert client.delete(f"/collections/listed/snapshots/{made['name']}").json()["result"] is True
    assert client.get("/collections/listed/snapshots").json()["result"] == []
    assert client.get(f"/collections/listed/snapshots/{made['name']}").status_code == 404


def test_restoring_over_a_collection_replaces_it_and_keeps_its_aliases_and_snapshots(server):
    client = server.client
    fill(client, "over", rows=20)
    before = everything(client, "over")
    made = make(client, "over")
    client.post(
        "/collections/aliases", json={"actions": [{"create_alias": {"collection_name": "over", "alias_name": "ov"}}]}
    )
    client.post("/collections/over/points/delete", json={"points": [0, 1, 2]})
    location = {"location": f"file:///over/{made['name']}"}
    assert client.put("/collections/over/snapshots/recover", json=location).status_code == 200
    assert everything(client, "ov") == before
    assert client.get("/collections/over/snapshots").json()["result"] == [made]


@pytest.fixture(scope="module")
def archive(server):
    name = make(server.client, "source")["name"]
    return server.client.get(f"/collections/source/snapshots/{name}").content


def changed(archive, change):
    """The archive with its members as change(list of (TarInfo, bytes)) gives them."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as old:
        members = [(member, old.extractfile(member).read()) for member in old]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as new:
        for member, content in change(members):
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return out.getvalue()


def outside(members):
    return [(tarfile.TarInfo("../x"), b"out"), *members]


def link(members):
    member = tarfile.TarInfo("points.db")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return [(member, b""), *members[1:]]


def sparse(members):
    member, content = members[0]
    member.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,512",
        "GNU.sparse.size": str(10**13),
    }
    return [(member, content), *members[1:]]


def described(**members):
    """The description with other members."""

    def change(parts):
        member, content = parts[-1]
        return [*parts[:-1], (member, json.dumps(json.loads(content) | members).encode())]

    return change


def flipped(members):
    member, content = members[0]
    middle = len(content) // 2
    return [(member, content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]), *members[1:]]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda a: a[:-100], ["cut off", "bytes"]),
        (lambda a: a[:-10_340], ["cut off"]),
        (lambda a: a + bytes(512), ["something was added"]),
        (lambda a: a[: len(a) // 2], ["cut off"]),
        (lambda a: b"", ["tar archive"]),
        (lambda a: b"\x1f\x8b" + a, ["tar archive"]),
        (lambda a: changed(a, outside), ["'../x'"]),
        (lambda a: changed(a, link), ["points.db"]),
        (lambda a: changed(a, flipped), ["points.db", "checksum"]),
        (lambda a: changed(a, sparse), ["points.db"]),
        (lambda a: changed(a, described(config=[1])), ["configuration"]),
        (lambda a: changed(a, described(config={"metadata": "x"})), ["configuration"]),
        (lambda a: changed(a, described(config={"fullview": {"recall": "x"}})), ["configuration"]),
        (lambda a: changed(a, described(sequence=2**63 - 1)), ["sequence"]),
        (lambda a: changed(a, described(given_up=2**62)), ["given_up"]),
        (lambda a: changed(a, described(folded=50)), ["folded"]),
        (lambda a: changed(a, described(format_version=2)), ["format version 2"]),
        (lambda a: changed(a, lambda m: m[:-1]), ["snapshot.json", "cut off"]),
        (lambda a: changed(a, lambda m: [m[0], m[0], m[1]]), ["points.db"]),
    ],
)
def test_s36_a_broken_transfer_changes_nothing(server, archive, broken, words):
    client = server.client
    before = everything(client, "source")
    for name in ("source", "new"):
        answer = upload(client, name, broken(archive))
        assert answer.status_code == 400, answer.text
        for word in words:
            assert word in answer.json()["status"]["error"]
    assert everything(client, "source") == before
    assert client.get("/collections/new").status_code == 404
    assert not list((server.data_dir / "uploads").glob("*/*"))
    assert not (server.data_dir / "collections" / "x").exists()


def test_s36_a_wrong_checksum_is_refused(server, archive):
    answer = upload(server.client, "new", archive, checksum="0" * 64)
    assert answer.status_code == 400 and "SHA-256" in answer.text


@pytest.mark.parametrize(
    "name", ["%2E%2E", "a%2Fb", "..%2Fx", "a\\b", "%00", "x" * 256, "%2Fetc%2Fpasswd", "none.snapshot"]
)
def test_s50_names_of_snapshots_lead_nowhere(server, name):
    for method in ("GET", "DELETE"):
        answer = server.client.request(method, f"/collections/source/snapshots/{name}")
        assert answer.status_code in {400, 404, 405}, answer.text
    location = {"location": f"file:///source/{name}"}
    assert server.client.put("/collections/new/snapshots/recover", json=location).status_code in {400, 404}


def test_what_cannot_be_recovered_says_why(server):
    client = server.client

    def recover(location):
        return client.put("/collections/new/snapshots/recover", json={"location": location})

    assert recover("https://example.org/x.snapshot").status_code == 501
    assert recover("x.snapshot").status_code == 400
    assert recover("file:///none/x.snapshot").status_code == 404
    assert client.post("/collections/none/snapshots").status_code == 404
    assert client.post("/collections/new/snapshots/upload", json={}).status_code == 400
    accepted = client.post("/collections/source/snapshots", params={"wait": "false"})
    assert accepted.status_code == 202 and accepted.json()["status"] == "accepted"


def test_a_snapshot_of_a_deleted_collection_does_not_become_another_ones(server):
    client = server.client
    for _ in range(3):
        fill(client, "brief", rows=300)
        assert client.post("/collections/brief/snapshots", params={"wait": "false"}).status_code == 202
        assert client.delete("/collections/brief").json()["result"] is True
        made = client.put("/collections/brief", json={"vectors": {"size": 3, "distance": "Dot"}})
        assert made.status_code == 200, made.text
        jobs = client.get("/v1/admin/builds").json()["builds"]
        assert not [job for job in jobs if job["collection"] == "brief" and job["state"] in ("queued", "running")]
        assert client.get("/collections/brief/snapshots").json()["result"] == []
        client.delete("/collections/brief")
