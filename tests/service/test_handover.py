"""From one generation to the next, over HTTP: what is written while a job runs stays, or the job says that it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from live import live_server, wait_for

ROWS = np.random.default_rng(0).standard_normal((2000, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("handover") / "data"
    (data / "import").mkdir(parents=True)
    np.save(data / "import" / "rows.npy", ROWS)
    np.save(data / "import" / "more.npy", ROWS[:300] + 5)
    np.save(data / "import" / "four.npy", ROWS[:, :4].copy())
    np.save(data / "import" / "queries.npy", ROWS[:200] * 0.9 + 0.1)
    with live_server(data) as running:
        yield running


def build(server, name, path="rows.npy", **more):
    return server.build(collection=name, source={"path": path}, metric=more.pop("metric", "l2"), **more)


def points(server, name, ids):
    found = server.client.post(f"/collections/{name}/points", json={"ids": ids, "with_vector": True}).json()["result"]
    return {point["id"]: point for point in found}


def count(server, name):
    return server.client.post(f"/collections/{name}/points/count", json={}).json()["result"]["count"]


def submitted(server, name, path="rows.npy", **more):
    body = {"collection": name, "source": {"path": path}, **more}
    answer = server.client.post("/v1/admin/builds", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["job"]


def upsert(server, name, id_, vector, **payload):
    body = {"points": [{"id": id_, "vector": list(vector), "payload": payload}]}
    answer = server.client.put(f"/collections/{name}/points", json=body)
    assert answer.status_code == 200, answer.text


def running(server, job):
    """Once its process builds: the moment up to which it gives up what was written has passed."""
    wait_for(lambda: server.job(job)["phase"] is not None or server.job(job)["state"] != "running", 60)


def test_a_replace_gives_up_what_was_written_before_it_and_keeps_what_comes_while_it_runs(server):
    assert build(server, "r")["state"] == "done"
    upsert(server, "r", 5, [9.0] * 8, before=True)
    upsert(server, "r", 10_000, [9.0] * 8)
    server.client.post("/collections/r/points/payload", json={"payload": {"b": 1}, "points": [7]})
    job = submitted(server, "r", mode="replace")
    running(server, job)
    upsert(server, "r", 6, [8.0] * 8, while_=True)
    server.client.post("/collections/r/points/payload", json={"payload": {"w": 1}, "points": [8, 10_000]})
    assert server.wait_job(job)["state"] == "done"
    found = points(server, "r", [5, 6, 7, 8])
    assert found[5]["payload"] == {} and found[5]["vector"] == pytest.approx(ROWS[5].tolist())
    assert found[6]["vector"] == [8.0] * 8
    assert found[7]["payload"] == {} and found[8]["payload"] == {"w": 1}
    # It was written whole before, and its payload while the job ran: that is a whole point again.
    assert points(server, "r", [10_000])[10_000]["payload"] == {"w": 1}
    assert count(server, "r") == 2001


def test_a_payload_of_a_row_that_a_replace_took_away_is_gone_with_it(server):
    assert build(server, "g")["state"] == "done"
    job = submitted(server, "g", "more.npy", mode="replace")
    running(server, job)
    server.client.post("/collections/g/points/payload", json={"payload": {"w": 1}, "points": [1, 1999]})
    assert server.wait_job(job)["state"] == "done"
    assert count(server, "g") == 300
    assert points(server, "g", [1, 1999]) == {1: points(server, "g", [1])[1]}
    assert points(server, "g", [1])[1]["payload"] == {"w": 1}
    wanted = {"filter": {"must": {"key": "w", "match": {"value": 1}}}}
    assert server.client.post("/collections/g/points/count", json=wanted).json()["result"]["count"] == 1


def test_another_dimension_is_refused_where_points_were_written_meanwhile(server):
    assert build(server, "d")["state"] == "done"
    upsert(server, "d", 1, [1.0] * 8)
    job = submitted(server, "d", "four.npy", mode="replace", allow_change=True)
    running(server, job)
    upsert(server, "d", 2, [2.0] * 8)
    ended = server.wait_job(job)
    assert ended["state"] == "failed" and "dimension 8" in ended["error"]["message"], ended
    assert points(server, "d", [1, 2])[2]["vector"] == [2.0] * 8
    again = server.wait_job(submitted(server, "d", "four.npy", mode="replace", allow_change=True))
    assert again["state"] == "done", again
    assert count(server, "d") == 2000 and len(points(server, "d", [1])[1]["vector"]) == 4
    upsert(server, "d", 3, [3.0] * 4)
    assert points(server, "d", [3])[3]["vector"] == [3.0] * 4


def test_another_metric_takes_the_written_points_along(server):
    assert build(server, "m")["state"] == "done"
    job = submitted(server, "m", mode="replace", allow_change=True, metric="dot")
    running(server, job)
    upsert(server, "m", 5000, [100.0] * 8)
    assert server.wait_job(job)["state"] == "done"
    hits = server.client.post("/collections/m/points/query", json={"query": [1.0] * 8, "limit": 1}).json()["result"]
    assert hits["points"][0]["id"] == 5000 and hits["points"][0]["score"] == 800.0


def test_an_append_puts_rows_in_place_of_points_of_their_ids(server):
    assert build(server, "a")["state"] == "done"
    upsert(server, "a", 3, [7.0] * 8, mine=True)
    upsert(server, "a", 400, [6.0] * 8, mine=True)
    job = server.wait_job(submitted(server, "a", "more.npy", mode="append"))
    assert job["state"] == "done" and job["kind"] == "append", job
    assert count(server, "a") == 2000
    found = points(server, "a", [3, 299, 300, 400])
    assert found[3]["vector"] == pytest.approx((ROWS[3] + 5).tolist()) and found[3]["payload"] == {}
    assert found[300]["vector"] == pytest.approx(ROWS[300].tolist())
    assert found[400]["vector"] == [6.0] * 8 and found[400]["payload"] == {"mine": True}
    assert server.client.get("/collections/a").json()["result"]["fullview"]["delta_rows"] == 0


def test_sample_queries_are_kept_for_compactions(server):
    assert build(server, "q", queries={"path": "queries.npy"})["state"] == "done"
    upsert(server, "q", 1, [1.0] * 8)
    job = server.client.post("/v1/admin/collections/q/compact").json()["job"]
    ended = server.wait_job(job)
    assert ended["state"] == "done" and "sample queries" in ended["report"]["promise_covers"], ended
    assert server.wait_job(submitted(server, "q", mode="replace"))["state"] == "done"
    upsert(server, "q", 1, [1.0] * 8)
    job = server.client.post("/v1/admin/collections/q/compact").json()["job"]
    assert "rows only" in server.wait_job(job)["report"]["promise_covers"]


def test_a_compaction_of_points_without_vectors_leaves_them_where_they_are(server):
    server.client.put("/collections/bare", json={"vectors": {"size": 8, "distance": "Cosine"}})
    server.client.put("/collections/bare/points", json={"points": [{"id": 1, "vector": {}, "payload": {"a": 1}}]})
    for _ in range(2):
        job = server.client.post("/v1/admin/collections/bare/compact").json()["job"]
        assert server.wait_job(job)["state"] == "done"
        assert count(server, "bare") == 1 and points(server, "bare", [1])[1]["payload"] == {"a": 1}
    upsert(server, "bare", 2, [1.0] * 8)
    job = server.client.post("/v1/admin/collections/bare/compact").json()["job"]
    assert server.wait_job(job)["state"] == "done"
    server.client.post("/collections/bare/points/delete", json={"points": [2]})
    job = server.client.post("/v1/admin/collections/bare/compact").json()["job"]
    assert server.wait_job(job)["state"] == "done"
    info = server.client.get("/collections/bare").json()["result"]
    assert info["points_count"] == 1 and info["fullview"]["rows"] == 0


def test_an_appended_row_takes_the_place_of_a_point_without_a_vector(server):
    assert build(server, "b", "more.npy")["state"] == "done"
    body = {
        "points": [{"id": 5, "vector": {}, "payload": {"bare": 1}}, {"id": 9000, "vector": {}, "payload": {"bare": 2}}]
    }
    assert server.client.put("/collections/b/points", json=body).status_code == 200
    assert server.wait_job(submitted(server, "b", mode="append"))["state"] == "done"

    def check():
        found = points(server, "b", [5, 9000])
        assert found[5]["vector"] == pytest.approx(ROWS[5].tolist()) and found[5]["payload"] == {}
        assert found[9000]["vector"] == {} and found[9000]["payload"] == {"bare": 2}
        assert count(server, "b") == 2001

    check()
    upsert(server, "b", 7, [1.0] * 8)
    for _ in range(2):
        job = server.client.post("/v1/admin/collections/b/compact").json()["job"]
        assert server.wait_job(job)["state"] == "done"
        check()


def test_an_append_leaves_out_the_rows_that_a_build_leaves_out(server):
    rows = ROWS[:40].copy()
    rows[7] = 1e-20
    rows[9] = 1e30
    np.save(server.data_dir / "import" / "odd.npy", rows)
    assert build(server, "o", "more.npy", metric="cosine")["state"] == "done"
    failed = server.wait_job(submitted(server, "o", "odd.npy", mode="append"))
    assert failed["state"] == "failed" and "odd.npy" in failed["error"]["message"], failed
    job = server.wait_job(submitted(server, "o", "odd.npy", mode="append", on_bad_rows="skip"))
    assert job["state"] == "done", job
    found = points(server, "o", [7, 8, 9])
    assert found[8]["vector"] == pytest.approx(ROWS[8].tolist())
    assert found[7]["vector"] == pytest.approx((ROWS[7] + 5).tolist())


def test_a_patch_that_is_answered_while_a_compaction_ends_stays(server):
    assert build(server, "p", "more.npy")["state"] == "done"
    upsert(server, "p", 1, [1.0] * 8)
    job = server.client.post("/v1/admin/collections/p/compact").json()["job"]
    number = 0
    while server.job(job)["state"] in ("queued", "running"):
        number += 1
        answer = server.client.patch("/collections/p", json={"metadata": {f"k{number}": number}})
        assert answer.status_code == 200
    metadata = server.client.get("/collections/p").json()["result"]["config"]["metadata"]
    assert metadata == {f"k{n}": n for n in range(1, number + 1)}


def test_a_collection_is_deleted_and_made_again_while_it_is_compacted(server):
    assert build(server, "n")["state"] == "done"
    for _ in range(3):
        upsert(server, "n", 1, [1.0] * 8)
        server.client.post("/v1/admin/collections/n/compact")
        assert server.client.delete("/collections/n").json()["result"] is True
        made = server.client.put("/collections/n", json={"vectors": {"size": 8, "distance": "Dot"}})
        assert made.status_code == 200, made.text
        assert count(server, "n") == 0


@pytest.mark.parametrize(("first", "second"), [("l2", "dot"), ("cosine", "l2"), ("dot", "cosine")])
def test_what_is_written_after_another_metric_is_searched_by_it(server, first, second):
    name = f"{first} {second}"
    assert build(server, name, "more.npy", metric=first)["state"] == "done"
    job = server.wait_job(submitted(server, name, "more.npy", mode="replace", allow_change=True, metric=second))
    assert job["state"] == "done", job
    rows = ROWS[:1000] * np.random.default_rng(1).uniform(0.1, 10, (1000, 1)).astype(np.float32)
    body = {"batch": {"ids": list(range(10_000, 11_000)), "vectors": rows.tolist()}}
    assert server.client.put(f"/collections/{name}/points", json=body).status_code == 200
    everything = np.concatenate([rows, ROWS[:300] + 5]).astype(np.float64)
    ids = [*range(10_000, 11_000), *range(300)]
    query = ROWS[1999].astype(np.float64)
    along = everything @ query
    scores = {
        "dot": along,
        "l2": -np.linalg.norm(everything - query, axis=1),
        "cosine": along / np.linalg.norm(everything, axis=1),
    }[second]
    true = [ids[i] for i in np.argsort(-scores)[:10]]
    asked = {"query": query.tolist(), "limit": 10, "params": {"exact": True}}
    hits = server.client.post(f"/collections/{name}/points/query", json=asked).json()["result"]["points"]
    assert [hit["id"] for hit in hits] == true


def test_entries_that_could_not_be_dropped_count_no_more(tmp_path):
    """A full disk keeps what a replace gave up in points.db: neither a compaction nor a restart takes it up again."""
    (tmp_path / "data" / "import").mkdir(parents=True)
    np.save(tmp_path / "data" / "import" / "rows.npy", ROWS)
    broken = (
        "import sqlite3\nfrom service.points.store import PointStore\n"
        "def drop(self, *, folded, given_up):\n"
        "    self.sequence = max(self.sequence, folded, given_up)\n"
        "    if self.path.exists(): raise sqlite3.OperationalError('database or disk is full')\n"
        "PointStore.drop = drop\n"
    )
    with live_server(tmp_path / "data", before=broken) as server:
        assert build(server, "c")["state"] == "done"
        upsert(server, "c", 3, [9.0] * 8)
        upsert(server, "c", 100_000, [9.0] * 8)
        server.client.post("/collections/c/points/delete", json={"points": [7]})
        assert server.wait_job(submitted(server, "c", mode="replace"))["state"] == "done"

        def check(server):
            found = points(server, "c", [3, 7, 100_000])
            assert set(found) == {3, 7} and found[3]["vector"] == pytest.approx(ROWS[3].tolist())
            assert count(server, "c") == 2001

        upsert(server, "c", 2000, [1.0] * 8)
        check(server)
        for _ in range(2):
            job = server.client.post("/v1/admin/collections/c/compact").json()["job"]
            assert server.wait_job(job)["state"] == "done"
            check(server)
    with live_server(tmp_path / "data") as server:
        check(server)
