"""Maximal marginal relevance: of the nearest points, some that are near the query and far from each other.

Carbonell and Goldstein, "The use of MMR, diversity-based reranking", SIGIR 1998. Similarities as Qdrant takes them: the
inner product (of unit vectors under cosine), under l2 minus the squared distance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from index.options import Metric

if TYPE_CHECKING:
    from service.points.view import PointsView
    from service.query import Mmr


def diverse(
    view: PointsView, positions: NDArray[np.int64], query: NDArray[np.float32], mmr: Mmr, *, most: int
) -> NDArray[np.int64]:
    """Places (in `positions`, nearest first) of up to `most` points, in the order in which they are chosen."""
    if not len(positions):
        return np.zeros(0, np.int64)
    vectors = np.array([vector for vector in view.vectors_of(positions) if vector is not None], np.float64)
    relevance = _similarities(vectors, query.astype(np.float64), view.metric)
    chosen = [int(np.argmax(relevance))]
    nearest_chosen = _similarities(vectors, vectors[chosen[0]], view.metric)
    left = np.ones(len(positions), np.bool_)
    left[chosen[0]] = False
    while len(chosen) < most and left.any():
        worth = (1.0 - mmr.diversity) * relevance - mmr.diversity * nearest_chosen
        best = int(np.argmax(np.where(left, worth, -np.inf)))
        chosen.append(best)
        left[best] = False
        nearest_chosen = np.maximum(nearest_chosen, _similarities(vectors, vectors[best], view.metric))
    return np.array(chosen, np.int64)


def _similarities(vectors: NDArray[np.float64], other: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    if metric == Metric.L2:
        difference = vectors - other
        squares: NDArray[np.float64] = np.einsum("ij,ij->i", difference, difference)
        return -squares
    along: NDArray[np.float64] = vectors @ other
    if metric == Metric.COSINE:
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors) * float(other @ other))
        np.divide(along, lengths, out=along, where=lengths > 0)
    return along
