"""Operating points as measured: recall grows with effort, and what was measured is what a search does."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import recall_by_scores

from index import BuildOptions, SearchOptions, build, open_index
from index.operating_points import MEASURED_K, OperatingPoint, StopByError
from index.preview import Candidates
from index.tune import _without, points_of_few, useful


def point(k: int, low: float, rows: float) -> OperatingPoint:
    return OperatingPoint(
        k=k, effort=1, rule=StopByError(z=1.0), recall=low, low=low, high=low, pages=0.0, rows_scored=rows
    )


def test_only_points_that_some_request_may_choose_are_kept():
    points = [point(10, 0.9, 100), point(10, 0.8, 150), point(10, 0.95, 200), point(10, 0.95, 300), point(1, 0.5, 999)]
    assert [(p.k, p.low, p.rows_scored) for p in useful(points)] == [(1, 0.5, 999), (10, 0.9, 100), (10, 0.95, 200)]


def test_few_rows_have_one_exact_point_for_each_k():
    points = points_of_few(77, 5)
    assert [p.k for p in points] == list(MEASURED_K)
    assert {(p.recall, p.low, p.effort, p.pages) for p in points} == {(1.0, 1.0, 77, 5.0)}


def test_nodes_left_out_leave_the_order_of_the_others():
    nodes = np.array([[5, 2, 9, 1], [2, 9, 0, 0]], np.int32)
    distances = np.array([[1, 2, 3, 4], [1, 2, 0, 0]], np.float32)
    counts = np.array([4, 2], np.int64)
    found = _without(Candidates(nodes, distances, counts, counts, counts), np.array([2, 9], np.int32))
    assert found.counts.tolist() == [2, 0]
    assert found.nodes[0, :2].tolist() == [5, 1] and found.distances[0, :2].tolist() == [1, 4]


@pytest.mark.parametrize("preview", ["flat", "graph"])
def test_what_was_measured_is_what_searches_do(tmp_path, wordnet, preview):
    rows, queries = wordnet.vectors[:2500], wordnet.queries.astype(np.float32)
    # Measured with queries like those that come: the interval is of the same thing.
    report = build(
        rows, tmp_path / "out", options=BuildOptions(preview=preview, bits=2), queries=wordnet.sample_queries
    )
    with open_index(tmp_path / "out") as index:
        for k in MEASURED_K:
            points = [p for p in index.generation.points if p.k == k]
            assert points == sorted(points, key=lambda p: p.cost)
            assert [p.low for p in points] == sorted(p.low for p in points)
            chosen = points[len(points) // 2]
            hits = index.search(queries, k=k, options=SearchOptions(recall=chosen.low))
            assert index.point(k, chosen.low) == chosen
            assert hits.work.rows_scored.mean() == pytest.approx(chosen.rows_scored, rel=0.1)
            assert hits.work.pages_read.mean() == pytest.approx(chosen.pages, rel=0.15)
            assert recall_by_scores(hits, rows, queries, "cosine", k) == pytest.approx(chosen.recall, abs=0.03)
    assert report.measured_recall["low"] >= 0.95
