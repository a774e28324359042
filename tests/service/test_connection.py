"""The client of our own adapters: what it sends is split by bytes, and errors keep the server's sentence."""

from __future__ import annotations

import json

import pytest
from live import live_server

from service.integrations.connection import Connection, RequestFailedError, pieces


def test_pieces_keep_order_and_size():
    points = [{"id": i, "text": "x" * (i % 50)} for i in range(1000)]
    split = list(pieces(points, body_bytes=500))
    assert [point for piece in split for point in piece] == points
    assert all(len(json.dumps(piece)) <= 500 for piece in split) and len(split) > 50
    assert list(pieces([{"text": "x" * 900}, {"id": 1}], body_bytes=100)) == [[{"text": "x" * 900}], [{"id": 1}]]
    assert list(pieces([])) == []


def test_s45_points_of_many_megabytes_all_arrive(tmp_path):
    """1,500 points of 33 KB, which one body may not hold."""
    with live_server(tmp_path / "data") as server:
        connection = Connection(server.url)
        connection.request("PUT", "collections", "c", body={"vectors": {"size": 2, "distance": "Dot"}})
        points = [{"id": i, "vector": [i, 1], "payload": {"text": "x" * 33_000}} for i in range(1500)]
        with pytest.raises(RequestFailedError, match="batch") as refused:
            connection.request("PUT", "collections", "c", "points", body={"points": points})
        assert refused.value.status == 413
        split = list(pieces(points))
        assert len(split) >= 4
        for piece in split:
            connection.request("PUT", "collections", "c", "points", body={"points": piece})
        assert connection.request("POST", "collections", "c", "points", "count", body={}) == {"count": 1500}
