"""The engine: names resolve atomically, generations end with their last reader, damage stays with its collection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from fake_index import open_fake, put_fake
from starlette.testclient import TestClient

from service.alias_changes import AliasChange
from service.app import create_app
from service.collection_info import collection_info
from service.engine import Engine
from service.errors import ConflictError, MalformedError, NoRoomError, NotFoundError
from service.generation import Generation


@pytest.fixture
def engine(settings):
    """An engine over fake indexes, without HTTP."""
    settings.data_dir.mkdir()
    running = Engine(settings, open_fake)
    running.start()
    yield running
    running.close()


def restarted(settings, opener=open_fake):
    engine = Engine(settings, opener)
    engine.start()
    engine._loader.join()
    return engine


def test_a_generation_ends_with_its_last_reader(engine):
    old = put_fake(engine, "c", [[1.0, 0.0]])
    lease = engine.lease("c")
    new = put_fake(engine, "c", [[0.0, 1.0]])
    assert not old.closed
    assert old.path.exists()
    assert engine.lease("c").index is new
    lease.release()
    assert old.closed
    assert not old.path.exists()
    assert new.path.exists()


def test_a_retired_generation_takes_no_readers(tmp_path):
    class Index:
        closed = 0

        def close(self):
            self.closed += 1

    index = Index()
    generation = Generation(index, tmp_path / "g")
    assert generation.acquire()
    generation.retire(remove_files=True)
    generation.retire(remove_files=True)
    assert not generation.acquire()
    assert index.closed == 0
    generation.release()
    assert index.closed == 1


def test_info_of_what_is_loading_or_empty(engine):
    engine.create("empty", size=3, distance="Dot", config=b'{"vector":{"on_disk":true},"fullview":{"bits":4}}')
    info = collection_info(engine.find("empty"), {})
    assert (info["status"], info["points_count"]) == ("green", 0)
    assert info["config"]["params"]["vectors"] == {"size": 3, "distance": "Dot", "on_disk": True}
    assert info["fullview"]["settings"] == {"bits": 4}


def test_parts_of_one_request_share_a_lease(engine):
    old = put_fake(engine, "c", [[1.0, 0.0]])
    seen, may_end = [], threading.Event()

    def work(lease):
        seen.append(lease.index)
        may_end.wait(10)
        return not lease.index.closed

    async def read():
        reading = asyncio.create_task(engine.read_parts("c", [work, work, work], timeout_s=10))
        await asyncio.sleep(0)
        await asyncio.to_thread(put_fake, engine, "c", [[0.0, 1.0]])
        may_end.set()
        return await reading

    assert asyncio.run(read()) == [True, True, True]
    assert seen == [old, old, old]
    assert old.closed


def test_deleting_waits_for_readers_and_removes_everything(engine, settings):
    index = put_fake(engine, "c", [[1.0, 0.0]])
    lease = engine.lease("c")
    assert engine.delete("c")
    assert not engine.delete("c")
    with pytest.raises(NotFoundError, match="'c'"):
        engine.lease("c")
    assert index.path.exists()
    lease.release()
    assert list((settings.data_dir / "collections").iterdir()) == []


def test_everything_is_there_after_a_restart(settings, engine):
    put_fake(engine, "c", [[1.0, 0.0]])
    engine.create("тест-集合 a.b 50% con", size=3, distance="Dot", config=b'{"x":1}')
    engine.set_aliases([AliasChange(alias="live", collection="c")])
    engine.close()
    again = restarted(settings)
    assert [c.record.name for c in again.all()] == ["c", "тест-集合 a.b 50% con"]
    assert again.find("тест-集合 a.b 50% con").record.config == b'{"x":1}'
    assert again.aliases() == {"live": "c"}
    assert again.lease("live").index.n == 1
    again.close()
    engine.start()


def test_leftovers_go_at_the_next_start(settings, engine):
    index = put_fake(engine, "c", [[1.0, 0.0]])
    engine.close()
    (settings.data_dir / "collections" / "orphan" / "x").mkdir(parents=True)
    (index.path.parent / "unfinished").mkdir()
    again = restarted(settings)
    assert list((settings.data_dir / "collections").iterdir()) == [index.path.parent]
    assert list(index.path.parent.iterdir()) == [index.path]
    again.close()
    engine.start()


def test_aliases_are_changed_all_or_none(engine):
    put_fake(engine, "a", [[1.0]])
    put_fake(engine, "b", [[2.0]])
    engine.set_aliases([AliasChange(alias="live", collection="a")])
    with pytest.raises(NotFoundError, match="missing"):
        engine.set_aliases([AliasChange(alias="live"), AliasChange(alias="live", collection="missing")])
    assert engine.aliases() == {"live": "a"}
    with pytest.raises(ConflictError, match="'b'"):
        engine.set_aliases([AliasChange(alias="b", collection="a")])
    with pytest.raises(NotFoundError, match="old"):
        engine.set_aliases([AliasChange(alias="new", old_alias="old")])
    engine.set_aliases([AliasChange(alias="new", old_alias="live"), AliasChange(alias="gone")])
    assert engine.aliases() == {"new": "a"}
    with pytest.raises(MalformedError, match="alias"):
        engine.create("new", size=1, distance="Dot", config=b"{}")
    with pytest.raises(ConflictError, match="'a'"):
        engine.create("a", size=1, distance="Dot", config=b"{}")
    engine.delete("a")
    assert engine.aliases() == {}


def test_a_failed_transaction_changes_nothing_that_requests_see(engine, monkeypatch):
    old = put_fake(engine, "a", [[1.0]])

    def full(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    for name in ("put", "delete", "replace_aliases"):
        monkeypatch.setattr(engine._catalogue, name, full)
    with pytest.raises(sqlite3.OperationalError):
        put_fake(engine, "a", [[2.0]])
    with pytest.raises(sqlite3.OperationalError):
        engine.create("b", size=1, distance="Dot", config=b"{}")
    with pytest.raises(sqlite3.OperationalError):
        engine.delete("a")
    with pytest.raises(sqlite3.OperationalError):
        engine.set_aliases([AliasChange(alias="x", collection="a")])
    assert engine.lease("a").index is old
    assert [c.record.name for c in engine.all()] == ["a"]
    assert len(list(old.path.parent.iterdir())) == 1


def test_s30_a_damaged_collection_keeps_no_other_down(settings, engine):
    broken = put_fake(engine, "broken", [[1.0]])
    odd = put_fake(engine, "odd", [[1.0]])
    put_fake(engine, "good", [[1.0, 0.0]])
    engine.close()
    (broken.path / "manifest.json").unlink()
    (odd.path / "manifest.json").write_text("{}")
    with TestClient(create_app(settings, opener=open_fake)) as client:
        client.app.state.parts.engine._loader.join()
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["damaged"].keys() == {"broken", "odd"}
        query = {"query": [1.0, 0.0]}
        assert client.post("/collections/good/points/query", json=query).status_code == 200
        answer = client.post("/collections/broken/points/query", json=query)
        assert answer.status_code == 503
        assert "manifest.json" in answer.json()["status"]["error"]
        info = client.get("/collections/broken").json()["result"]
        assert info["status"] == "red"
        assert "manifest.json" in info["fullview"]["reason"]
        assert "fullview_collections_damaged 2.0" in client.get("/metrics").text
        assert client.delete("/collections/broken").json()["result"] is True
        assert client.get("/collections/broken").status_code == 404
        assert not broken.path.exists()
    engine.start()


def test_s37_alias_switches_are_atomic(engine):
    put_fake(engine, "A", [[1.0, 0.0]], payload=[{"v": "A"}])
    put_fake(engine, "B", [[1.0, 0.0]], payload=[{"v": "B"}])
    engine.set_aliases([AliasChange(alias="live", collection="A")])
    failures, stop, switched = [], threading.Event(), {"to": "A"}

    def read():
        while not stop.is_set():
            try:
                before = switched["to"]
                lease = engine.lease("live")
                found = lease.index.payload.get(np.array([0]))[0]
                lease.release()
                if lease.record.name.encode() not in found:
                    failures.append((lease.record.name, found))
                if before == "final" and lease.record.name != "A":
                    failures.append("an answer from the old side after the swap")
            except Exception as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(100):
        target = "BA"[turn % 2]
        engine.set_aliases([AliasChange(alias="live"), AliasChange(alias="live", collection=target)])
    switched["to"] = "final"
    for _ in range(100):
        assert engine.lease("live").record.name == "A"
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []


def test_loading_collections_are_not_ready(settings, engine):
    put_fake(engine, "c", [[1.0]])
    engine.close()
    may_load = threading.Event()

    def slow(path, options):
        may_load.wait(20)
        return open_fake(path, options)

    with TestClient(create_app(settings, opener=slow)) as client:
        try:
            assert client.get("/livez").status_code == 200
            ready = client.get("/readyz")
            assert ready.status_code == 503
            assert "0/1 collections loaded" in ready.json()["missing"][0]
            answer = client.post("/collections/c/points/query", json={"query": [1.0]})
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert client.get("/collections/c").json()["result"]["status"] == "yellow"
        finally:
            may_load.set()
        client.app.state.parts.engine._loader.join()
        assert client.get("/readyz").status_code == 200
        assert client.post("/collections/c/points/query", json={"query": [1.0]}).status_code == 200
    engine.start()


def test_s46_readiness_follows_the_pool(fake_client, monkeypatch):
    from service.routes import service as routes

    monkeypatch.setattr(routes, "_STALLED_S", 0.2)
    pool = fake_client.engine.pool
    held, gate = [], threading.Event()
    for _ in pool._threads:
        pool._queue.put(lambda: (held.append(1), gate.wait(20)))
    try:
        until = threading.Event()
        for _ in range(100):
            answer = fake_client.get("/readyz")
            if answer.status_code == 503:
                break
            until.wait(0.05)
        assert answer.status_code == 503
        assert "worker pool" in answer.json()["missing"][0]
        assert fake_client.get("/livez").status_code == 200
    finally:
        gate.set()
    for _ in range(100):
        if fake_client.get("/readyz").status_code == 200:
            break
        until.wait(0.05)
    assert fake_client.get("/readyz").status_code == 200


def test_s56_descriptors_are_counted_before_they_run_out(engine, monkeypatch):
    import resource

    # What other tests of this process hold open counts too, so the limit leaves room for a few collections above that.
    limit = sum(1 for _ in Path("/proc/self/fd").iterdir()) + 64
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    created = iter(range(64))
    with pytest.raises(NoRoomError, match=f"is {limit}"):
        deque(engine.create(f"c{number}", size=1, distance="Dot", config=b"{}") for number in created)
    refused = next(created) - 1
    assert 5 <= refused < 20
    assert engine.exists(f"c{refused - 1}")
    assert not engine.exists(f"c{refused}")
    assert NoRoomError.status == 507
