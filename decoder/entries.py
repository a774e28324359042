"""Where a walk begins: the tokens that win most often in the part of the space where the state lies.

Entries.of_calibration   clusters of calibration states, each with its most frequent best tokens
Entries.of_rows          without calibration: the rows that win most easily, one place for all states

Invariant: each row of the table holds distinct tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEADING = 128
"""Coordinates in which clusters are told apart: they carry most of a score."""
ROUNDS = 12
OF_EACH_STATE = 4
"""Best tokens of a calibration state that count for its cluster."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Entries:
    """centroids float32 (c, leading); halves float32 (c,): half of their squared lengths; table int32 (c, e): token ids."""

    centroids: Floats
    halves: Floats
    table: NDArray[np.int32]

    @staticmethod
    def of(centroids: Floats, table: NDArray[np.int32]) -> Entries:
        """From arrays."""
        return Entries(centroids, _halves(centroids), table)

    @staticmethod
    def of_calibration(
        coordinates: Floats,
        answers: NDArray[np.int32],
        vocab_size: int,
        *,
        clusters: int,
        rows: int,
        seed: int,
        check: Callable[[], None],
    ) -> Entries:
        """coordinates float32 (n, width) of calibration states in the frame, answers int32 (n, k): their best tokens."""
        points = np.ascontiguousarray(coordinates[:, :LEADING])
        centroids, nearest = _cluster(points, min(clusters, len(points)), seed, check)
        everywhere = _most_frequent(answers[:, 0], vocab_size)
        width = min(rows, vocab_size)
        table = np.empty((len(centroids), width), np.int32)
        for c in range(len(centroids)):
            own = _most_frequent(answers[nearest == c, :OF_EACH_STATE].ravel(), vocab_size)
            table[c] = _distinct([own, everywhere, np.arange(vocab_size, dtype=np.int32)], width)
        return Entries(centroids, _halves(centroids), table)

    @staticmethod
    def of_rows(order: NDArray[np.int32], spread: NDArray[np.int32], *, leading: int, rows: int) -> Entries:
        """One place: half of the rows that come first in `order` (int32, the likeliest to win first), half of `spread`."""
        half = max(1, rows // 2)
        table = _distinct([order[:half], spread[: rows - half], order], min(rows, len(order)))[None, :]
        centroids = np.zeros((1, min(leading, LEADING)), np.float32)
        return Entries(centroids, _halves(centroids), table)


def _halves(centroids: Floats) -> Floats:
    halves: Floats = (0.5 * np.einsum("ij,ij->i", centroids, centroids)).astype(np.float32)
    return halves


def _most_frequent(tokens: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    """Tokens that occur, the most frequent first, of equals the lower id."""
    counts = np.bincount(tokens, minlength=vocab_size)
    order = np.argsort(-counts, kind="stable")
    return order[: np.count_nonzero(counts)].astype(np.int32)


def _distinct(sources: list[NDArray[np.int32]], width: int) -> NDArray[np.int32]:
    """The first `width` different tokens of the sources, one after the other."""
    chosen: list[int] = []
    there: set[int] = set()
    for source in sources:
        for token in source[: 2 * width].tolist():
            if len(chosen) == width:
                break
            if token not in there:
                there.add(token)
                chosen.append(token)
    return np.array(chosen, np.int32)


def _cluster(points: Floats, count: int, seed: int, check: Callable[[], None]) -> tuple[Floats, NDArray[np.intp]]:
    """Lloyd's k-means: centroids float32 (count, leading), each point's nearest one. An empty cluster takes a far point."""
    generator = np.random.default_rng(seed)
    centroids = points[generator.choice(len(points), count, replace=False)].copy()
    nearest = np.zeros(len(points), np.intp)
    for _ in range(ROUNDS):
        check()
        scores = points @ centroids.T - _halves(centroids)
        nearest = scores.argmax(axis=1)
        sums = np.zeros((count, points.shape[1]))
        np.add.at(sums, nearest, points)
        sizes = np.bincount(nearest, minlength=count)
        filled = sizes > 0
        centroids[filled] = (sums[filled] / sizes[filled, None]).astype(np.float32)
        if not filled.all():
            far = np.argsort(scores.max(axis=1), kind="stable")[: np.count_nonzero(~filled)]
            centroids[~filled] = points[far]
    nearest = (points @ centroids.T - _halves(centroids)).argmax(axis=1)
    return centroids, nearest
