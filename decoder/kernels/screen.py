"""A screen for each of many states: the leading coordinates of all rows, all coordinates of the best, exact logits of few.

screen_states    frame -> scan of leading codes -> codes of the best -> exact logits -> log Z

The scan reads memory in order, which is what memory is fast at; nothing is missed but what the leading coordinates
misjudge. Thresholds come from a sample of the scores, so that about as many rows pass as were asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.frame import into_frame, quantise
from decoder.kernels.partition import draw, mass_seen, sample_seen, state_seed, sum_seen, sum_up, uniform
from decoder.kernels.score import exact_logits
from decoder.kernels.select import SAMPLE, best_first, divide, keep_best, nth_smallest, passing_rows
from decoder.kernels.walk import DRAWS_MOST
from index.kernels.intrinsics import prefetch
from index.kernels.vector_dots import code_dot_8, four_code_dots

BLOCK = 1024
AHEAD = 12


# The flags of _distances(): a bound is one of its numbers, bit for bit.
@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def lead_threshold(
    codes: Any, biases: Any, scales: Any, plane: Any, query_scale: Any, query_sum: Any, wanted: Any, sample: Any
) -> Any:
    """A bound that about `wanted` of all rows' leading distances do not exceed, from SAMPLE rows spread over all."""
    total, lead = codes.shape
    if wanted >= total:
        return np.float32(np.inf)
    twice = np.float32(2.0) * query_scale
    offset = np.float32(127.5) * query_sum
    taken = min(total, SAMPLE)
    ratio = (np.int64(total) << 32) // taken
    at = codes.ctypes.data
    plane_at = plane.ctypes.data
    for j in range(taken):
        ahead = at + ((min(j + 2 * AHEAD, taken - 1) * ratio) >> 32) * lead
        for t in range(0, lead, 64):
            prefetch(np.uintp(ahead + t))
        i = (j * ratio) >> 32
        dot = code_dot_8(at + np.int64(i) * lead, plane_at, lead)
        sample[j] = biases[i] - twice * scales[i] * (np.float32(dot) - offset)
    return nth_smallest(sample, taken, min(taken - 1, wanted * taken // total))


@njit(cache=True, nogil=True)
def _dots(codes_at: Any, wide_at: Any, lead: Any, count: Any, sums: Any) -> None:
    """sums[j] for `count` rows that follow each other; four at a time, so up to three more than that are read and written."""
    sums_at = sums.ctypes.data
    for j in range(0, count, 4):
        four_code_dots(codes_at + j * lead, wide_at, lead, sums_at + 4 * j)


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def _distances(biases: Any, scales: Any, sums: Any, twice: Any, offset: Any, out: Any) -> None:
    for j in range(biases.shape[0]):
        out[j] = biases[j] - twice * scales[j] * (np.float32(sums[j]) - offset)


@njit(cache=True, nogil=True)
def scan_lead(
    codes: Any,
    biases: Any,
    scales: Any,
    plane: Any,
    query_scale: Any,
    query_sum: Any,
    bound: Any,
    wide: Any,
    sums: Any,
    values: Any,
    rows: Any,
) -> Any:
    """values[v] = -2 (estimated logit) of every row by its leading coordinates; rows[:m]: those <= bound, ascending.

    Returns m. codes: uint8 (V, lead), lead a multiple of 16, with three more rows in memory where V is no multiple of 4;
    biases, scales, values: float32 (V,); rows: int32 (V + 1,); wide int16 (lead,), sums int32 (BLOCK,): scratch.
    """
    lead = codes.shape[1]
    total = codes.shape[0]
    twice = np.float32(2.0) * query_scale
    offset = np.float32(127.5) * query_sum
    for t in range(lead):
        wide[t] = plane[0, t]
    at = codes.ctypes.data
    m = 0
    for first in range(0, total, BLOCK):
        last = min(first + BLOCK, total)
        _dots(at, wide.ctypes.data, lead, last - first, sums)
        at += BLOCK * lead
        mine = values[first:last]
        _distances(biases[first:last], scales[first:last], sums, twice, offset, mine)
        m = passing_rows(mine, first, bound, rows, m)
    return m


@njit(cache=True, nogil=True)
def score_codes(
    codes: Any, scalars: Any, plane: Any, query_scale: Any, query_sum: Any, rows: Any, m: Any, out: Any
) -> None:
    """out[j] = -2 (estimated logit) of row rows[j] by all coordinates, for j < m."""
    stride = codes.shape[1]
    at = codes.ctypes.data
    scalars_at = scalars.ctypes.data
    plane_at = plane.ctypes.data
    twice = np.float32(2.0) * query_scale
    offset = np.float32(127.5) * query_sum
    for j in range(m):
        if j + AHEAD < m:
            ahead = at + np.int64(rows[j + AHEAD]) * stride
            for t in range(0, stride, 64):
                prefetch(np.uintp(ahead + t))
            prefetch(np.uintp(scalars_at + np.int64(rows[j + AHEAD]) * 8))
        i = rows[j]
        dot = code_dot_8(at + np.int64(i) * stride, plane_at, stride)
        out[j] = scalars[i, 0] - twice * scalars[i, 1] * (np.float32(dot) - offset)


@njit(cache=True, nogil=True)
def sample_above(values: Any, bound: Any, rest: Any, random: Any, who: Any, first: Any, last: Any) -> Any:
    """Fill who[first:last] with different rows whose value exceeds the bound; returns where it ended.

    values: of all rows, of which `rest` exceed the bound: all of these where there is room for so many. Those drawn become
    minus infinity, so that none is drawn twice.
    """
    m = first
    if last - first == rest:
        for row in range(values.shape[0]):
            if m < last and values[row] > bound:
                who[m] = row
                m += 1
        return m
    for _ in range(DRAWS_MOST * (last - first)):
        if m == last:
            break
        random, bits = draw(random)
        row = np.int32(((bits >> np.uint64(32)) * np.uint64(values.shape[0])) >> np.uint64(32))
        if values[row] <= bound:
            continue
        values[row] = -np.inf
        who[m] = row
        m += 1
    return m


@njit(cache=True, nogil=True)
def screen_states(
    weight: Any,
    kind: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    mean: Any,
    projection: Any,
    projection_kind: Any,
    codes: Any,
    scalars: Any,
    lead_codes: Any,
    lead_scalars: Any,
    states: Any,
    passing: Any,
    band: Any,
    keep: Any,
    middle: Any,
    tail: Any,
    whole: Any,
    seed: Any,
    values: Any,
    rows: Any,
    distances: Any,
    masses: Any,
    who: Any,
    logits: Any,
    weights: Any,
    exact: Any,
    counts: Any,
    log_z: Any,
    error: Any,
    scored: Any,
) -> None:
    """Candidates and log Z of each state.

    Layer, frame, codes and what is filled: as kernels/walk.py::walk_states. lead_codes uint8 (V, lead), lead_scalars
    float32 (2, V): -2 bias, scale. passing: about so many rows are scored by all coordinates, of which `keep` are reranked;
    band: about so many more, the next best by their leading coordinates, from which `middle` are drawn in proportion to
    their estimate; tail: drawn from all others. whole: draw from the rows that passed as well, so that the entries stand
    for all tokens.
    values float32 (V,), distances, masses float32 (V + 1,), rows int32 (V + 1,): scratch.
    """
    width = codes.shape[1]
    moved = np.empty(mean.shape[0], np.float32)
    query = np.empty(width + 1, np.float32)
    plane = np.empty((1, width), np.int8)
    lead_plane = np.empty((1, lead_codes.shape[1]), np.int8)
    wide = np.empty(lead_codes.shape[1], np.int16)
    sums = np.empty(BLOCK, np.int32)
    sample = np.empty(SAMPLE, np.float32)
    passed = np.empty(codes.shape[0] + 1, np.int32)
    band_values = np.empty(codes.shape[0] if band > 0 else 0, np.float32)
    far = np.empty(keep, np.float32)
    near = np.empty(keep, np.float32)
    times = np.empty(max(middle, 1), np.int32)
    exps = np.empty(who.shape[1], np.float64)
    for s in range(states.shape[0]):
        state = states[s]
        mine = who[s]
        logit = logits[s]
        query_scale, query_sum, usable = into_frame(state, mean, projection, projection_kind, moved, query, plane[0])
        exact[s] = counts[s] = scored[s] = 0
        if not usable:
            continue
        outer, m = _pass(
            lead_codes,
            lead_scalars,
            query,
            passing + band,
            keep,
            lead_plane,
            wide,
            sums,
            sample,
            distances,
            values,
            rows,
        )
        p = m
        if band > 0 and m > passing:
            p = divide(values, rows, m, passing, min(keep, m), sample, distances, passed, band_values)
        else:
            passed[:m] = rows[:m]
        score_codes(codes, scalars, plane, query_scale, query_sum, passed, p, distances)
        known = keep_best(distances, p, passed, keep, mine, near)
        weights[s, :known] = 1.0
        exact_logits(weight, kind, bias, scale, softcap, state, mine, 0, known, logit)
        exact[s] = counts[s] = known
        scored[s] = codes.shape[0]
        if known > 0 and (middle > 0 or tail > 0):
            counts[s], log_z[s], error[s] = _log_z(
                weight, kind, bias, scale, softcap, state, query[width], near, known, passed, distances, p, band_values,
                m, values, outer, middle, tail, whole, state_seed(state, seed), masses, times, exps, mine, logit,
                weights[s],
            )  # fmt: skip
        best_first(mine, logit, known, far)


@njit(cache=True, nogil=True)
def _pass(
    codes: Any, scalars: Any, query: Any, wanted: Any, least: Any, plane: Any, wide: Any, sums: Any, sample: Any,
    distances: Any, values: Any, rows: Any,
) -> Any:  # fmt: skip
    """(bound, m): rows[:m] are about `wanted` rows whose leading distances are within the bound, at least `least` of them."""
    scale, total = quantise(query[: plane.shape[1]], plane[0])
    bound = lead_threshold(codes, scalars[0], scalars[1], plane, scale, total, wanted, sample)
    m = scan_lead(codes, scalars[0], scalars[1], plane, scale, total, bound, wide, sums, values, rows)
    count = values.shape[0]
    if m < min(least, count):
        distances[:count] = values
        bound = nth_smallest(distances, count, min(least, count) - 1)
        m = passing_rows(values, 0, bound, rows, 0)
    return bound, m


@njit(cache=True, nogil=True)
def _log_z(
    weight: Any, kind: Any, bias: Any, scale: Any, softcap: Any, state: Any, offset: Any, near: Any, known: Any,
    passed: Any, distances: Any, p: Any, band_values: Any, m: Any, values: Any, outer: Any, middle: Any, tail: Any,
    whole: Any, random: Any, masses: Any, times: Any, exps: Any, who: Any, logit: Any, weight_of: Any,
) -> Any:  # fmt: skip
    """(rows in who, log Z, its standard error), after `known` rows of one screen were reranked; sampled rows are added.

    passed[:p] were scored by all coordinates, passed[p:m] by the leading ones, whose distances are band_values[:m - p].
    """
    top, spread, total, squares = mass_seen(
        logit, who, near, known, passed, distances, p, offset, scale, softcap, masses
    )
    sampled = 0
    drawn_from = 0.0
    if middle > 0:
        random, start = uniform(random)
        everything = np.float32(-np.inf)
        drawn_from, _ = sum_seen(band_values, m - p, everything, offset, scale, softcap, top, masses[p:])
        begin = p
        if whole:
            # All that was scored is drawn from: what passed by all its coordinates, the band by the leading ones.
            begin = 0
            drawn_from += total
            total = squares = 0.0
        sampled = sample_seen(
            passed[begin:], masses[begin:], m - begin, drawn_from, middle, start, who[known:], weight_of[known:], times
        )
    first = known + sampled
    rest = values.shape[0] - m
    count = sample_above(values, outer, rest, random, who, first, first + min(tail, rest))
    log_z, error = sum_up(
        weight, kind, bias, scale, softcap, state, who, logit, weight_of, known, sampled, count, times, total, squares,
        spread, drawn_from, middle, rest, exps,
    )  # fmt: skip
    return count, log_z, error
