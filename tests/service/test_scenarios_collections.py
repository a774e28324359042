"""Collections that change, as their scenarios say (S28 to S37): a real server, real clients, real kills."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import httpx2
import numpy as np
import pytest
from live import live_server, wait_for

QUERY = {"limit": 10, "with_payload": True}


def create(client, name, size=8, **more):
    body = {"vectors": {"size": size, "distance": "Cosine"}, **more}
    assert client.put(f"/collections/{name}", json=body).status_code == 200


def vectors(count, size=8, seed=0):
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)


def upsert(client, name, ids, rows, payload=None):
    points = [
        {"id": id_, "vector": row.tolist(), "payload": payload(id_) if payload else {"n": id_}}
        for id_, row in zip(ids, rows, strict=True)
    ]
    return client.put(f"/collections/{name}/points", json={"points": points})


def count(client, name, **body):
    answer = client.post(f"/collections/{name}/points/count", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]["count"]


def nearest(client, name, vector, **more):
    answer = client.post(
        f"/collections/{name}/points/query", json={"query": np.asarray(vector).tolist(), **QUERY, **more}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]["points"]


def start_compaction(server, name):
    answer = server.client.post(f"/v1/admin/collections/{name}/compact")
    assert answer.status_code == 202, answer.text
    return answer.json()["job"]


def compact(server, name):
    job = server.wait_job(start_compaction(server, name))
    assert job["state"] == "done", job
    return job


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.long)])
def test_s28_searches_while_others_write(tmp_path, seconds):
    """4 writers, 4 readers, and a build of another collection: no 5xx, no id twice, no id that was not sent."""
    rows = vectors(8000, 16)
    (tmp_path / "data" / "import").mkdir(parents=True)
    np.save(tmp_path / "data" / "import" / "other.npy", vectors(5000, 16, seed=1))
    sent = set()
    problems: list[str] = []
    stop = threading.Event()

    def write(writer):
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            for start in range(writer * 2000, writer * 2000 + 2000, 50):
                ids = range(start, start + 50)
                sent.update(ids)
                answer = upsert(client, "c", ids, rows[start : start + 50])
                if answer.status_code != 200:
                    problems.append(answer.text)

    def read(reader):
        random = np.random.default_rng(reader)
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            while not stop.is_set():
                query = random.standard_normal(16).tolist()
                answer = client.post("/collections/c/points/query", json={"query": query, "limit": 50})
                ids = [hit["id"] for hit in answer.json()["result"]["points"]] if answer.status_code == 200 else None
                if ids is None or len(set(ids)) != len(ids) or not set(ids) <= sent:
                    problems.append(answer.text)

    with live_server(tmp_path / "data") as server:
        create(server.client, "c", 16)
        job = server.client.post("/v1/admin/builds", json={"collection": "o", "source": {"path": "other.npy"}}).json()[
            "job"
        ]
        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        readers = [threading.Thread(target=read, args=(n,)) for n in range(4)]
        begun = time.monotonic()
        for thread in (*threads, *readers):
            thread.start()
        for thread in threads:
            thread.join()
        start_compaction(server, "c")
        while time.monotonic() - begun < seconds:
            time.sleep(0.1)
        stop.set()
        for thread in readers:
            thread.join()
        assert not problems, problems[:3]
        assert server.wait_job(job)["state"] == "done"
        assert count(server.client, "c") == 8000
        for start in range(0, 8000, 500):
            searches = [{"query": row.tolist(), "limit": 1} for row in rows[start : start + 500]]
            answer = server.client.post("/collections/c/points/query/batch", json={"searches": searches})
            assert [one["points"][0]["id"] for one in answer.json()["result"]] == list(range(start, start + 500))


def test_s30_one_damaged_collection_leaves_the_others_served(tmp_path):
    """A flipped byte, a file that is gone, a points.db that is damaged: each is red and named, the rest serves."""
    data = tmp_path / "data"
    rows = vectors(500)
    with live_server(data) as server:
        for name in ("flipped", "gone", "written", "good"):
            create(server.client, name)
            upsert(server.client, name, range(500), rows)
        for name in ("flipped", "gone", "good"):
            compact(server, name)
        expected = nearest(server.client, "good", rows[7])
        server.terminate()
    by_name = collection_folders(data)
    damaged = {
        "flipped": flip(next(by_name["flipped"].glob("*/codes.npy"))),
        "gone": remove(next(by_name["gone"].glob("*/vectors.bin"))),
        "written": flip(by_name["written"] / "points.db", at=0.5),
    }
    with live_server(data) as server:
        assert nearest(server.client, "good", rows[7]) == expected
        for name, path in damaged.items():
            info = server.client.get(f"/collections/{name}").json()["result"]
            assert info["status"] == "red" and path.name in info["optimizer_status"]["error"], name
            answer = server.client.post(f"/collections/{name}/points/query", json={"query": rows[0].tolist()})
            assert answer.status_code == 503 and path.name in answer.json()["status"]["error"]
            answer = upsert(server.client, name, [1], rows[:1])
            assert answer.status_code == 503, answer.text
            assert server.client.delete(f"/collections/{name}").json()["result"] is True
            assert server.client.get(f"/collections/{name}").status_code == 404
            create(server.client, name)
            assert count(server.client, name) == 0
        assert set(collection_folders(data)) <= {"good", "flipped", "gone", "written"}


def collection_folders(data):
    with contextlib.closing(sqlite3.connect(data / "catalogue.db")) as connection:
        rows = connection.execute("SELECT name, id FROM collections").fetchall()
    return {name: data / "collections" / id_ for name, id_ in rows}


def flip(path: Path, at: float = 0.9) -> Path:
    raw = bytearray(path.read_bytes())
    # Within what is used: a byte of a vector, which a checksum covers.
    raw[int(len(raw) * at)] ^= 0x41
    path.write_bytes(raw)
    return path


def remove(path: Path) -> Path:
    path.unlink()
    return path


def test_s31_deleted_points_do_not_come_back(tmp_path):
    """Deleted while a compaction runs, a kill, a restart, another compaction, a snapshot: they stay deleted."""
    rows = vectors(1000)
    gone = list(range(1, 101))
    filter_ = {"must": [{"key": "n", "range": {"lte": 100, "gte": 1}}]}

    def check(client, name):
        assert count(client, name) == 900
        assert count(client, name, filter=filter_) == 0
        assert client.post(f"/collections/{name}/points", json={"ids": gone}).json()["result"] == []
        page = client.post(f"/collections/{name}/points/scroll", json={"limit": 2000}).json()["result"]["points"]
        assert len(page) == 900 and not {p["id"] for p in page} & set(gone)
        for row in rows[:20]:
            assert not {hit["id"] for hit in nearest(client, name, row, limit=900)} & set(gone)

    with live_server(tmp_path / "data") as server:
        create(server.client, "c")
        upsert(server.client, "c", range(1, 1001), rows)
        compact(server, "c")
        upsert(server.client, "c", range(500, 600), rows[499:599])
        start_compaction(server, "c")
        assert server.client.post("/collections/c/points/delete", json={"points": gone}).status_code == 200
        check(server.client, "c")
        server.kill()
    with live_server(tmp_path / "data") as server:
        check(server.client, "c")
        compact(server, "c")
        check(server.client, "c")
        name = server.client.post("/collections/c/snapshots").json()["result"]["name"]
        restored = server.client.put("/collections/d/snapshots/recover", json={"location": f"file:///c/{name}"})
        assert restored.status_code == 200, restored.text
        check(server.client, "d")
        assert server.client.delete("/collections/c").json()["result"] is True
        create(server.client, "c")
        assert count(server.client, "c") == 0 and nearest(server.client, "c", rows[0]) == []


def test_s32_the_same_points_again_and_again_take_no_more_room(tmp_path):
    rows = vectors(10)
    with live_server(tmp_path / "data") as server:
        create(server.client, "c")
        twice = [{"id": i, "vector": rows[i].tolist(), "payload": {"v": v}} for v in (0, 1) for i in range(10)]
        assert server.client.put("/collections/c/points", json={"points": twice}).status_code == 200
        assert (
            count(server.client, "c") == 10
            and count(server.client, "c", filter={"must": {"key": "v", "match": {"value": 1}}}) == 10
        )
        assert len({hit["id"] for hit in nearest(server.client, "c", rows[0])}) == 10
        compact(server, "c")
        once = disk_bytes(tmp_path / "data" / "collections")
        for _ in range(100):
            server.client.put("/collections/c/points", json={"points": twice[10:]})
        assert count(server.client, "c") == 10
        compact(server, "c")
        assert disk_bytes(tmp_path / "data" / "collections") < 2 * once


def disk_bytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _upsert_some(url, writer, with_vectors):
    with httpx2.Client(base_url=url, timeout=60) as client:
        rows = vectors(15, seed=writer)
        points = [
            {"id": writer * 15 + at, "vector": row.tolist() if with_vectors else {}, "payload": {"p": 1}}
            for at, row in enumerate(rows)
        ]
        return client.put("/collections/c/points", json={"points": points}).status_code


@pytest.mark.parametrize(
    ("with_vectors", "rounds"), [(True, 4), (False, 2), pytest.param(True, 12, marks=pytest.mark.long)]
)
def test_s33_a_delete_by_filter_leaves_what_is_written_after_it(tmp_path, with_vectors, rounds):
    """40 writers begin as soon as the delete was answered; all 600 points are there, time and again."""
    with live_server(tmp_path / "data") as server, ProcessPoolExecutor(8, mp_context=get_context("spawn")) as pool:
        create(server.client, "c")
        filter_ = {"must": [{"key": "p", "match": {"value": 1}}]}
        for round_ in range(rounds):
            wait = "true" if round_ % 2 else "false"
            deleted = server.client.post(
                "/collections/c/points/delete", params={"wait": wait}, json={"filter": filter_}
            )
            assert deleted.status_code == 200
            codes = list(pool.map(_upsert_some, [server.url] * 40, range(40), [with_vectors] * 40))
            assert codes == [200] * 40
            assert count(server.client, "c", filter=filter_) == 600


@pytest.mark.parametrize("cycles", [4, pytest.param(20, marks=pytest.mark.long)])
def test_s34_room_memory_and_descriptors_are_given_back(tmp_path, cycles):
    rows = vectors(10_000, 64)
    with live_server(tmp_path / "data", "--no-compact-auto") as server:
        process = f"/proc/{server.process.pid}"

        def state():
            resident = int(Path(f"{process}/statm").read_text().split()[1]) * 4096
            return disk_bytes(tmp_path / "data"), len(list(Path(f"{process}/fd").iterdir())), resident

        create(server.client, "first")
        server.client.delete("/collections/first")
        disk, open_files, _ = state()
        resident = []
        for cycle in range(cycles):
            create(server.client, "c", 64)
            for start in range(0, 10_000, 1000):
                assert (
                    upsert(server.client, "c", range(start, start + 1000), rows[start : start + 1000]).status_code
                    == 200
                )
            if cycle % 2:
                compact(server, "c")
            server.client.post("/collections/c/points/delete", json={"filter": {}})
            assert count(server.client, "c") == 0
            assert server.client.delete("/collections/c").json()["result"] is True
            after = state()
            assert abs(after[0] - disk) < 1_000_000 and after[1] <= open_files, (cycle, after, disk, open_files)
            resident.append(after[2])
        assert resident[-1] <= 1.05 * resident[min(4, cycles - 2)] + 5_000_000, resident
        assert not list((tmp_path / "data" / "collections").iterdir())


@pytest.mark.parametrize("times", [250, pytest.param(1000, marks=pytest.mark.long)])
def test_s34_many_small_upserts_leave_few_files(tmp_path, times):
    rows = vectors(100)
    with live_server(tmp_path / "data") as server:
        create(server.client, "c")
        for _ in range(times):  # each of 100 points
            assert upsert(server.client, "c", range(100), rows).status_code == 200
        files = [file for file in (tmp_path / "data" / "collections").rglob("*") if file.is_file()]
        assert len(files) < 20
        assert disk_bytes(tmp_path / "data" / "collections") < 20_000_000
        assert count(server.client, "c") == 100


def test_s37_an_alias_is_switched_at_once(tmp_path):
    """Many swaps under queries by alias: each answer is of one collection, and none of the old one after a swap."""
    rows = vectors(200)
    with live_server(tmp_path / "data") as server:
        client = server.client
        for name in ("A", "B"):
            create(client, name)
            upsert(client, name, range(200), rows, payload=lambda _, name=name: {"v": name})
        current = ["A"]

        def switch(target):
            actions = [
                {"delete_alias": {"alias_name": "live"}},
                {"create_alias": {"collection_name": target, "alias_name": "live"}},
            ]
            return client.post("/collections/aliases", json={"actions": actions})

        assert switch("A").status_code == 200
        problems, stop, answers = [], threading.Event(), [0]

        def read():
            with httpx2.Client(base_url=server.url, timeout=30) as reader:
                while not stop.is_set():
                    settled = current[0]
                    answer = reader.post("/collections/live/points/query", json={"query": rows[0].tolist(), **QUERY})
                    found = (
                        {hit["payload"]["v"] for hit in answer.json()["result"]["points"]}
                        if answer.status_code == 200
                        else {}
                    )
                    if len(found) != 1 or (settled is not None and current[0] == settled and found != {settled}):
                        problems.append((settled, current[0], answer.text[:200]))
                    answers[0] += 1

        readers = [threading.Thread(target=read) for _ in range(3)]
        for thread in readers:
            thread.start()
        for number in range(100):
            target = "AB"[number % 2 == 0]
            current[0] = None
            assert switch(target).status_code == 200
            current[0] = target
            time.sleep(0.01)
        stop.set()
        for thread in readers:
            thread.join()
        assert not problems, problems[:3]
        assert answers[0] > 100
        assert switch("nowhere").status_code == 404
        assert nearest(client, "live", rows[0])[0]["payload"]["v"] == current[0]


def test_s15_upserts_until_the_disk_is_full(small_disk):
    """507 with path and bytes; searches and acknowledged points stay; a delete of a collection makes room."""
    rows = vectors(200, 64)
    with live_server(small_disk / "data", "--no-compact-auto") as server:
        create(server.client, "spare", 64)
        upsert(server.client, "spare", range(200), rows)
        create(server.client, "c", 64)
        acknowledged = 0
        while True:
            ids = range(acknowledged, acknowledged + 200)
            answer = upsert(server.client, "c", ids, rows, payload=lambda i: {"n": i, "text": "x" * 300})
            if answer.status_code != 200:
                break
            acknowledged += 200
        assert answer.status_code == 507, answer.text
        assert (
            "bytes are needed" in answer.json()["status"]["error"]
            and str(small_disk) in answer.json()["status"]["error"]
        )
        assert acknowledged > 10_000
        expected = nearest(server.client, "c", rows[3])
        assert count(server.client, "c") == acknowledged
        assert upsert(server.client, "c", [1], rows[:1], payload=lambda i: {"text": "y" * 100_000}).status_code == 507
        refused = server.client.post("/v1/admin/collections/c/compact")
        assert refused.status_code == 507, refused.text
        assert nearest(server.client, "c", rows[3]) == expected and count(server.client, "c") == acknowledged
        assert server.client.get("/readyz").status_code == 200
        assert server.client.delete("/collections/spare").json()["result"] is True
        server.kill()
    with live_server(small_disk / "data", "--no-compact-auto") as server:
        assert count(server.client, "c") == acknowledged
        assert nearest(server.client, "c", rows[3]) == expected
        assert server.client.delete("/collections/c").json()["result"] is True
        create(server.client, "again", 64)
        assert upsert(server.client, "again", range(200), rows).status_code == 200


def test_s56_points_written_to_many_collections_take_few_descriptors(tmp_path):
    """At least 50 collections of 100 points under a limit of 256 open files, all of them there after a restart."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    rows = vectors(100, 4)
    with live_server(tmp_path / "data", before=limit) as server:
        made = 0
        while made < 100:
            answer = server.client.put(f"/collections/c{made}", json={"vectors": {"size": 4, "distance": "Dot"}})
            if answer.status_code != 200:
                break
            assert upsert(server.client, f"c{made}", range(100), rows).status_code == 200
            made += 1
        assert answer.status_code == 507 and "256" in answer.text
        assert made >= 50
        assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) <= 3 * made + 60
        assert [count(server.client, f"c{n}") for n in range(made)] == [100] * made
        server.kill()
    with live_server(tmp_path / "data", before=limit) as server:
        assert [count(server.client, f"c{n}") for n in range(made)] == [100] * made


def test_s52_a_write_whose_client_left_is_done_whole_or_not_at_all(tmp_path):
    rows = vectors(2000, 64)
    with live_server(tmp_path / "data") as server:
        create(server.client, "c", 64)
        with pytest.raises(httpx2.TimeoutException), httpx2.Client(base_url=server.url, timeout=0.02) as hasty:
            upsert(hasty, "c", range(2000), rows)
        wait_for(lambda: count(server.client, "c") in (0, 2000))
        time.sleep(0.5)
        assert count(server.client, "c") in (0, 2000)
