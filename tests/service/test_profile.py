"""The profile names the operating point that a search used, with what was measured of it."""

from __future__ import annotations

import numpy as np
import pytest
from real_index import put_index

ROWS = 3000


@pytest.fixture(params=["graph", "ivf", "flat"])
def built(request, engine):
    if request.param == "ivf":
        pytest.importorskip("faiss", reason="building an ivf preview needs faiss (extra cpu)")
    vectors = np.random.default_rng(3).standard_normal((ROWS, 16)).astype(np.float32)
    return request.param, put_index(engine, "some", vectors, preview=request.param, bits=2), vectors


def point_of(client, vectors, limit=10, **params):
    body = {"query": vectors[5].tolist(), "limit": limit, "params": params, "profile": True}
    answer = client.post("/collections/some/points/query", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]["profile"]["operating_point"]


def test_the_point_is_the_one_that_the_index_chose(client, built):
    preview, index, vectors = built
    effort = {"graph": "beam", "ivf": "probes", "flat": "kept"}[preview]
    promised = index.stats()["promise"]["recall"]
    for recall in (None, 0.5, 0.9, 1.0):
        chosen = index.point(10, recall)
        shown = point_of(client, vectors, **({} if recall is None else {"recall": recall}))
        assert shown["preview"] == preview
        assert shown["exact"] is False
        assert (shown[effort], shown["z"]) == (chosen.effort, chosen.rule.z)
        assert (shown["recall"], shown["low"], shown["high"]) == (chosen.recall, chosen.low, chosen.high)
        assert (shown["pages"], shown["measured_k"]) == (chosen.pages, 10)
        asked = promised if recall is None else recall
        assert (shown["recall_asked"], shown["reached"]) == (asked, chosen.low >= asked)
    assert point_of(client, vectors, recall=0.5)["reached"] is True
    # A sample never proves that nothing is ever missed.
    assert point_of(client, vectors, recall=1.0)["reached"] is False


def test_what_the_query_brought_is_shown_as_not_measured(client, built):
    preview, _, vectors = built
    name, shown_as = {"graph": ("beam", "beam"), "ivf": ("probes", "probes"), "flat": ("beam", "kept")}[preview]
    shown = point_of(client, vectors, **{name: 7})
    assert shown[shown_as] == 7
    assert shown["recall"] is shown["reached"] is None
    shown = point_of(client, vectors, rerank=30)
    assert shown["depth"] == 30
    assert "z" not in shown


def test_scans(client, built):
    _, _, vectors = built
    for shown in (point_of(client, vectors, exact=True), point_of(client, vectors, limit=1500)):
        assert shown["exact"] is True
        assert (shown["recall"], shown["reached"]) == (1.0, True)
