"""All rows of an output layer against one state or a few, and what is wanted of the logits kept while they are in cache.

scan         for each state the k best tokens, the pieces of its log-sum-exp, and the rank of one token: never a table [n, V]
all_logits   the table

Rows are read once, in the dtype in which they are stored, TILE at a time; each state's TILE logits are then folded into
what is kept of it. The reading sets the pace of one state (float16: half the bytes of float32), arithmetic that of eight.
A piece of the log-sum-exp is that of PIECE rows, so that it does not depend on how the rows were divided among threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.dots import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    LANES,
    bfloat16_3x2,
    bfloat16_4,
    float16_3x2,
    float16_4,
    float32_3x2,
    float32_4,
    widen_bfloat16,
    widen_float16,
    widen_float32,
)
from decoder.kernels.fold import largest, sum_of_exponentials
from decoder.kernels.score import fetch, finish_in_place
from index.kernels.scan import sift_down

TILE = 96
"""Divisible by 3 and 4, the rows of a tile of dots.py, and by LANES."""
STRIDE = 4 * (TILE + LANES)
"""Bytes of a state's logits of one tile, with room for rows that stand in for missing ones."""
BLOCK = 24
"""Rows that all states pass before the next ones, which are asked for meanwhile: a batch of 2 takes 0.8 of the time."""
AHEAD_BYTES = 16384
"""How far ahead one state asks for rows: the hardware stops at each page's end. 0.93 of the time."""
WIDEN_FROM = 4
WIDE_BLOCK = 6
"""The same where rows are widened first: few enough to stay in the first cache."""
PIECE = 42 * TILE


@njit(cache=True, nogil=True, error_model="numpy")
def _dots_of_one(rows: Any, kind: Any, size: Any, count: Any, state_at: Any, dim: Any, to: Any) -> None:
    """TILE or fewer dot products of one state, 4 rows at a time; the last row stands in for those that are missing."""
    last = rows + (count - 1) * size
    for r in range(0, count, 4):
        at = rows + r * size
        fetch(at + AHEAD_BYTES, 4 * size)
        here = (at, min(at + size, last), min(at + 2 * size, last), min(at + 3 * size, last))
        if kind == FLOAT16:
            float16_4(here, (state_at,), dim, to + 4 * r, 0)
        elif kind == BFLOAT16:
            bfloat16_4(here, (state_at,), dim, to + 4 * r, 0)
        else:
            float32_4(here, (state_at,), dim, to + 4 * r, 0)


@njit(cache=True, nogil=True, error_model="numpy")
def _widened(rows: Any, kind: Any, size: Any, count: Any, dim: Any, wide: Any, apart: Any) -> None:
    """Rows as float32 at address `wide`, `apart` bytes from each other; the last one stands in for some that are missing."""
    for r in range(-(-count // 3) * 3):
        at = rows + min(r, count - 1) * size
        if kind == FLOAT16:
            widen_float16(at, dim, wide + r * apart)
        elif kind == BFLOAT16:
            widen_bfloat16(at, dim, wide + r * apart)
        else:
            widen_float32(at, dim, wide + r * apart)


@njit(cache=True, nogil=True, error_model="numpy")
def _dots_of_many(
    rows: Any, kind: Any, count: Any, n: Any, dim: Any, states: Any, apart: Any, wide: Any, to: Any
) -> None:
    """The same for n states at address `states`: a block of rows stays in cache while the states pass by twos.

    apart: bytes between states, and between rows at address `wide`, which is 0 where rows are read as they are.
    """
    size = dim * 4 if kind == FLOAT32 else dim * 2
    block = BLOCK if wide == 0 else WIDE_BLOCK
    last = rows + (count - 1) * size
    for first in range(0, count, block):
        some = min(block, count - first)
        if wide != 0:
            _widened(rows + first * size, kind, size, some, dim, wide, apart)
        for s in range(0, n, 2):
            both = (states + apart * s, states + apart * min(s + 1, n - 1))
            line = to + STRIDE * s + 4 * first
            between = STRIDE if s + 1 < n else 0
            for r in range(0, some, 3):
                at = rows + (first + r) * size
                if s == 0:
                    fetch(at + block * size, 3 * size)
                here = (at, min(at + size, last), min(at + 2 * size, last))
                if wide != 0:
                    at = wide + r * apart
                    float32_3x2((at, at + apart, at + 2 * apart), both, dim, line + 4 * r, between)
                elif kind == FLOAT16:
                    float16_3x2(here, both, dim, line + 4 * r, between)
                elif kind == BFLOAT16:
                    bfloat16_3x2(here, both, dim, line + 4 * r, between)
                else:
                    float32_3x2(here, both, dim, line + 4 * r, between)


@njit(cache=True, nogil=True, error_model="numpy")
def _dots(rows: Any, kind: Any, count: Any, n: Any, dim: Any, states: Any, apart: Any, wide: Any, to: Any) -> None:
    """Dot products of `count` rows, at most TILE, and n states: state s and row r at to + s * STRIDE + 4 * r."""
    if n == 1:
        _dots_of_one(rows, kind, dim * 4 if kind == FLOAT32 else dim * 2, count, states, dim, to)
    else:
        _dots_of_many(rows, kind, count, n, dim, states, apart, wide, to)


@njit(cache=True, nogil=True, error_model="numpy")
def _bytes_apart(dim: Any) -> Any:
    """Bytes between vectors of dim float32 that begin at cache lines, and not all in the same set of the cache."""
    lines = -(-dim // LANES)
    return (lines + 1 - lines % 2) * 64


@njit(cache=True, nogil=True, error_model="numpy")
def _aligned(states: Any, more: Any) -> Any:
    """The states in a buffer float32 (any,) from its first cache line on, and room for `more` vectors behind them.

    Loads that cross cache lines cost a tenth of the time of a batch.
    """
    n, dim = states.shape
    apart = _bytes_apart(dim) // 4
    buffer = np.empty((n + more) * apart + LANES, np.float32)
    skip = (-buffer.ctypes.data % 64) // 4
    for s in range(n):
        vector = buffer[skip + s * apart : skip + s * apart + dim]
        for t in range(dim):
            vector[t] = states[s, t]
    return buffer, buffer.ctypes.data + 4 * skip


@njit(cache=True, nogil=True, error_model="numpy")
def _rows_to_widen(kind: Any, n: Any) -> Any:
    """How many rows at a time are made float32 in a buffer of their own: where that costs less than what it saves.

    Half precision is widened once for all states; float32 gains by lying at cache lines.
    """
    if n >= (16 if kind == FLOAT32 else WIDEN_FROM):
        return WIDE_BLOCK
    return 0


@njit(cache=True, nogil=True, error_model="numpy")
def _keep_best(values: Any, count: Any, first: Any, kept: Any, who: Any, far: Any) -> Any:
    """Put tokens first.. first + count into the heap of the best; returns how many it holds. Minus infinity never enters.

    far: float32 (k,), minus the logits, so that the heap's root is the worst: the least logit, of equals the last id.
    """
    k = who.shape[0]
    j = 0
    while kept < k and j < count:
        if values[j] > -np.inf:
            far[kept] = -values[j]
            who[kept] = first + j
            kept += 1
            if kept == k:
                for at in range(k // 2 - 1, -1, -1):
                    sift_down(far, who, at, k)
        j += 1
    while j < count:
        if -values[j] < far[0]:
            far[0] = -values[j]
            who[0] = first + j
            sift_down(far, who, 0, k)
        j += 1
    return kept


@njit(cache=True, nogil=True, error_model="numpy")
def _count_before(values: Any, count: Any, first: Any, target: Any, target_logit: Any) -> Any:
    """How many of these tokens come before the target: larger logits, of equals lower ids."""
    before = np.int32(0)
    for j in range(count):
        before += np.int32(values[j] > target_logit)
    if first <= target:
        for j in range(min(count, target - first)):
            before += np.int32(values[j] == target_logit)
    return before


@njit(cache=True, nogil=True, error_model="numpy")
def _add_to_piece(at: Any, count: Any, top: Any, tops: Any, sums: Any, piece: Any, fresh: Any) -> None:
    """Add exponentials of padded values at an address to a piece of the log-sum-exp. fresh: the piece is still empty."""
    if fresh:
        tops[piece] = top
        sums[piece] = 0.0
    elif top > tops[piece]:
        sums[piece] *= np.exp(np.float64(tops[piece]) - np.float64(top))
        tops[piece] = top
    if tops[piece] > -np.inf:
        sums[piece] += sum_of_exponentials(at, count, tops[piece])


@njit(cache=True, nogil=True, error_model="numpy")
def _finish(values: Any, count: Any, bias: Any, begin: Any, scale: Any, softcap: Any) -> None:
    """Dot products -> logits of tokens begin.. begin + count, in place; minus infinity up to the next multiple of LANES."""
    for j in range(count):
        values[j] += bias[begin + j]
    if softcap != np.float32(0.0) or scale != np.float32(1.0):
        finish_in_place(values[:count], scale, softcap)
    for j in range(count, -(-count // LANES) * LANES):
        values[j] = -np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def all_logits(weight: Any, kind: Any, bias: Any, scale: Any, softcap: Any, states: Any, out: Any) -> None:
    """out[s, v] = logit of token v under state s. states: float32 (n, d); out: float32 (n, V); the rest as scan takes it."""
    n, dim = states.shape
    size = dim * 4 if kind == FLOAT32 else dim * 2
    values = np.empty((n, STRIDE // 4), np.float32)
    widen = _rows_to_widen(kind, n)
    buffer, states_at = _aligned(states, widen)
    apart = _bytes_apart(dim)
    wide = states_at + n * apart if widen > 0 else 0
    for begin in range(0, out.shape[1], TILE):
        count = min(TILE, out.shape[1] - begin)
        rows = weight.ctypes.data + np.int64(begin) * size
        _dots(rows, kind, count, n, dim, states_at, apart, wide, values.ctypes.data)
        for s in range(n):
            _finish(values[s], count, bias, begin, scale, softcap)
            for j in range(count):
                out[s, begin + j] = values[s, j]
    # Used to the end: Numba frees what it sees no more use of, and the tiles know the address only.
    buffer[0] = np.float32(0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def scan(
    weight: Any,
    kind: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    states: Any,
    first: Any,
    last: Any,
    who: Any,
    far: Any,
    kept: Any,
    tops: Any,
    sums: Any,
    extra: Any,
    extra_tops: Any,
    extra_sums: Any,
    targets: Any,
    target_logits: Any,
    ranks: Any,
) -> None:
    """Tokens first..last against n states. What is wanted of them is said by the sizes of the arrays:

    weight, kind, bias: as score_rows takes them; scale, softcap: float32, softcap 0 for none; states: float32 (n, d);
    first: a multiple of PIECE.
    The k best: who int32 (n, k), far float32 (n, k): heaps of ids and minus logits, filled to kept int64 (n,), 0 before.
    log Z: tops float32, sums float64 (n, pieces): piece p's largest logit and its sum of exp(logit - top), overwritten.
    extra: float32 (V,) or (0,): added to logits, minus infinity for tokens that may not be kept; then extra_tops and
    extra_sums (n, pieces) are the pieces of those sums, tops and sums still those of the logits without.
    Ranks: targets int32, target_logits float32 (n,) or (0,): tokens of which ranks int64 (n,) grows by the number of tokens
    that come before them, extra left out.
    """
    n, dim = states.shape
    size = dim * 4 if kind == FLOAT32 else dim * 2
    values = np.empty((n, STRIDE // 4), np.float32)
    widen = _rows_to_widen(kind, n)
    buffer, states_at = _aligned(states, widen)
    apart = _bytes_apart(dim)
    wide = states_at + n * apart if widen > 0 else 0
    moved = np.empty(TILE, np.float32)
    moved_at = moved.ctypes.data
    for begin in range(first, last, TILE):
        count = min(TILE, last - begin)
        rows = weight.ctypes.data + np.int64(begin) * size
        _dots(rows, kind, count, n, dim, states_at, apart, wide, values.ctypes.data)
        piece = begin // PIECE
        fresh = begin % PIECE == 0
        padded = -(-count // LANES) * LANES
        for s in range(n):
            mine = values[s]
            at = values.ctypes.data + np.int64(s) * STRIDE
            _finish(mine, count, bias, begin, scale, softcap)
            top = largest(at, padded)
            if targets.shape[0] > 0:
                ranks[s] += _count_before(mine, count, begin, targets[s], target_logits[s])
            _add_to_piece(at, padded, top, tops[s], sums[s], piece, fresh)
            if extra.shape[0] > 0:
                for j in range(count):
                    moved[j] = mine[j] + extra[begin + j]
                for j in range(count, padded):
                    moved[j] = -np.inf
                mine = moved
                top = largest(moved_at, padded)
                _add_to_piece(moved_at, padded, top, extra_tops[s], extra_sums[s], piece, fresh)
            if kept[s] < who.shape[1] or (who.shape[1] > 0 and -top < far[s, 0]):
                kept[s] = _keep_best(mine, count, begin, kept[s], who[s], far[s])
    buffer[0] = np.float32(0.0)  # used to the end, as above


@njit(cache=True, nogil=True, error_model="numpy")
def sort_best(who: Any, far: Any, kept: Any) -> None:
    """Each state's heap in order: larger logits first, of equals lower ids; entries past kept[s] become -1, infinity."""
    for s in range(who.shape[0]):
        ids = who[s]
        mine = far[s]
        held = kept[s]
        if held < who.shape[1]:
            for at in range(held // 2 - 1, -1, -1):
                sift_down(mine, ids, at, held)
            for at in range(held, who.shape[1]):
                ids[at] = -1
                mine[at] = np.inf
        for count in range(held - 1, 0, -1):
            mine[0], mine[count] = mine[count], mine[0]
            ids[0], ids[count] = ids[count], ids[0]
            sift_down(mine, ids, 0, count)
