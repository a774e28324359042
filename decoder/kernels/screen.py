"""A screen for each of many states: the leading coordinates of all rows, all coordinates of the best, exact logits of few.

screen_states    frame -> scan of leading codes -> codes of the best -> exact logits -> log Z

The scan reads memory in order, which is what memory is fast at; nothing is missed but what the leading coordinates
misjudge. Thresholds come from a sample of the scores, so that about as many rows pass as were asked for. What the scan says
of all other rows is what their part of log Z is drawn by: see masses_above() and draw_rows().
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.exponent import exp_roughly
from decoder.kernels.frame import into_frame, quantise
from decoder.kernels.partition import HIGHEST, draws_below, mass_seen, state_seed, sum_up, uniform
from decoder.kernels.score import exact_logits, finish_one
from decoder.kernels.select import SAMPLE, best_first, keep_best, nth_smallest, passing_rows, threshold
from decoder.preview import LEAD_MIDDLE
from index.kernels.intrinsics import prefetch
from index.kernels.vector_dots import code_dot_8, four_nibble_dots

BLOCK = 1024
AHEAD = 12
GROUPS = 64
OF_EACH = 16
"""A block's rows are summed in so many groups: row first + g + GROUPS k is in group g, k < OF_EACH. A draw passes over whole
groups, then over the rows of one."""


@njit(cache=True, nogil=True)
def _dots(codes_at: Any, plane_at: Any, stride: Any, count: Any, sums: Any) -> None:
    """sums[j] for `count` rows that follow each other; four at a time, so up to three more than that are read and written."""
    sums_at = sums.ctypes.data
    for j in range(0, count, 4):
        four_nibble_dots(codes_at + j * stride, plane_at, stride, sums_at + 4 * j)


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def _distances(biases: Any, scales: Any, sums: Any, twice: Any, offset: Any, out: Any) -> None:
    for j in range(biases.shape[0]):
        out[j] = biases[j] - twice * scales[j] * (np.float32(sums[j]) - offset)


@njit(cache=True, nogil=True)
def scan_lead(
    codes: Any, biases: Any, scales: Any, plane: Any, query_scale: Any, query_sum: Any, sums: Any, values: Any
) -> None:
    """values[v] = -2 (estimated logit) of every row by its leading coordinates.

    codes: uint8 (V, lead / 2) of 4 bits, lead a multiple of 64, with three more rows in memory where V is no multiple of 4;
    plane: int8 (1, lead); biases, scales, values: float32 (V,); sums int32 (BLOCK,): scratch.
    """
    total, stride = codes.shape
    twice = np.float32(2.0) * query_scale
    offset = np.float32(LEAD_MIDDLE) * query_sum
    at = codes.ctypes.data
    for first in range(0, total, BLOCK):
        last = min(first + BLOCK, total)
        _dots(at, plane.ctypes.data, stride, last - first, sums)
        at += BLOCK * stride
        _distances(biases[first:last], scales[first:last], sums, twice, offset, values[first:last])


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


# error_model: a division that may raise is not vectorised, and tanh divides.
@njit(cache=True, nogil=True, error_model="numpy")
def masses_above(values: Any, bound: Any, offset: Any, scale: Any, softcap: Any, top: Any) -> None:
    """In place: the distance of every row becomes about exp(estimated logit - top), 0 where it is within the bound.

    What rows are drawn by need not be exact: they count by what they weigh over what they were drawn by.
    """
    half = np.float32(-0.5)
    if softcap == np.float32(0.0):
        for j in range(values.shape[0]):
            mass = exp_roughly(min((half * values[j] + offset) * scale - top, HIGHEST))
            values[j] = mass if values[j] > bound else np.float32(0.0)
    else:
        for j in range(values.shape[0]):
            mass = exp_roughly(min(finish_one(half * values[j] + offset, scale, softcap) - top, HIGHEST))
            values[j] = mass if values[j] > bound else np.float32(0.0)


@njit(cache=True, nogil=True)
def sum_groups(masses: Any, sums: Any) -> Any:
    """sums[GROUPS b + g]: the masses float32 (V,) of group g of block b, float32; returns the sum of all, float64."""
    totals = np.zeros(GROUPS)
    for first in range(0, masses.shape[0], BLOCK):
        mine = sums[first // OF_EACH : first // OF_EACH + GROUPS]
        some = masses[first : first + BLOCK]
        mine[:] = np.float32(0.0)
        start = 0
        while start + GROUPS <= some.shape[0]:
            for g in range(GROUPS):
                mine[g] += some[start + g]
            start += GROUPS
        for g in range(some.shape[0] - start):
            mine[g] += some[start + g]
        for g in range(GROUPS):
            totals[g] += np.float64(mine[g])
    return totals.sum()


@njit(cache=True, nogil=True)
def draw_rows(masses: Any, sums: Any, total: Any, draws: Any, start: Any, who: Any, weights: Any, times: Any) -> Any:
    """`draws` systematic draws of rows in proportion to mass; returns how many different rows.

    masses float32 (V,), sums and total as sum_groups() left them; start: uniform in [0, 1). who int32, weights float64, times
    int32 (>= draws,): the rows, how many tokens each stands for (the sum of weight * mass is the sum of all masses), and how
    often it was drawn.
    """
    step = total / draws
    if not step > 0.0:
        return 0
    reach = start * step
    passed = 0.0
    hits = 0
    m = 0
    for group in range(sums.shape[0]):
        after = passed + np.float64(sums[group])
        if reach >= after:
            passed = after
            continue
        here = passed
        first = group // GROUPS * BLOCK + group % GROUPS
        for row in range(first, min(first + BLOCK, masses.shape[0]), GROUPS):
            mass = np.float64(masses[row])
            here += mass
            if reach >= here or hits == draws:
                continue
            before = hits
            hits, reach = draws_below(here, hits, reach, draws, start, step)
            who[m] = row
            times[m] = hits - before
            weights[m] = (hits - before) * step / mass
            m += 1
            if reach >= after:
                break
        passed = after
        if hits == draws:
            break
    return m


@njit(cache=True, nogil=True)
def rows_of_mass(masses: Any, who: Any, first: Any) -> Any:
    """who[first:m]: all rows whose mass is above 0; returns m."""
    m = first
    for row in range(masses.shape[0]):
        if masses[row] > np.float32(0.0):
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
    keep: Any,
    draws: Any,
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

    Layer, frame, codes and what is filled: as kernels/walk.py::walk_states. lead_codes: uint8 (V, lead / 2) of 4 bits;
    lead_scalars: float32 (2, V), -2 bias, scale. passing: about so many rows are scored by all coordinates, of which `keep`
    are reranked; draws: rows drawn from all others for log Z, in proportion to their estimate by the leading coordinates.
    whole: draw from the rows that passed as well, so that the entries stand for all tokens.
    values float32 (V,), distances, masses float32 (V + 1,), rows int32 (V + 1,): scratch.
    """
    width = codes.shape[1]
    moved = np.empty(mean.shape[0], np.float32)
    query = np.empty(width + 1, np.float32)
    plane = np.empty((1, width), np.int8)
    lead_plane = np.zeros((1, 2 * lead_codes.shape[1]), np.int8)
    sums = np.empty(BLOCK, np.int32)
    sample = np.empty(SAMPLE, np.float32)
    sums_of_mass = np.empty((codes.shape[0] + BLOCK - 1) // BLOCK * GROUPS, np.float32)
    far = np.empty(keep, np.float32)
    near = np.empty(keep, np.float32)
    times = np.empty(max(draws, 1), np.int32)
    exps = np.empty(who.shape[1], np.float64)
    for s in range(states.shape[0]):
        state = states[s]
        mine = who[s]
        logit = logits[s]
        query_scale, query_sum, usable = into_frame(state, mean, projection, projection_kind, moved, query, plane[0])
        exact[s] = counts[s] = scored[s] = 0
        if not usable:
            continue
        bound, m = _pass(
            lead_codes, lead_scalars, query, passing, keep, lead_plane, sums, sample, distances, values, rows
        )
        score_codes(codes, scalars, plane, query_scale, query_sum, rows, m, distances)
        known = keep_best(distances, m, rows, keep, mine, near)
        weights[s, :known] = 1.0
        exact_logits(weight, kind, bias, scale, softcap, state, mine, 0, known, logit)
        exact[s] = counts[s] = known
        scored[s] = codes.shape[0]
        if known > 0 and draws > 0:
            counts[s], log_z[s], error[s] = _log_z(
                weight, kind, bias, scale, softcap, codes, scalars, plane, query_scale, query_sum, state, query[width],
                near, known, rows, distances, m, values, bound, draws, whole, state_seed(state, seed), masses,
                sums_of_mass, times, exps, mine, logit, weights[s],
            )  # fmt: skip
        best_first(mine, logit, known, far)


@njit(cache=True, nogil=True)
def _pass(
    codes: Any, scalars: Any, query: Any, wanted: Any, least: Any, plane: Any, sums: Any, sample: Any,
    distances: Any, values: Any, rows: Any,
) -> Any:  # fmt: skip
    """(bound, m): rows[:m] are about `wanted` rows whose leading distances are within the bound, at least `least` of them."""
    lead = min(plane.shape[1], query.shape[0] - 1)  # a short code's last coordinates are zeros
    scale, total = quantise(query[:lead], plane[0, :lead])
    scan_lead(codes, scalars[0], scalars[1], plane, scale, total, sums, values)
    bound = threshold(values, wanted, sample)
    m = passing_rows(values, bound, rows)
    count = values.shape[0]
    if m < min(least, count):
        distances[:count] = values
        bound = nth_smallest(distances, count, min(least, count) - 1)
        m = passing_rows(values, bound, rows)
    return bound, m


@njit(cache=True, nogil=True)
def _log_z(
    weight: Any, kind: Any, bias: Any, scale: Any, softcap: Any, codes: Any, scalars: Any, plane: Any, query_scale: Any,
    query_sum: Any, state: Any, offset: Any, near: Any, known: Any, passed: Any, distances: Any, m: Any, values: Any,
    bound: Any, draws: Any, whole: Any, random: Any, masses: Any, sums: Any, times: Any, exps: Any, who: Any, logit: Any,
    weight_of: Any,
) -> Any:  # fmt: skip
    """(rows in who, log Z, its standard error), after `known` rows of one screen were reranked; drawn rows are added.

    passed[:m] were scored by all coordinates: their estimates count as they are, but where `whole` draws from them too.
    values: the distance of every row by its leading coordinates; overwritten.
    """
    top, spread, total, squares = mass_seen(
        logit, who, near, known, passed, distances, m, offset, scale, softcap, masses
    )
    masses_above(values, bound, offset, scale, softcap, top)
    rest = values.shape[0] - m
    if whole:
        for j in range(m):
            values[passed[j]] = masses[j]
        rest = values.shape[0] - known
        total = squares = 0.0
    drawn_from = 0.0
    sampled = 0
    if rest <= draws:
        count = rows_of_mass(values, who, known)
        rest = count - known
    else:
        random, start = uniform(random)
        drawn_from = sum_groups(values, sums)
        sampled = draw_rows(values, sums, drawn_from, draws, start, who[known:], weight_of[known:], times)
        count = known + sampled
    if sampled == 0 or whole or codes.shape[1] < state.shape[0]:
        exact_logits(weight, kind, bias, scale, softcap, state, who, known, count, logit)
    else:
        # Codes of all coordinates are near enough for a sum over few of all tokens, and half as far to read.
        score_codes(codes, scalars, plane, query_scale, query_sum, who[known:], sampled, distances)
        for j in range(sampled):
            logit[known + j] = finish_one(np.float32(-0.5) * distances[j] + offset, scale, softcap)
    log_z, error = sum_up(
        logit[:count], weight_of[:count], known, sampled, times, total, squares, spread, drawn_from, draws, rest, exps
    )
    return count, log_z, error
