"""POST .../points/recall: what was sampled is said, own queries are taken, a row does not count as its own hit."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from real_index import put_index
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings

ROWS, DIM = 2000, 16


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with TestClient(create_app(Settings(data_dir=tmp_path_factory.mktemp("recall") / "data"))) as running:
        engine = running.app.state.parts.engine
        running.vectors = np.random.default_rng(11).standard_normal((ROWS, DIM)).astype(np.float32)
        running.index = put_index(engine, "some", running.vectors, metric="l2", preview="graph", bits=1)
        put_index(engine, "one", running.vectors[:1], metric="l2")
        yield running


def recall(client, collection="some", **body):
    return client.post(f"/collections/{collection}/points/recall", json=body)


def result(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    for word in words:
        assert word in answer.json()["status"]["error"]


def test_it_says_what_was_sampled(client):
    rows = result(recall(client, sample=50))
    assert (rows["sampled"], rows["queries"], rows["limit"], rows["compared"]) == ("stored rows", 50, 10, 9)
    assert "flatters" in rows["note"]
    own = result(recall(client, queries=client.vectors[:3].tolist()))
    assert (own["sampled"], own["queries"], own["compared"]) == ("queries", 3, 10)


@pytest.mark.parametrize("limit", [2, 5, 10])
def test_a_row_does_not_count_as_its_own_hit(client, limit):
    """By hand: the oracle's limit - 1 nearest others, and how many of them a weak search finds."""
    params = {"beam": 3, "rerank": 3}
    measured = result(recall(client, sample=200, limit=limit, params=params))["recall"]
    rows = np.sort(np.random.default_rng(0).choice(ROWS, size=200, replace=False))
    stored = client.index.vectors(np.arange(ROWS)).astype(np.float64)
    shares = []
    for row in rows:
        body = {"query": stored[row].tolist(), "limit": limit, "params": params}
        points = client.post("/collections/some/points/query", json=body).json()["result"]["points"]
        distances = np.sort(np.linalg.norm(stored - stored[row], axis=1))
        far = distances[limit - 1] * (1 + 1e-6)
        others = [point for point in points if point["score"] > 0]
        shares.append(sum(point["score"] <= far for point in others[: limit - 1]) / (limit - 1))
    assert measured == pytest.approx(np.mean(shares), abs=1e-9)
    assert measured < 1


def test_own_queries_in_both_forms(client):
    queries = np.random.default_rng(12).standard_normal((40, DIM)).astype("<f4")
    listed = result(recall(client, queries=queries.tolist(), params={"beam": 5}))
    encoded = result(
        recall(client, queries={"base64": base64.b64encode(queries.tobytes()).decode()}, params={"beam": 5})
    )
    assert listed == encoded
    assert listed["low"] <= listed["recall"] <= listed["high"]
    one_by_one = [{"base64": base64.b64encode(query.tobytes()).decode()} for query in queries]
    assert result(recall(client, queries=one_by_one, params={"beam": 5})) == listed


def test_small_limits_and_collections(client):
    assert result(recall(client, limit=1, params={"exact": True}))["recall"] == 1.0
    assert result(recall(client, limit=1))["compared"] == 1
    assert result(recall(client, "one"))["recall"] == 1.0
    assert result(recall(client, "one", queries=[[0.0] * DIM]))["recall"] == 1.0


def test_what_is_refused(client):
    refused(recall(client, sample=5, queries=[[0.0] * DIM]), 400, "sample and queries")
    refused(recall(client, queries=[]), 400, "$.queries", "empty")
    refused(recall(client, queries=[[1.0] * DIM, [1.0]]), 400, "$.queries[1]", "1 components", str(DIM))
    refused(recall(client, queries={"base64": "AAAA"}), 400, "$.queries.base64")
    refused(recall(client, queries=[["x"] * DIM]), 400, "$.queries[0][0]")
    refused(recall(client, sample=0), 422, "sample")
