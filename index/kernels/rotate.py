"""A random rotation that costs d log d: sign flips and Walsh-Hadamard transforms on overlapping halves.

A dense rotation at d = 384 reads 590 KB for each query; this one reads its signs. Width is the dimension rounded up to a
multiple of 8; where it is no power of two, the transform of the largest power of two that fits runs in turn on the
leading and on the trailing coordinates, which mixes all of them. Each step is orthogonal, so inner products survive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

ROUNDS = 4


@njit(cache=True, nogil=True, fastmath=True)
def _hadamard(x: Any, start: Any, size: Any) -> None:
    """x[start : start + size] = its Walsh-Hadamard transform, scaled to keep lengths. size: a power of two."""
    half = 1
    while half < size:
        for block in range(start, start + size, 2 * half):
            for i in range(block, block + half):
                a = x[i]
                b = x[i + half]
                x[i] = a + b
                x[i + half] = a - b
        half *= 2
    scale = np.float32(1.0 / np.sqrt(size))
    for i in range(start, start + size):
        x[i] *= scale


@njit(cache=True, nogil=True, fastmath=True)
def rotate(x: Any, signs: Any) -> None:
    """x = R x in place. x: float32 (width,); signs: float32 (ROUNDS, width) of -1 and 1."""
    width = x.shape[0]
    size = 1
    while 2 * size <= width:
        size *= 2
    for r in range(signs.shape[0]):
        for i in range(width):
            x[i] *= signs[r, i]
        if r % 2 == 0:
            _hadamard(x, 0, size)
        else:
            _hadamard(x, width - size, size)


@njit(cache=True, nogil=True, fastmath=True)
def prepare_rows(vectors: Any, mean: Any, signs: Any, unit: Any, out: Any) -> None:
    """out[i] = R (x - mean), with x = vectors[i], made of length 1 first if `unit` (a zero row stays zero).

    vectors: float32 (m, dim); mean: float32 (dim,); out: float32 (m, width), overwritten, zero-padded before rotating.
    """
    dim = vectors.shape[1]
    for i in range(vectors.shape[0]):
        scale = np.float32(1.0)
        if unit:
            total = np.float32(0.0)
            for t in range(dim):
                total += vectors[i, t] * vectors[i, t]
            if total > 0:
                scale = np.float32(1.0 / np.sqrt(total))
        for t in range(dim):
            out[i, t] = vectors[i, t] * scale - mean[t]
        for t in range(dim, out.shape[1]):
            out[i, t] = np.float32(0.0)
        rotate(out[i], signs)


@njit(cache=True, nogil=True, fastmath=True)
def quantise_queries(rotated: Any, out: Any, scales: Any, sums: Any, lengths: Any) -> None:
    """Queries as int8: query = scale * out.

    rotated: float32 (m, width); out: int8 (m, width); scales, sums, lengths: float32 (m,), sums that of out's components.
    """
    width = rotated.shape[1]
    for i in range(rotated.shape[0]):
        largest = np.float32(0.0)
        length = np.float32(0.0)
        for t in range(width):
            largest = max(largest, abs(rotated[i, t]))
            length += rotated[i, t] * rotated[i, t]
        scale = largest / np.float32(127.0) if largest > np.float32(1e-30) else np.float32(1.0)
        inverse = np.float32(1.0) / scale
        total = np.int32(0)
        for t in range(width):
            value = np.int32(np.rint(rotated[i, t] * inverse))
            out[i, t] = np.int8(value)
            total += value
        scales[i] = scale
        sums[i] = np.float32(total)
        lengths[i] = np.sqrt(length)
