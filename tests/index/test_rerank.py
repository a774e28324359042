"""Which pages are read for which candidates, and the exact scores of what is on them."""

from __future__ import annotations

import numpy as np
import pytest

from index.fullview import PageLayout
from index.kernels import score
from index.operating_points import READ_ALL, FixedDepth, StopByError
from index.preview import Candidates, Groups
from index.rerank import BestHits, Places, score_reads

TEN_A_PAGE = PageLayout(1000, 100, np.dtype(np.float32))
NO_GROUPS = Groups(np.zeros(0, np.int32), np.zeros(0, np.int64))


def candidates(nodes, distances) -> Candidates:
    nodes = np.asarray(nodes, np.int32)
    full = np.full(len(nodes), nodes.shape[1], np.int64)
    return Candidates(nodes, np.asarray(distances, np.float32), full, full * 0, full * 0)


def plan_of(rule, *, layout=TEN_A_PAGE, groups=NO_GROUPS, k=2, reach=1.0):
    found = candidates([[40, 41, 90, 7, 300]], [[1.0, 2.0, 2.5, 4.0, 9.0]])
    scales = np.ones((1000, 2), np.float32)
    return Places(layout, groups).plan_reads(found, scales, np.array([reach], np.float32), k=k, rule=rule)


def test_rules():
    assert TEN_A_PAGE.vectors_per_page == 10
    assert plan_of(StopByError(z=0.0)).places.tolist() == [4]
    assert plan_of(StopByError(z=0.5)).places.tolist() == [4, 9]
    assert plan_of(StopByError(z=2.0)).places.tolist() == [0, 4, 9]
    assert plan_of(StopByError(z=100.0)).places.tolist() == [0, 4, 9, 30]
    assert plan_of(FixedDepth(depth=4)).places.tolist() == [0, 4, 9]
    assert plan_of(FixedDepth(depth=99)).chosen.tolist() == [5]


def test_reading_all_does_not_hang_on_an_error_that_is_zero():
    assert plan_of(StopByError(z=READ_ALL), reach=0.0).chosen.tolist() == [5]
    assert plan_of(StopByError(z=100.0), reach=0.0).chosen.tolist() == [2]


def test_pages_of_large_vectors():
    layout = PageLayout(1000, 3000, np.dtype(np.float32))
    plan = plan_of(FixedDepth(depth=2), layout=layout)
    assert layout.pages_per_vector == 3
    assert plan.pages.tolist() == [121, 122, 123, 124, 125, 126]


def test_copies_of_equal_vectors_are_read_as_far_as_k():
    groups = Groups.of_sizes(np.where(np.arange(400) == 41, 35, 1))
    assert plan_of(FixedDepth(depth=2), groups=groups, k=2).places.tolist() == [4]
    assert plan_of(FixedDepth(depth=2), groups=groups, k=25).places.tolist() == [4, 5, 6]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_every_row_on_a_page_is_scored(dtype):
    layout = PageLayout(25, 20, np.dtype(dtype))
    per_page = layout.vectors_per_page
    rows = np.random.default_rng(0).integers(0, 50, (25, 20)).astype(dtype)
    page = np.zeros((1, 4096), np.uint8)
    page[0, : 25 * layout.vector_bytes] = rows.view(np.uint8).reshape(-1)
    plan = Places(layout, NO_GROUPS).plan_reads(
        candidates([[3, 5]], [[0.0, 1.0]]),
        np.ones((25, 2), np.float32),
        np.ones(1, np.float32),
        k=1,
        rule=FixedDepth(depth=2),
    )
    assert per_page >= 25 and plan.pages.tolist() == [1]
    queries = np.ones((1, 20), np.float32)
    best = BestHits.empty(1, 30)
    ids = np.arange(100, 125, dtype=np.uint64)
    count = score_reads(queries, score.squared_lengths(queries), score.DOT, layout, plan, page, ids, best)
    best.sort()
    assert count == 25 and best.counts.tolist() == [25]
    sums = rows.astype(np.int64).sum(axis=1)
    expected = sorted(zip((-sums).tolist(), ids.tolist()))
    assert best.codes[0, :25].tolist() == [id for _, id in expected]
    assert best.scores[0, :25].tolist() == [float(-s) for s, _ in expected]
