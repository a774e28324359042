"""A damaged collection is named and stays alone: the server starts, and serves the others."""

from __future__ import annotations

import numpy as np
import pytest
from real_index import put_index
from starlette.testclient import TestClient

from service.app import create_app

ROWS = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)


@pytest.mark.parametrize(
    "name", ["entries.npy", "links.npy", "codes.npy", "mean.npy", "ids/table.bin", "manifest.json"]
)
def test_a_flipped_bit_in_one_collection_leaves_the_others_served(settings, name):
    with TestClient(create_app(settings)) as client:
        engine = client.app.state.parts.engine
        folder = put_index(engine, "bad", ROWS, preview="graph").path
        put_index(engine, "good", ROWS, preview="graph")
    raw = bytearray((folder / name).read_bytes())
    raw[-2] ^= 64  # of entries.npy: an entry far beyond the rows
    (folder / name).write_bytes(raw)
    with TestClient(create_app(settings)) as client:
        client.app.state.parts.engine._loader.join()
        body = {"query": ROWS[7].tolist(), "limit": 3}
        answer = client.post("/collections/bad/points/query", json=body)
        assert answer.status_code == 503 and name.split("/")[-1] in answer.json()["status"]["error"]
        answer = client.post("/collections/good/points/query", json=body)
        assert answer.status_code == 200 and answer.json()["result"]["points"][0]["id"] == 7
        assert client.get("/collections/bad").json()["result"]["status"] == "red"
        assert client.get("/collections/good").json()["result"]["status"] == "green"
