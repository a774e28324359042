"""Bounds of exact scores from bytes: one pass over a quarter of what the vectors take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.vector_dots import code_dot_8

MIDDLE = 128
"""What is added to a signed level, so that codes are unsigned: see vector_dots.py."""


@njit(cache=True, nogil=True)
def bound_scores(
    codes: Any,
    scalars: Any,
    slots: Any,
    query: Any,
    query_scale: Any,
    query_length: Any,
    query_error: Any,
    factor: Any,
    low: Any,
    high: Any,
) -> None:
    """low[j] <= factor * <q, x> - scalars[i, 2] <= high[j] for row i = slots[j], whatever the rounding.

    codes: uint8 (n, width), width a multiple of 64; scalars: float32 (n, 4): scale, length of what the code leaves out,
    additive part, length of the row; slots: int64 (p,); query: int8 (width,), q = query_scale * query but for a rest of
    length query_error; query_length: |q|; low, high: float32 (p,).
    """
    width = codes.shape[1]
    total = np.int64(0)
    for t in range(width):
        total += query[t]
    offset = np.int64(128) * total
    at = codes.ctypes.data
    query_at = query.ctypes.data
    for j in range(slots.shape[0]):
        i = slots[j]
        dot = np.float32(np.int64(code_dot_8(at + i * width, query_at, width)) - offset)
        along = dot * scalars[i, 0] * query_scale
        length = scalars[i, 3]
        # Cauchy and Schwarz, for what the row's code leaves out and for what the query's does; then float32's rounding.
        error = query_length * scalars[i, 1] + query_error * (length + scalars[i, 1])
        error += np.float32(2e-5) * (query_length * length + abs(scalars[i, 2])) + np.float32(1e-30)
        middle = factor * along - scalars[i, 2]
        low[j] = middle - factor * error
        high[j] = middle + factor * error
