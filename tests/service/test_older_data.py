"""A data folder of the version before collections changed: opened, brought up to date, and answering as it did."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3

import numpy as np
import pytest
from live import live_server
from real_index import put_index
from starlette.testclient import TestClient

from index.errors import UnsupportedFormatError
from service.app import create_app
from service.catalogue import Catalogue

ROWS = np.random.default_rng(0).standard_normal((600, 8)).astype(np.float32)
QUERY = {"query": ROWS[7].tolist(), "limit": 10}

# As the service wrote it before version 2.
VERSION_1 = """
CREATE TABLE collections (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, distance TEXT NOT NULL, config BLOB NOT NULL,
    generation TEXT, generation_number INTEGER NOT NULL, created_at REAL NOT NULL
) STRICT;
CREATE TABLE aliases (
    alias TEXT PRIMARY KEY, collection_id TEXT NOT NULL REFERENCES collections (id) ON DELETE CASCADE
) STRICT;
CREATE TABLE decoders (
    name TEXT PRIMARY KEY, folder TEXT NOT NULL UNIQUE, number INTEGER NOT NULL, device TEXT NOT NULL, serve TEXT,
    created_at REAL NOT NULL
) STRICT;
PRAGMA user_version = 1;
"""


def as_version_1(path):
    """The catalogue written again as the version before would have."""
    with contextlib.closing(sqlite3.connect(path)) as new:
        rows = new.execute(
            "SELECT id, name, size, distance, config, generation, generation_number, created_at FROM collections"
        ).fetchall()
        aliases = new.execute("SELECT * FROM aliases").fetchall()
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute("PRAGMA journal_mode=WAL")
        old.executescript(VERSION_1)
        old.executemany("INSERT INTO collections VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        old.executemany("INSERT INTO aliases VALUES (?, ?)", aliases)
        old.commit()


def test_s35_a_data_folder_of_the_version_before_opens_and_answers_as_it_did(settings):
    with TestClient(create_app(settings)) as client:
        put_index(client.app.state.parts.engine, "old", ROWS, payload=[{"n": i} for i in range(600)])
        client.put("/collections/empty", json={"vectors": {"size": 3, "distance": "Dot"}})
        alias = {"create_alias": {"collection_name": "old", "alias_name": "live"}}
        assert client.post("/collections/aliases", json={"actions": [alias]}).status_code == 200
        expected = client.post("/collections/old/points/query", json=QUERY).json()["result"]
    as_version_1(settings.data_dir / "catalogue.db")
    # Payloads had no columns then.
    (columns,) = (settings.data_dir / "collections").rglob("payload/columns.bin")
    for _ in range(2):
        with live_server(settings.data_dir) as server:
            client = server.client
            assert client.post("/collections/live/points/query", json=QUERY).json()["result"] == expected
            wanted = {"filter": {"must": {"key": "n", "range": {"lt": 100}}}}
            assert client.post("/collections/old/points/count", json=wanted).json()["result"] == {"count": 100}
            written = client.put("/collections/empty/points", json={"points": [{"id": 1, "vector": [1, 2, 3]}]})
            assert written.status_code == 200
    assert columns.exists()
    with contextlib.closing(sqlite3.connect(settings.data_dir / "catalogue.db")) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (2,)


def test_s35_a_newer_catalogue_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "catalogue.db"
    Catalogue(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(UnsupportedFormatError, match="format version 3, this program reads up to 2"):
        Catalogue(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [file.name for file in tmp_path.iterdir()] == ["catalogue.db"]


def test_s35_an_upgrade_that_is_killed_leaves_the_older_version(tmp_path, monkeypatch):
    path = tmp_path / "catalogue.db"
    Catalogue(path).close()
    as_version_1(path)
    monkeypatch.setattr(
        "service.catalogue._UPGRADES", {1: "ALTER TABLE collections ADD COLUMN folded INTEGER; nonsense"}
    )
    with pytest.raises(sqlite3.OperationalError):
        Catalogue(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(collections)")]
    assert "folded" not in columns
    monkeypatch.undo()
    Catalogue(path).close()
