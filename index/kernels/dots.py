"""Integer dot products of one code with one int8 query: the innermost loops of walk and scan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, fastmath=True, inline="always")
def dot_int8(rows: Any, i: Any, query: Any) -> Any:
    """Sum over t of rows[i, t] * query[t]. rows: int8 (n, width); query: int8 (width,)."""
    total = np.int32(0)
    for t in range(query.shape[0]):
        total += np.int32(rows[i, t]) * np.int32(query[t])
    return total


@njit(cache=True, nogil=True, fastmath=True, inline="always")
def dot_code(codes: Any, i: Any, query: Any, bits: Any) -> Any:
    """Sum over dimensions of level * query. codes: uint8 (n, stride); query: int8 (8 / bits, stride).

    The query is two-dimensional because Numba takes `query[1, t]` for a possibly negative index, and the test for
    that keeps the loop from being vectorised (117 against 50 ns a row of a walk at width 384).
    """
    stride = codes.shape[1]
    total = np.int32(0)
    if bits == 4:
        for t in range(stride):
            byte = codes[i, t]
            total += np.int32(byte & 15) * np.int32(query[0, t]) + np.int32(byte >> 4) * np.int32(query[1, t])
    elif bits == 2:
        for t in range(stride):
            byte = codes[i, t]
            total += np.int32(byte & 3) * np.int32(query[0, t])
            total += np.int32((byte >> 2) & 3) * np.int32(query[1, t])
            total += np.int32((byte >> 4) & 3) * np.int32(query[2, t])
            total += np.int32(byte >> 6) * np.int32(query[3, t])
    elif bits == 8:
        for t in range(stride):
            total += np.int32(codes[i, t]) * np.int32(query[0, t])
    else:
        for p in range(8):
            for t in range(stride):
                total += np.int32((codes[i, t] >> np.uint8(p)) & 1) * np.int32(query[p, t])
    return total
