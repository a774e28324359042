"""Maximal marginal relevance against its definition, written down naively."""

from __future__ import annotations

import numpy as np
import pytest

from index.options import Metric
from service.diverse import diverse
from service.query import Mmr


class Points:
    """As much of a PointsView as is looked at."""

    def __init__(self, vectors, metric):
        self.vectors, self.metric = vectors, metric

    def vectors_of(self, positions):
        return list(self.vectors[positions])


def similarity(a, b, metric):
    if metric == Metric.L2:
        return -np.square(a - b).sum()
    along = a @ b
    return along / np.sqrt((a @ a) * (b @ b)) if metric == Metric.COSINE else along


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("diversity", [0.0, 0.3, 1.0])
def test_each_next_point_is_the_best_by_the_definition(metric, diversity):
    random = np.random.default_rng(3)
    vectors, query = random.standard_normal((30, 5)), random.standard_normal(5)
    positions = np.array(sorted(range(30), key=lambda i: -similarity(vectors[i], query, metric)))
    mmr = Mmr(diversity=diversity, candidates=30)
    chosen = diverse(Points(vectors, metric), positions, query.astype(np.float32), mmr, most=8).tolist()
    query = query.astype(np.float32).astype(np.float64)
    mine: list[int] = []
    for _ in range(8):

        def worth(place):
            near = similarity(vectors[positions[place]], query, metric)
            if not mine:
                return near
            most = max(similarity(vectors[positions[place]], vectors[positions[other]], metric) for other in mine)
            return (1 - diversity) * near - diversity * most

        mine.append(max((p for p in range(30) if p not in mine), key=worth))
    assert chosen == mine


def test_nothing_to_choose_from():
    empty = Points(np.zeros((0, 2)), Metric.DOT)
    assert not len(diverse(empty, np.zeros(0, np.int64), np.ones(2, np.float32), Mmr(candidates=3), most=3))
