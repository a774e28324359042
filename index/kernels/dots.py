"""Integer dot products of one code with one int8 query: the innermost arithmetic of walk and scan.

Loops over many rows take the arrays' addresses once and use vector_dots.py: where an array is looked at for each row Numba
counts its references once a row (up to 17 ns).
"""

from __future__ import annotations

from typing import Any

from numba import njit

from index.kernels.vector_dots import code_dot_1, code_dot_2, code_dot_4, code_dot_8, int8_dot


@njit(cache=True, nogil=True, inline="always")
def dot_int8(rows: Any, i: Any, query: Any) -> Any:
    """Sum over t of rows[i, t] * query[t]. rows: int8 (n, width); query: int8 (width,); both C-contiguous."""
    return int8_dot(rows.ctypes.data + i * rows.shape[1], query.ctypes.data, rows.shape[1])


@njit(cache=True, nogil=True, inline="always")
def dot_code(codes: Any, i: Any, query: Any, bits: Any) -> Any:
    """Sum over dimensions of level * query. codes: uint8 (n, stride); query: int8 (8 / bits, stride), C-contiguous."""
    stride = codes.shape[1]
    row = codes.ctypes.data + i * stride
    if bits == 4:
        return code_dot_4(row, query.ctypes.data, stride)
    if bits == 2:
        return code_dot_2(row, query.ctypes.data, stride)
    if bits == 8:
        return code_dot_8(row, query.ctypes.data, stride)
    return code_dot_1(row, query.ctypes.data, stride)


@njit(cache=True, nogil=True)
def dot_range(codes: Any, first: Any, last: Any, query: Any, bits: Any, out: Any) -> None:
    """out[j] = `dot_code` of row first + j, for rows first to last. out: int32 (at least last - first,)."""
    stride = codes.shape[1]
    at = codes.ctypes.data + first * stride
    query_at = query.ctypes.data
    if bits == 4:
        for j in range(last - first):
            out[j] = code_dot_4(at, query_at, stride)
            at += stride
    elif bits == 2:
        for j in range(last - first):
            out[j] = code_dot_2(at, query_at, stride)
            at += stride
    elif bits == 8:
        for j in range(last - first):
            out[j] = code_dot_8(at, query_at, stride)
            at += stride
    else:
        for j in range(last - first):
            out[j] = code_dot_1(at, query_at, stride)
            at += stride
