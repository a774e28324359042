"""Rows -> codes: b bits a dimension and two numbers a row, so that inner products are estimated without bias.

A rotated, centred row y becomes integers c in 0..2^b-1. With u = c - (2^b - 1) / 2 the estimate of <q, y> is
scale * <q, u>, scale = |y|^2 / <y, u>: the projection of y on u is right on average over the rotation (Gao and Long,
"RaBitQ", SIGMOD 2024, and its extension to more bits, 2025). The error's standard deviation is
|q| |y| sqrt((1 / cos^2 - 1) / (width - 1)), cos the angle between y and u.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, fastmath=True)
def _round_to_levels(y: Any, step: Any, levels: Any, out: Any) -> Any:
    """out[t] = level of y[t] at this step; returns <y, u> and |u|^2."""
    middle = np.float32((levels - 1) * 0.5)
    inverse = np.float32(1.0) / step
    along = np.float32(0.0)
    length = np.float32(0.0)
    top = np.float32(levels - 1)
    for t in range(y.shape[0]):
        c = np.rint(y[t] * inverse + middle)
        c = min(max(c, np.float32(0.0)), top)
        u = c - middle
        out[t] = np.uint8(c)
        along += y[t] * u
        length += u * u
    return along, length


@njit(cache=True, nogil=True)
def encode_rows(rotated: Any, bits: Any, ratios: Any, codes: Any, lengths: Any, scales: Any) -> None:
    """Codes of rotated rows: of the steps tried, the one whose code is nearest in angle to the row.

    rotated: float32 (m, width); ratios: float32 (r,), half of the covered range in standard deviations of a component;
    codes: uint8 (m, width * bits / 8), dimension p * (width * bits / 8) + t in bits p * bits.. of byte t;
    lengths: float32 (m,), |y|^2; scales: float32 (m,).
    """
    width = rotated.shape[1]
    levels = 1 << bits
    stride = codes.shape[1]
    current = np.empty(width, np.uint8)
    best = np.empty(width, np.uint8)
    for i in range(rotated.shape[0]):
        y = rotated[i]
        total = np.float32(0.0)
        for t in range(width):
            total += y[t] * y[t]
        lengths[i] = total
        deviation = np.float32(np.sqrt(total / width))
        best_along = np.float32(0.0)
        best_cosine = np.float32(-1.0)
        for r in range(ratios.shape[0]):
            step = (
                ratios[r] * deviation * np.float32(2.0) / np.float32(levels - 1)
                if deviation > np.float32(1e-30)
                else np.float32(1.0)
            )
            along, length = _round_to_levels(y, step, levels, current)
            cosine = along / np.sqrt(length) if length > 0 else np.float32(0.0)
            if cosine > best_cosine:
                best_cosine = cosine
                best_along = along
                best, current = current, best
        scales[i] = total / best_along if best_along > 0 else np.float32(0.0)
        for t in range(stride):
            byte = np.uint8(0)
            for p in range(8 // bits):
                byte |= np.uint8(best[p * stride + t] << np.uint8(p * bits))
            codes[i, t] = byte


@njit(cache=True, nogil=True, fastmath=True)
def encode_int8(rotated: Any, codes: Any, lengths: Any, scales: Any) -> None:
    """int8 rows for building graphs: y = scale * code.

    rotated: float32 (m, width); codes: int8 (m, width); lengths: float32 (m,), |y|^2; scales: float32 (m,).
    """
    for i in range(rotated.shape[0]):
        largest = np.float32(0.0)
        total = np.float32(0.0)
        for t in range(rotated.shape[1]):
            largest = max(largest, abs(rotated[i, t]))
            total += rotated[i, t] * rotated[i, t]
        scale = largest / np.float32(127.0) if largest > np.float32(1e-30) else np.float32(1.0)
        inverse = np.float32(1.0) / scale
        for t in range(rotated.shape[1]):
            codes[i, t] = np.int8(np.rint(rotated[i, t] * inverse))
        lengths[i] = total
        scales[i] = scale
