"""Fixtures for tests of the service: an application and a client of it; over fake indexes where a test needs hooks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_index import PAYLOAD, VECTORS, open_fake, put_fake
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    """A running application."""
    with TestClient(create_app(settings)) as running:
        yield running


@pytest.fixture
def engine(client: TestClient) -> Any:
    return client.app.state.parts.engine


@pytest.fixture
def fake_client(settings: Settings) -> Iterator[TestClient]:
    """A running application over fake indexes, with the collection `three` in `fake_client.three`."""
    with TestClient(create_app(settings, opener=open_fake)) as running:
        running.engine = running.app.state.parts.engine
        running.three = put_fake(running.engine, "three", VECTORS, ids=[1, 2, 3], payload=PAYLOAD)
        yield running


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 MB for a data folder."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small file system is refused: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)
