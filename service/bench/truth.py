"""Recall against the oracle, for every contender in the same arithmetic.

A row counts as found when its exact score, float64, is at least as good as the oracle's k-th: of equally good rows
either is right.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.exact import RecallEstimate, interval
from index.options import Metric

QUERIES_AT_ONCE = 256
RELATIVE_SLACK = 1e-6
"""float32 vectors of unit length are off by about 6e-8 each way."""


class Truth:
    """The oracle's answers. base: npy file float32 (n, dim), queries float32 (m, dim), both of unit length under cosine."""

    def __init__(self, base: Path, queries: NDArray[np.float32], metric: Metric, true_rows: NDArray[np.int64]) -> None:
        self._base: NDArray[np.float32] = np.load(base, mmap_mode="r")
        self._queries, self._metric = queries, metric
        self.rows = true_rows
        self._limits = self._scores(true_rows)[:, -1]

    def recall(self, found: NDArray[np.int64]) -> RecallEstimate:
        """Mean recall and its 95 % interval. found: int64 (m, k), -1 for nothing; a row named twice counts once."""
        k = self.rows.shape[1]
        scores = self._scores(found[:, :k])
        limits = self._limits[:, None]
        good = scores >= limits - RELATIVE_SLACK * np.maximum(1.0, np.abs(limits))
        ordered = np.sort(np.where(good, found[:, :k], -1), axis=1)
        distinct = (ordered >= 0) & np.concatenate(
            [np.ones((len(found), 1), np.bool_), ordered[:, 1:] != ordered[:, :-1]], axis=1
        )
        return interval(np.minimum(1.0, distinct.sum(axis=1) / k))

    def agreement(self, claimed: NDArray[np.int64]) -> float:
        """Recall of the neighbours that a set claims: 1.0 where both are right."""
        return self.recall(claimed[:, : self.rows.shape[1]]).mean

    def _scores(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Exact scores, larger is nearer; -inf where there is no row."""
        out = np.full(rows.shape, -np.inf)
        for start in range(0, len(rows), QUERIES_AT_ONCE):
            some = rows[start : start + QUERIES_AT_ONCE]
            vectors = self._base[np.clip(some, 0, len(self._base) - 1)].astype(np.float64)
            queries = self._queries[start : start + QUERIES_AT_ONCE, None, :].astype(np.float64)
            if self._metric is Metric.L2:
                scores = -((vectors - queries) ** 2).sum(axis=2)
            else:
                scores = (vectors * queries).sum(axis=2)
            inside = (some >= 0) & (some < len(self._base))
            out[start : start + QUERIES_AT_ONCE] = np.where(inside, scores, -np.inf)
        return out
