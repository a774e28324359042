"""Exact logits of given rows: the only arithmetic whose results leave the decoder as logits.

score_rows      raw logits w . h + b of chosen rows, for kernels and for Python alike
finish_one      scale and soft-cap of one of them, finish_in_place and finish_logits of many
exact_logits    both, one after the other

Every mode ends here or sums in the same order (dots.py), so a token's logit has the same bits in a walk, a screen and an
exact scan, alone and in a batch. Chosen rows lie anywhere in memory and each costs a cache miss or several, so rows are
asked for AHEAD places before they are needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.dots import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    bfloat16_1,
    bfloat16_4,
    float16_1,
    float16_4,
    float32_1,
    float32_4,
)
from decoder.kernels.exponent import tanh
from index.kernels.intrinsics import prefetch

AHEAD = 8


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def fetch(address: Any, size: Any) -> Any:
    """Ask for the cache lines of `size` bytes at an address; never faults."""
    for t in range(0, size, 64):
        prefetch(np.uintp(address + t))


@njit(cache=True, nogil=True, error_model="numpy")
def score_rows(weight: Any, kind: Any, bias: Any, state: Any, ids: Any, first: Any, last: Any, out: Any) -> None:
    """out[j] = weight[ids[j]] . state + bias[ids[j]] for first <= j < last; other entries of out stay.

    weight: (V, d) float32, or uint16 with the bits of float16 or bfloat16, C-contiguous, as `kind` says (FLOAT32, FLOAT16,
    BFLOAT16), or the same as bytes; bias: float32 (V,); state and out: float32 (d,) and (any,), contiguous; ids: int32 or
    int64.
    """
    dim = state.shape[0]
    size = dim * 4 if kind == FLOAT32 else dim * 2
    rows = weight.ctypes.data
    at = state.ctypes.data
    to = out.ctypes.data
    for j in range(first, min(first + AHEAD, last)):
        fetch(rows + np.int64(ids[j]) * size, size)
    j = first
    while j + 4 <= last:
        for e in range(j + AHEAD, min(j + AHEAD + 4, last)):
            fetch(rows + np.int64(ids[e]) * size, size)
        here = (
            rows + np.int64(ids[j]) * size,
            rows + np.int64(ids[j + 1]) * size,
            rows + np.int64(ids[j + 2]) * size,
            rows + np.int64(ids[j + 3]) * size,
        )
        if kind == FLOAT16:
            float16_4(here, (at,), dim, to + 4 * j, 0)
        elif kind == BFLOAT16:
            bfloat16_4(here, (at,), dim, to + 4 * j, 0)
        else:
            float32_4(here, (at,), dim, to + 4 * j, 0)
        for e in range(4):
            out[j + e] += bias[ids[j + e]]
        j += 4
    while j < last:
        row = rows + np.int64(ids[j]) * size
        if kind == FLOAT16:
            float16_1((row,), (at,), dim, to + 4 * j, 0)
        elif kind == BFLOAT16:
            bfloat16_1((row,), (at,), dim, to + 4 * j, 0)
        else:
            float32_1((row,), (at,), dim, to + 4 * j, 0)
        out[j] += bias[ids[j]]
        j += 1


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def finish_one(raw: Any, scale: Any, softcap: Any) -> Any:
    """The logit of one raw w . h + b: softcap * tanh(raw * scale / softcap), or raw * scale where softcap is 0. float32."""
    if softcap == np.float32(0.0):
        return raw * scale
    cap = np.float64(softcap)
    return np.float32(cap * tanh(np.float64(raw) * (np.float64(scale) / cap)))


@njit(cache=True, nogil=True, error_model="numpy")
def finish_in_place(values: Any, scale: Any, softcap: Any) -> None:
    """values[i] = finish_one(values[i]), bit for bit. values: float32 (m,); scale, softcap: float32."""
    # In place, for two arrays that may be one are never vectorised; the choice outside the loop, for the same reason.
    if softcap == np.float32(0.0):
        for i in range(values.shape[0]):
            values[i] *= scale
    else:
        cap = np.float64(softcap)
        inner = np.float64(scale) / cap
        for i in range(values.shape[0]):
            values[i] = np.float32(cap * tanh(np.float64(values[i]) * inner))


@njit(cache=True, nogil=True, error_model="numpy")
def finish_logits(raw: Any, scale: Any, softcap: Any, out: Any) -> None:
    """out[i] = finish_one(raw[i]), bit for bit. raw, out: float32 (m,), may be one array."""
    for i in range(raw.shape[0]):
        out[i] = raw[i]
    finish_in_place(out, scale, softcap)


@njit(cache=True, nogil=True, error_model="numpy")
def exact_logits(
    weight: Any, kind: Any, bias: Any, scale: Any, softcap: Any, state: Any, ids: Any, first: Any, last: Any, out: Any
) -> None:
    """out[j] = the logit of ids[j] for first <= j < last, as score_rows() and finish_logits() make it."""
    score_rows(weight, kind, bias, state, ids, first, last, out)
    finish_in_place(out[first:last], scale, softcap)
