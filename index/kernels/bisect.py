"""Recursive bisection of rows into equal, near halves: the order in which vectors lie on disk.

Each half is cut at the median along the line between two means of a sample, at a multiple of a page's rows, until a
piece fits a page. Halves stay equal however the rows are spread, so pages stay full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

SAMPLE = 256
ROUNDS = 4


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def _direction(codes: Any, scales: Any, rows: Any, seed: Any, line: Any) -> None:
    """line = difference of two means of a sample of rows. line: float32 (width,), overwritten."""
    width = codes.shape[1]
    m = min(SAMPLE, rows.shape[0])
    step = rows.shape[0] // m
    one = rows[(seed % m) * step]
    two = rows[((seed // 7 + m // 2) % m) * step]
    if one == two:
        two = rows[((seed % m + 1) % m) * step]
    for t in range(width):
        line[t] = scales[one] * np.float32(codes[one, t]) - scales[two] * np.float32(codes[two, t])
    values = np.empty(m, np.float32)
    for _ in range(ROUNDS):
        for s in range(m):
            i = rows[s * step]
            total = np.float32(0.0)
            for t in range(width):
                total += np.float32(codes[i, t]) * line[t]
            values[s] = total * scales[i]
        # Halves of the sample, not nearest means: the cut that follows is at the median too.
        middle = np.median(values)
        line[:] = np.float32(0.0)
        for s in range(m):
            i = rows[s * step]
            sign = np.float32(1.0) if values[s] > middle else np.float32(-1.0)
            for t in range(width):
                line[t] += sign * scales[i] * np.float32(codes[i, t])


@njit(cache=True, nogil=True)
def bisect(codes: Any, scales: Any, order: Any, page_rows: Any, seed: Any, signal: Any) -> None:
    """Rearrange `order` (int32, row numbers) in place. codes: int8 (n, width); scales: float32 (n,).

    signal: int64 (2,): another thread sets the first to stop it between cuts; the second counts the rows placed.
    """
    n = order.shape[0]
    line = np.empty(codes.shape[1], np.float32)
    starts = np.empty(128, np.int64)
    ends = np.empty(128, np.int64)
    starts[0] = 0
    ends[0] = n
    depth = 1
    while depth > 0:
        if signal[0] != 0:
            return
        depth -= 1
        a = starts[depth]
        b = ends[depth]
        if b - a <= page_rows:
            signal[1] += b - a
            continue
        rows = order[a:b].copy()
        _direction(codes, scales, rows, seed + a, line)
        values = np.empty(b - a, np.float32)
        for s in range(b - a):
            i = rows[s]
            total = np.float32(0.0)
            for t in range(codes.shape[1]):
                total += np.float32(codes[i, t]) * line[t]
            values[s] = total * scales[i]
        by_value = np.argsort(values, kind="mergesort")
        for s in range(b - a):
            order[a + s] = rows[by_value[s]]
        pages = (b - a + page_rows - 1) // page_rows
        cut = a + (pages // 2) * page_rows
        starts[depth] = cut
        ends[depth] = b
        starts[depth + 1] = a
        ends[depth + 1] = cut
        depth += 2
