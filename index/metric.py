"""cosine, dot, l2: what a code stands for, what a score means, which way is better.

Inside the package a score is larger for nearer rows (l2: minus the distance); `outward` turns it into what users see.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index.errors import BadQueryError, OptionsError, ShapeMismatchError
from index.kernels import score
from index.options import Metric

KERNEL_METRIC = {Metric.COSINE: score.COSINE, Metric.DOT: score.DOT, Metric.L2: score.L2}


def metric_of(name: str) -> Metric:
    """The metric of that name."""
    try:
        return Metric(name)
    except ValueError:
        raise OptionsError(f"metric is {name!r}, needed one of {', '.join(Metric)}") from None


def outward(scores: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    """Scores as users see them: l2 becomes the true distance, the others stay."""
    return np.abs(scores) if metric is Metric.L2 else scores


def inward(threshold: float, metric: Metric) -> float:
    """A threshold given by a user, as an inner score."""
    return -threshold if metric is Metric.L2 else threshold


def as_queries(queries: object, *, dim: int, metric: Metric) -> NDArray[np.float32]:
    """Queries as a C-contiguous float32 (m, dim) array; one vector (dim,) is a batch of one. Refuses what has no answer."""
    try:
        array = np.asarray(queries)
        if array.dtype.kind not in "fiu":
            raise ShapeMismatchError(f"queries have dtype {array.dtype}, numbers were needed")
        with np.errstate(over="ignore"):
            # Writable and of the base class, whatever came (a memory map, a view of bytes): kernels are compiled for
            # that kind of array, and a query must not wait for another compilation.
            array = np.require(array, np.float32, ["C", "W", "E"])
    except (TypeError, ValueError) as error:
        raise ShapeMismatchError(f"queries are no array of numbers: {error}") from None
    if array.ndim == 1:
        array = array[None, :]
    if array.ndim != 2 or array.shape[1] != dim:
        raise ShapeMismatchError(
            f"queries have shape {array.shape}, this index holds vectors of dim {dim}: give (m, {dim}). "
            "Were they made by another encoder?"
        )
    finite = np.isfinite(array)
    if not finite.all():
        row, column = (int(x) for x in np.argwhere(~finite)[0])
        raise BadQueryError(f"query {row} is {array[row, column]} at column {column}; every component must be finite")
    array = _in_range(array, metric)
    if metric is Metric.COSINE:
        zero = ~array.any(axis=1)
        if zero.any():
            raise BadQueryError(
                f"query {int(np.argmax(zero))} is the zero vector: it has no direction, so no cosine. Leave it out."
            )
    return array


def _in_range(queries: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    """Queries whose squares float32 holds. Under cosine any length is as good: extreme ones are scaled by a power of two,
    which changes no digit of the direction."""
    largest = np.abs(queries).max(axis=1, initial=0.0)
    extreme = (largest > 1e15) | ((largest > 0) & (largest < 1e-15))
    if not extreme.any():
        return queries
    if metric is Metric.COSINE:
        exponents = np.frexp(largest[extreme])[1]
        queries = queries.copy()
        queries[extreme] = np.ldexp(queries[extreme], -exponents[:, None])
        return queries
    if metric is Metric.DOT and ((largest > 0) & (largest < 1e-25)).any():
        row = int(np.argmax((largest > 0) & (largest < 1e-25)))
        raise BadQueryError(
            f"query {row} holds nothing above {largest[row]:.3g}: its inner products vanish in float32. Scale it up."
        )
    length = np.sqrt(np.einsum("ij,ij->i", queries, queries, dtype=np.float64))
    if (length > 1e18).any():
        row = int(np.argmax(length))
        raise BadQueryError(
            f"query {row} has length {length[row]:.3g}, whose square float32 does not hold; at most 1e18 is needed. "
            "Scale queries and stored vectors alike."
        )
    return queries
