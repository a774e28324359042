"""Integer dot products of one code with one int8 query: the innermost loops of walk and scan.

Two habits make them several times faster. Each product and sum is made int32 again: Numba's int32 * int32 is int64, which
takes twice the time and keeps LLVM from using the processor's instructions for sums of products. And each width of codes
has a function of its own. Where the width is looked at for each row Numba counts references of the arrays once a row (17
ns), so `dot_range` looks at it once for many rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, fastmath=True, inline="always")
def dot_int8(rows: Any, i: Any, query: Any) -> Any:
    """Sum over t of rows[i, t] * query[t]. rows: int8 (n, width); query: int8 (width,)."""
    total = np.int32(0)
    for t in range(query.shape[0]):
        total = np.int32(total + np.int32(np.int32(rows[i, t]) * np.int32(query[t])))
    return total


@njit(cache=True, nogil=True, fastmath=True)
def dot_8_bits(codes: Any, i: Any, query: Any) -> Any:
    """`dot_code` for codes of 8 bits."""
    total = np.int32(0)
    for t in range(codes.shape[1]):
        total = np.int32(total + np.int32(np.int32(codes[i, t]) * np.int32(query[0, t])))
    return total


@njit(cache=True, nogil=True, fastmath=True)
def dot_4_bits(codes: Any, i: Any, query: Any) -> Any:
    """`dot_code` for codes of 4 bits."""
    total = np.int32(0)
    for t in range(codes.shape[1]):
        byte = codes[i, t]
        low = np.int32(np.int32(byte & 15) * np.int32(query[0, t]))
        high = np.int32(np.int32(byte >> 4) * np.int32(query[1, t]))
        total = np.int32(total + np.int32(low + high))
    return total


@njit(cache=True, nogil=True, fastmath=True)
def dot_2_bits(codes: Any, i: Any, query: Any) -> Any:
    """`dot_code` for codes of 2 bits."""
    total = np.int32(0)
    for t in range(codes.shape[1]):
        byte = codes[i, t]
        a = np.int32(np.int32(byte & 3) * np.int32(query[0, t]))
        b = np.int32(np.int32((byte >> 2) & 3) * np.int32(query[1, t]))
        c = np.int32(np.int32((byte >> 4) & 3) * np.int32(query[2, t]))
        d = np.int32(np.int32(byte >> 6) * np.int32(query[3, t]))
        total = np.int32(total + np.int32(np.int32(a + b) + np.int32(c + d)))
    return total


@njit(cache=True, nogil=True, fastmath=True)
def dot_1_bit(codes: Any, i: Any, query: Any) -> Any:
    """`dot_code` for codes of 1 bit."""
    total = np.int32(0)
    whole = codes.shape[1] // 16 * 16
    # A code is short, so a loop over all of it would mostly be the part that is not vectorised: sixteen bytes at a time.
    for start in range(0, whole, 16):
        for u in range(16):
            t = start + u
            byte = codes[i, t]
            a = np.int32(np.int32(byte & 1) * np.int32(query[0, t]))
            b = np.int32(np.int32((byte >> 1) & 1) * np.int32(query[1, t]))
            c = np.int32(np.int32((byte >> 2) & 1) * np.int32(query[2, t]))
            d = np.int32(np.int32((byte >> 3) & 1) * np.int32(query[3, t]))
            e = np.int32(np.int32((byte >> 4) & 1) * np.int32(query[4, t]))
            f = np.int32(np.int32((byte >> 5) & 1) * np.int32(query[5, t]))
            g = np.int32(np.int32((byte >> 6) & 1) * np.int32(query[6, t]))
            h = np.int32(np.int32(byte >> 7) * np.int32(query[7, t]))
            total = np.int32(total + np.int32(np.int32(a + b) + np.int32(c + d)))
            total = np.int32(total + np.int32(np.int32(e + f) + np.int32(g + h)))
    for p in range(8):
        for t in range(whole, codes.shape[1]):
            level = np.int32((codes[i, t] >> np.uint8(p)) & 1)
            total = np.int32(total + np.int32(level * np.int32(query[p, t])))
    return total


@njit(cache=True, nogil=True, fastmath=True, inline="always")
def dot_code(codes: Any, i: Any, query: Any, bits: Any) -> Any:
    """Sum over dimensions of level * query. codes: uint8 (n, stride); query: int8 (8 / bits, stride).

    The query is two-dimensional because Numba takes `query[1, t]` for a possibly negative index, and the test for
    that keeps the loop from being vectorised (117 against 50 ns a row of a walk at width 384).
    """
    if bits == 4:
        return dot_4_bits(codes, i, query)
    if bits == 2:
        return dot_2_bits(codes, i, query)
    if bits == 8:
        return dot_8_bits(codes, i, query)
    return dot_1_bit(codes, i, query)


@njit(cache=True, nogil=True, fastmath=True)
def dot_range(codes: Any, first: Any, last: Any, query: Any, bits: Any, out: Any) -> None:
    """out[j] = `dot_code` of row first + j, for rows first to last. out: int32 (at least last - first,)."""
    if bits == 4:
        for i in range(first, last):
            out[i - first] = dot_4_bits(codes, i, query)
    elif bits == 2:
        for i in range(first, last):
            out[i - first] = dot_2_bits(codes, i, query)
    elif bits == 8:
        for i in range(first, last):
            out[i - first] = dot_8_bits(codes, i, query)
    else:
        for i in range(first, last):
            out[i - first] = dot_1_bit(codes, i, query)
