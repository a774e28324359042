"""Exact scores from stored vectors. The only place where a score that leaves the package is computed.

One compiled function serves the rerank and the oracle, so the same pair has the same bits on both paths, alone or in a
batch. Sums run in float32 in one order fixed at compile time; <x, x> is summed in the very order of <q, x>, so a vector
compared with itself has cosine exactly 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.intrinsics import as_float32

COSINE, DOT, L2 = 0, 1, 2


@njit(cache=True, nogil=True, fastmath=True)
def _dot_and_length(query: Any, x: Any) -> Any:
    along = np.float32(0.0)
    length = np.float32(0.0)
    for t in range(query.shape[0]):
        along += query[t] * x[t]
        length += x[t] * x[t]
    return along, length


@njit(cache=True, nogil=True, fastmath=True)
def _squared_distance(query: Any, x: Any) -> Any:
    total = np.float32(0.0)
    for t in range(query.shape[0]):
        difference = query[t] - x[t]
        total += difference * difference
    return total


@njit(cache=True, nogil=True)
def score_pairs(queries: Any, query_lengths: Any, flat: Any, query_of: Any, starts: Any, metric: Any, out: Any) -> None:
    """out[j] = score of query query_of[j] and the vector at flat[starts[j] :]. Larger is nearer: l2 is negative.

    queries: float32 (m, dim); query_lengths: float32 (m,), |q|^2 as `squared_lengths` sums it;
    flat: float32, int8, uint8, or uint16 (the bits of float16) (any,); query_of, starts: int64 (p,); out: float32 (p,).
    cosine is clamped to [-1, 1], 0 for a zero vector; l2 is minus the distance.
    """
    dim = queries.shape[1]
    x = np.empty(dim, np.float32)
    for j in range(starts.shape[0]):
        # Widened first, so that one loop over float32 serves every dtype: the order of its sum is the same for all.
        # A slice, since `flat[start + t]` is tested for being negative at each step, and that costs ten times as much.
        # Once for all queries in a row that want the same vector.
        if j == 0 or starts[j] != starts[j - 1]:
            stored = flat[starts[j] : starts[j] + dim]
            for t in range(dim):
                x[t] = as_float32(stored[t])
        q = query_of[j]
        if metric == L2:
            out[j] = -np.sqrt(_squared_distance(queries[q], x))
        else:
            along, length = _dot_and_length(queries[q], x)
            if metric == COSINE:
                if length > 0 and query_lengths[q] > 0:
                    value = np.float64(along) / np.sqrt(np.float64(length) * np.float64(query_lengths[q]))
                    along = np.float32(min(max(value, -1.0), 1.0))
                else:
                    along = np.float32(0.0)
            out[j] = along


def squared_lengths(queries: Any) -> Any:
    """|q|^2 of each query, summed exactly as `score_pairs` sums <q, x>. queries: float32 (m, dim) -> float32 (m,)."""
    out = np.empty(len(queries), np.float32)
    own = np.arange(len(queries), dtype=np.int64)
    score_pairs(queries, out, queries.reshape(-1), own, own * queries.shape[1], DOT, out)
    return out
