"""One state into the frame of the codes: projected, quantised, and the place where its walk begins.

into_frame          state -> coordinates and their int8 levels
nearest_centroid    the place whose entry rows a walk begins at
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.dots import FLOAT16, FLOAT32, float16_1, float16_4, float32_1, float32_4


@njit(cache=True, nogil=True)
def project(projection: Any, kind: Any, moved: Any, out: Any) -> None:
    """out[i] = projection[i] . moved for all m rows.

    projection: m rows of d numbers, float32 or with the bits of float16, as `kind` says (FLOAT32, FLOAT16 of dots.py), in
    an array of any integers or floats: where it is always one of bytes, callers are compiled once; moved: float32 (d,);
    out: float32 (>= m,); all contiguous.
    """
    m = projection.shape[0]
    dim = moved.shape[0]
    rows = projection.ctypes.data
    at = moved.ctypes.data
    to = out.ctypes.data
    size = 2 * dim if kind == FLOAT16 else 4 * dim
    i = 0
    while i + 4 <= m:
        row = rows + np.int64(i) * size
        four = (row, row + size, row + 2 * size, row + 3 * size)
        if kind == FLOAT16:
            float16_4(four, (at,), dim, to + 4 * i, 0)
        else:
            float32_4(four, (at,), dim, to + 4 * i, 0)
        i += 4
    while i < m:
        row = rows + np.int64(i) * size
        if kind == FLOAT16:
            float16_1((row,), (at,), dim, to + 4 * i, 0)
        else:
            float32_1((row,), (at,), dim, to + 4 * i, 0)
        i += 1


@njit(cache=True, nogil=True)
def quantise(values: Any, out: Any) -> Any:
    """values float32 (w,) = scale * out int8 (w,), nearly; returns (scale, sum of out), both float32."""
    largest = np.float32(1e-30)
    for t in range(values.shape[0]):
        largest = max(largest, abs(values[t]))
    scale = largest / np.float32(127.0)
    inverse = np.float32(1.0) / scale
    total = np.int32(0)
    for t in range(values.shape[0]):
        level = np.int32(np.rint(values[t] * inverse))
        out[t] = np.int8(level)
        total = np.int32(total + level)
    return scale, np.float32(total)


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def is_finite(values: Any) -> Any:
    """Whether no value is infinite or NaN."""
    total = np.float32(0.0)
    for t in range(values.shape[0]):
        total += values[t] * np.float32(0.0)
    return total == np.float32(0.0)


@njit(cache=True, nogil=True)
def into_frame(state: Any, mean: Any, projection: Any, kind: Any, moved: Any, query: Any, levels: Any) -> Any:
    """query[:width]: coordinates of the state, query[width]: its offset; levels int8 (width,): the coordinates, quantised.

    moved: float32 (d,), scratch. Returns (scale, sum of levels, whether everything is finite); levels mean nothing otherwise.
    """
    for t in range(state.shape[0]):
        moved[t] = state[t] - mean[t]
    project(projection, kind, moved, query)
    width = levels.shape[0]
    if not is_finite(query[: width + 1]):
        return np.float32(0.0), np.float32(0.0), False
    scale, total = quantise(query[:width], levels)
    return scale, total, True


@njit(cache=True, nogil=True)
def nearest_centroid(centroids: Any, halves: Any, query: Any, scores: Any) -> Any:
    """The centroid nearest to the query's leading coordinates; scores: float32 (c,), scratch."""
    if centroids.shape[0] == 1:
        return 0
    project(centroids, FLOAT32, query[: centroids.shape[1]], scores)
    best = 0
    for c in range(centroids.shape[0]):
        scores[c] -= halves[c]
        if scores[c] > scores[best]:
            best = c
    return best
