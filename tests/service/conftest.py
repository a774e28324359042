"""Fixtures for tests of the service: an application over fake indexes, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_index import open_fake, put_fake
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data")


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    """An application with fake indexes, running."""
    with TestClient(create_app(settings, opener=open_fake)) as running:
        yield running


@pytest.fixture
def engine(client: TestClient) -> Any:
    return client.app.state.parts.engine


@pytest.fixture
def three(engine: Any) -> Any:
    """Collection `three`: cosine, ids 1, 2, 3 with payload."""
    vectors = [[1, 0, 0], [0, 1, 0], [0.9, 0.1, 0]]
    payload = [{"n": 1, "a": {"b": 2, "c": 3}}, {"n": 2}, None]
    return put_fake(engine, "three", vectors, ids=[1, 2, 3], payload=payload)
