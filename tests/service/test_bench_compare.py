"""Recall in one arithmetic for all, and comparisons at equal recall."""

from __future__ import annotations

import numpy as np
import pytest

from index.options import Metric
from service.bench.compare import bracket, compare, front, interpolate
from service.bench.measure import Effort
from service.bench.results import Contest, Point
from service.bench.truth import Truth


def point(recall, qps, pages=10.0, **setting):
    return Point(
        setting=setting or {"ef": recall},
        recall=recall,
        low=recall,
        high=recall,
        qps={1: qps / 2, 2: qps},
        p50_us=1.0,
        p95_us=1.0,
        p99_us=1.0,
        pages=pages,
        pages_device=pages,
        bytes_device=None if pages is None else pages * 4096,
        rows_scored=None,
        cpu_us=1e6 / qps,
    )


class Side:
    """An opened contender whose throughput is known; notes the turns."""

    def __init__(self, name, points, turns):
        self.contest, self.turns = Contest(name=name, label="", on_disk=True, points=points), turns

    def batch(self, setting, threads, seconds):
        self.turns.append((self.contest.name, threads))
        return {"qps": next(p.qps[threads] for p in self.contest.points if p.setting == setting)}


def by_qps(p):
    return p.best_qps


def test_front_leaves_out_what_is_beaten():
    points = [point(0.9, 100), point(0.95, 120), point(0.97, 80), point(0.96, 70)]
    assert [p.recall for p in front(points, by_qps)] == [0.95, 0.97]


def test_bracket():
    points = [point(0.9, 100), point(0.95, 80), point(0.99, 50)]
    assert [p.recall for p in bracket(points, 0.97)] == [0.95, 0.99]
    assert [p.recall for p in bracket(points, 0.95)] == [0.95]
    assert [p.recall for p in bracket(points, 0.8)] == [0.9]
    assert bracket(points, 0.995) == []


def test_interpolation_is_straight_in_orders_of_magnitude():
    assert interpolate(0.99, [(0.9, 100.0), (0.999, 1.0)]) == pytest.approx(10.0)
    assert interpolate(0.95, [(0.9, 0.0), (0.975, 8.0)]) == pytest.approx(4.0)
    assert interpolate(0.95, [(0.97, 7.0)]) == 7.0


def test_comparison_takes_turns_and_medians():
    turns = []
    ours = Side("fullview", [point(0.95, 400, 10.0), point(0.99, 200, 12.0)], turns)
    theirs = Side("diskann", [point(0.95, 100, 40.0)], turns)
    found = compare(ours, theirs, 0.95, Effort(threads=(1, 2), repeat=3))
    assert found.ratio == {1: 4.0, 2: 4.0} and found.ratio_range[2] == (4.0, 4.0)
    assert found.pages_ratio == 0.25 and found.ours_qps[2] == 400
    assert turns[:4] == [("fullview", 1), ("diskann", 1), ("fullview", 2), ("diskann", 2)] and len(turns) == 12


def test_comparison_beyond_what_was_reached_says_so():
    ours, theirs = Side("fullview", [point(0.99, 200)], []), Side("diskann", [point(0.9, 100)], [])
    found = compare(ours, theirs, 0.95, Effort(threads=(1,)))
    assert "diskann reached recall 0.9000 at most" in found.why_not and not found.ratio


def test_comparison_with_a_peer_that_reads_nothing():
    ours, theirs = Side("fullview", [point(0.95, 200)], []), Side("hnswlib", [point(0.95, 100, 0.0)], [])
    assert compare(ours, theirs, 0.95, Effort(threads=(2,))).pages_ratio is None


@pytest.mark.parametrize("metric", list(Metric))
def test_recall_counts_equally_good_rows_and_no_row_twice(metric, tmp_path):
    base = np.eye(6, dtype=np.float32)
    base[5] = base[1]
    np.save(tmp_path / "base.npy", base)
    queries = np.array([[1.0, 0.5, 0, 0, 0, 0]], np.float32)
    truth = Truth(tmp_path / "base.npy", queries, metric, np.array([[0, 1]]))
    assert truth.recall(np.array([[0, 5]])).mean == 1.0
    assert truth.recall(np.array([[0, 0]])).mean == 0.5
    assert truth.recall(np.array([[3, -1]])).mean == 0.0
    assert truth.agreement(np.array([[1, 0, 4]])) == 1.0
