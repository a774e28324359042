"""Fixtures for tests with other people's clients: one live server for all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# live.py stands beside the tests of the service; run alone, these tests would not find it.
sys.path.append(str(Path(__file__).parents[1] / "service"))

from live import LiveServer, live_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("ecosystem") / "data") as running:
        yield running
