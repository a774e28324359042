"""Bytes bound each score: the k best are always among the candidates, and few others."""

from __future__ import annotations

import numpy as np
import pytest

from index.bounded import BoundedCodes, candidates
from index.kernels import bounds
from index.options import Metric


def scores(vectors: np.ndarray, query: np.ndarray, metric: Metric) -> np.ndarray:
    """In float64; larger is nearer."""
    x, q = vectors.astype(np.float64), query.astype(np.float64)
    if metric is Metric.L2:
        return -np.square(x - q).sum(axis=1)
    along = x @ q
    if metric is Metric.COSINE:
        lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(q)
        return np.divide(along, lengths, out=np.zeros_like(along), where=lengths > 0)
    return along


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("kind", ["normal", "lengths", "one large", "sparse", "equal", "tiny", "clustered"])
@pytest.mark.parametrize("dim", [1, 3, 64, 100])
def test_the_best_are_among_the_candidates(metric, kind, dim):
    random = np.random.default_rng(dim)
    vectors = random.standard_normal((2000, dim))
    if kind == "lengths":
        vectors *= 10.0 ** random.uniform(-4, 4, (2000, 1))
    elif kind == "one large":
        vectors[:, 0] *= 1000
    elif kind == "sparse":
        vectors *= random.random((2000, dim)) < 0.05
    elif kind == "equal":
        vectors[:1500] = vectors[0]
    elif kind == "tiny":
        vectors *= 1e-12
    elif kind == "clustered":
        vectors = vectors * 1e-3 + 1
    vectors = vectors.astype(np.float32)
    codes = BoundedCodes.of(vectors, metric)
    slots = np.flatnonzero(random.random(2000) < 0.7)
    for number in range(10):
        query = (vectors[number * 7] + random.standard_normal(dim) * vectors.std()).astype(np.float32)
        if metric is Metric.COSINE and not query.any():
            continue
        found = candidates(codes, slots, query, k=10, metric=metric)
        true = scores(vectors[slots], query, metric)
        worst = np.sort(true)[-10]
        # What float32 arithmetic may put among the best as well.
        slack = 1e-6 * (np.abs(true).max() + 1e-30)
        assert set(slots[true > worst + slack]) <= set(found.tolist())
        assert np.count_nonzero(true[np.isin(slots, found)] >= worst - slack) >= 10
        assert np.all(np.diff(found) > 0)


@pytest.mark.parametrize("metric", list(Metric))
def test_few_others_are_candidates(wordnet, metric):
    vectors = wordnet.vectors[:10_000].astype(np.float32)
    codes = BoundedCodes.of(vectors, metric)
    counts = [
        len(candidates(codes, np.arange(len(vectors)), query.astype(np.float32), k=10, metric=metric))
        for query in wordnet.queries[:50]
    ]
    assert np.mean(counts) < 100


def test_the_kernel_bounds_what_it_says():
    random = np.random.default_rng(5)
    vectors = random.standard_normal((300, 70)).astype(np.float32)
    query = random.standard_normal(70).astype(np.float32)
    rows = BoundedCodes.of(vectors, Metric.DOT)
    scale = np.abs(query).max() / 127
    levels = np.rint(query / scale).astype(np.int8)
    padded = np.zeros(rows.codes.shape[1], np.int8)
    padded[:70] = levels
    slots = np.arange(300)
    low, high = np.empty(300, np.float32), np.empty(300, np.float32)
    rest = float(np.linalg.norm(query - levels * scale))
    numbers = (np.float32(scale), np.float32(np.linalg.norm(query)), np.float32(rest), np.float32(1))
    bounds.bound_scores(rows.codes, rows.scalars, slots, padded, *numbers, low, high)
    true = scores(vectors, query, Metric.DOT)
    assert np.all(low <= true) and np.all(true <= high) and np.mean(high - low) < 0.05 * np.mean(np.abs(true)) * 10
    # The slow twin: the same numbers from floats.
    centred = (rows.codes[:, :70].astype(np.float64) - bounds.MIDDLE) * rows.scalars[:, :1]
    middle = centred @ (levels * scale)
    np.testing.assert_allclose((low + high) / 2, middle, rtol=1e-4, atol=1e-4)


def test_fewer_rows_than_hits_are_all_candidates():
    rows = BoundedCodes.of(np.ones((5, 3), np.float32), Metric.L2)
    slots = np.array([0, 2, 4])
    assert candidates(rows, slots, np.ones(3, np.float32), k=3, metric=Metric.L2).tolist() == [0, 2, 4]
