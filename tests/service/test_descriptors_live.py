"""Scenarios S34 and S56 on a real server: how many descriptors collections hold, add and give back."""

from __future__ import annotations

import contextlib
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from live import LiveServer, live_server, wait_for

from index import build
from service.catalogue import Catalogue, CollectionRecord

COLLECTIONS = 50
ROWS = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc to count descriptors in")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """An index of 100 points with strings among their ids, and payloads: every file there can be."""
    out = tmp_path_factory.mktemp("built") / "index"
    ids = [f"name-{i}" if i % 2 else i for i in range(len(ROWS))]
    build(ROWS, out, ids=ids, payload=[{"n": i} for i in range(len(ROWS))])
    return out


@pytest.fixture
def data_dir(built, tmp_path) -> Path:
    """50 collections c0 ... c49, as a server left them."""
    folder = tmp_path / "data"
    (folder / "import").mkdir(parents=True)
    np.save(folder / "import" / "rows.npy", ROWS)
    catalogue = Catalogue(folder / "catalogue.db")
    for number in range(COLLECTIONS):
        record = CollectionRecord(
            id=f"{number:032x}",
            name=f"c{number}",
            size=ROWS.shape[1],
            distance="Cosine",
            config=b"{}",
            generation="first",
            generation_number=1,
            created_at=time.time(),
        )
        catalogue.put(record)
        shutil.copytree(built, folder / "collections" / record.id / "first")
    catalogue.close()
    return folder


def held(server: LiveServer) -> list[str]:
    """What the server's descriptors of collections lead to."""
    links = []
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(str(descriptor.readlink()))
    return [link for link in links if str(server.data_dir / "collections") in link]


def query(server: LiveServer, number: int, *, exact: bool = False) -> None:
    row = number % len(ROWS)
    body = {"query": ROWS[row].tolist(), "limit": 3, "with_payload": True, "params": {"exact": exact}}
    answer = server.client.post(f"/collections/c{number}/points/query", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["result"]["points"][0]["payload"] == {"n": row}


def query_all(server: LiveServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: query(server, number % COLLECTIONS, exact=number >= COLLECTIONS), range(100)))


def test_s56_fifty_collections_fit_under_256_descriptors(data_dir):
    with live_server(data_dir, before=FEW_FILES) as server:
        assert len(held(server)) <= 3 * COLLECTIONS
        query_all(server)
        assert len(held(server)) <= 3 * COLLECTIONS
        assert server.build(collection="more", source={"path": "rows.npy"})["state"] == "done"
        for number in range(100):
            body = {"vectors": {"size": 2, "distance": "Dot"}}
            answer = server.client.put(f"/collections/empty{number}", json=body)
            if answer.status_code != 200:
                break
        assert answer.status_code == 507
        assert "256" in answer.json()["status"]["error"]
        refused = server.client.post("/v1/admin/builds", json={"collection": "x", "source": {"path": "rows.npy"}})
        assert refused.status_code == 507
        assert server.client.get("/livez").status_code == 200
        query_all(server)
    with live_server(data_dir) as server:
        names = {each["name"] for each in server.client.get("/collections").json()["result"]["collections"]}
        assert names == {f"c{i}" for i in range(COLLECTIONS)} | {"more"} | {f"empty{i}" for i in range(number)}
        query_all(server)


def test_s34_deleted_and_replaced_collections_give_their_descriptors_back(data_dir):
    with live_server(data_dir, before=FEW_FILES) as server:
        before = sorted(held(server))
        for _ in range(2):
            assert server.build(collection="again", source={"path": "rows.npy"}, mode="replace")["state"] == "done"
            assert len(held(server)) <= len(before) + 3
        assert server.client.delete("/collections/again").json()["result"] is True
        wait_for(lambda: sorted(held(server)) == before)
        for number in range(COLLECTIONS):
            query(server, number)
            assert server.client.delete(f"/collections/c{number}").json()["result"] is True
        wait_for(lambda: not any("/first/" in link for link in held(server)))
