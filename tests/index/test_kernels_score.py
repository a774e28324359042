"""Contracts of exact scores, over the slow twin and the compiled kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from index.kernels import intrinsics, reference, score

METRICS = {"cosine": score.COSINE, "dot": score.DOT, "l2": score.L2}
DTYPES = ("float32", "float16", "int8", "uint8")


def vectors_of(dtype: str, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    return generator.normal(size=shape).astype(dtype)


def flat_of(vectors: np.ndarray) -> np.ndarray:
    flat = vectors.reshape(-1)
    return flat.view(np.uint16) if flat.dtype == np.float16 else flat


class ScorePairsContract:
    pairs: ClassVar[Callable[..., None]]
    lengths: ClassVar[Callable[..., np.ndarray]]

    def scored(self, queries, vectors, metric, starts=None):
        """Scores of every query with every vector: float32 (m, n)."""
        m, n = len(queries), len(vectors)
        query_of = np.repeat(np.arange(m), n)
        starts = np.tile(np.arange(n) * vectors.shape[1], m) if starts is None else starts
        out = np.full(m * n, np.nan, np.float32)
        self.pairs(queries, self.lengths(queries), flat_of(vectors), query_of, starts, METRICS[metric], out)
        return out.reshape(m, n)

    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("dim", [1, 3, 16, 101])
    def test_equals_float64(self, metric, dtype, dim):
        vectors = vectors_of(dtype, (20, dim))
        queries = vectors_of(dtype, (4, dim), seed=1).astype(np.float32)
        x, q = vectors.astype(np.float64), queries.astype(np.float64)
        if metric == "l2":
            expected = -np.linalg.norm(q[:, None] - x[None], axis=2)
        else:
            expected = q @ x.T
            if metric == "cosine":
                both = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(x, axis=1)
                expected = np.divide(expected, both, out=np.zeros_like(expected), where=both > 0)
        found = self.scored(queries, vectors, metric)
        size = np.abs(q) @ np.abs(x).T if metric == "dot" else 1.0
        assert (np.abs(found - expected) <= 1e-6 * (size + np.abs(expected)) * np.sqrt(dim)).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("dim", [1, 2, 7, 128, 129, 384])
    def test_s24_cosine_with_itself_is_exactly_one(self, dtype, dim):
        vectors = vectors_of(dtype, (50, dim), seed=2)
        vectors[~vectors.any(axis=1)] = 1
        queries = vectors.astype(np.float32)
        assert (np.diagonal(self.scored(queries, vectors, "cosine")) == 1.0).all()

    @pytest.mark.parametrize("size", [1e-6, 0.1, 1.0, 3.7, 1e6])
    @pytest.mark.parametrize("dim", [1, 2, 5, 13, 40])
    def test_s24_cosine_stays_within_one(self, dim, size):
        vectors = (np.random.default_rng(dim).normal(size=(30, dim)) * size).astype(np.float32)
        found = self.scored(np.concatenate([vectors, -vectors]), vectors, "cosine")
        assert (np.abs(found) <= 1.0).all()

    @pytest.mark.parametrize("metric", METRICS)
    def test_zero_vectors_are_never_nan(self, metric):
        vectors = np.zeros((2, 5), np.float32)
        vectors[1, 0] = 2.0
        found = self.scored(np.array([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0]], np.float32), vectors, metric)
        expected = {"cosine": [[0, 0], [0, 1]], "dot": [[0, 0], [0, 2]], "l2": [[0, -2], [-1, -1]]}[metric]
        np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize("metric", METRICS)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_s21_a_pair_alone_has_the_same_bits(self, metric, dtype):
        vectors = vectors_of(dtype, (9, 77), seed=3)
        queries = vectors_of("float32", (5, 77), seed=4)
        together = self.scored(queries, vectors, metric)
        for q in range(5):
            np.testing.assert_array_equal(self.scored(queries[q : q + 1], vectors, metric)[0], together[q])
            one = self.scored(queries[q : q + 1], vectors[4:5], metric)
            assert one[0, 0] == together[q, 4]

    def test_vectors_may_begin_anywhere_in_the_buffer(self):
        buffer = np.random.default_rng(5).normal(size=200).astype(np.float32)
        queries = np.ones((1, 7), np.float32)
        starts = np.array([150, 3, 0, 193])
        out = np.empty(4, np.float32)
        self.pairs(queries, self.lengths(queries), buffer, np.zeros(4, np.int64), starts, score.DOT, out)
        np.testing.assert_allclose(out, [buffer[s : s + 7].sum() for s in starts], rtol=1e-5)


class TestScorePairsReference(ScorePairsContract):
    pairs = staticmethod(reference.score_pairs)
    lengths = staticmethod(reference.squared_lengths)


class TestScorePairsNumba(ScorePairsContract):
    pairs = staticmethod(score.score_pairs)
    lengths = staticmethod(score.squared_lengths)


class HalvesContract:
    widen: ClassVar[Callable[..., None]]

    def test_every_finite_half(self):
        bits = np.arange(1 << 16, dtype=np.uint16)
        bits = bits[np.isfinite(bits.view(np.float16))]
        out = np.empty(len(bits), np.float32)
        self.widen(bits, out)
        np.testing.assert_array_equal(out, bits.view(np.float16).astype(np.float32))


class TestHalvesReference(HalvesContract):
    widen = staticmethod(reference.halves_to_float32)


class TestHalvesNumba(HalvesContract):
    widen = staticmethod(intrinsics.halves_to_float32)
