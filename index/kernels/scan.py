"""All codes, scored one after the other, and the best kept: the preview of small collections."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.dots import dot_code


@njit(cache=True, nogil=True)
def sift_down(distances: Any, rows: Any, at: Any, count: Any) -> None:
    """Restore a heap whose root is the worst: the largest distance, of equals the largest row."""
    while True:
        child = 2 * at + 1
        if child >= count:
            return
        other = child + 1
        if other < count and (
            distances[other] > distances[child] or (distances[other] == distances[child] and rows[other] > rows[child])
        ):
            child = other
        if distances[child] < distances[at] or (distances[child] == distances[at] and rows[child] <= rows[at]):
            return
        distances[at], distances[child] = distances[child], distances[at]
        rows[at], rows[child] = rows[child], rows[at]
        at = child


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def scan_queries(
    codes: Any, scalars: Any, bits: Any, queries: Any, query_scales: Any, query_sums: Any, rows: Any, distances: Any
) -> None:
    """For each query the nearest rows by their codes, nearest first, of equals the lower row.

    codes: uint8 (n, stride); scalars: float32 (n, 2); queries: int8 (m, 8 / bits, stride); rows: int32 (m, keep) and
    distances: float32 (m, keep) with keep <= n, filled in full.
    """
    keep = rows.shape[1]
    middle = np.float32(((1 << bits) - 1) * 0.5)
    for q in range(queries.shape[0]):
        near = distances[q]
        who = rows[q]
        twice = np.float32(2.0) * query_scales[q]
        offset = middle * query_sums[q]
        for i in range(codes.shape[0]):
            value = scalars[i, 0] - twice * scalars[i, 1] * (np.float32(dot_code(codes, i, queries[q], bits)) - offset)
            if i < keep:
                near[i] = value
                who[i] = i
                if i == keep - 1:
                    for at in range(keep // 2 - 1, -1, -1):
                        sift_down(near, who, at, keep)
            elif value < near[0]:
                near[0] = value
                who[0] = i
                sift_down(near, who, 0, keep)
        for count in range(keep - 1, 0, -1):
            near[0], near[count] = near[count], near[0]
            who[0], who[count] = who[count], who[0]
            sift_down(near, who, 0, count)
