"""A screen for each of many states: the leading coordinates of all rows, all coordinates of the best, exact logits of few.

screen_states    frame -> scan of leading codes -> codes of the best -> exact logits -> log Z

The scan reads memory in order, which is what memory is fast at; nothing is missed but what the leading coordinates
misjudge. Thresholds come from a sample of the scores, so that about as many rows pass as were asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.frame import project, quantise
from decoder.kernels.partition import combine, draw, sample_seen, state_seed, sum_seen
from decoder.kernels.score import finish_logits, score_rows
from decoder.kernels.walk import DRAWS_MOST, best_first, estimate_error
from index.kernels.intrinsics import prefetch
from index.kernels.scan import sift_down
from index.kernels.vector_dots import code_dot_8, four_code_dots

BLOCK = 1024
SAMPLE = 2048
AHEAD = 12


@njit(cache=True, nogil=True)
def nth_smallest(values: Any, count: Any, n: Any) -> Any:
    """The n-th smallest (from 0) of values[:count], whose order changes (Hoare's selection)."""
    low = 0
    high = count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i = low
        j = high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if n <= j:
            high = j
        elif n >= i:
            low = i
        else:
            break
    return values[n]


@njit(cache=True, nogil=True)
def threshold(values: Any, count: Any, wanted: Any, sample: Any) -> Any:
    """A bound that about `wanted` of values[:count] do not exceed, from at most SAMPLE of them. sample: float32, scratch."""
    if wanted >= count:
        return np.float32(np.inf)
    step = max(1, count // SAMPLE)
    taken = min(count // step, SAMPLE)
    for j in range(taken):
        sample[j] = values[j * step]
    return nth_smallest(sample, taken, min(taken - 1, wanted * taken // count))


@njit(cache=True, nogil=True)
def lead_threshold(
    codes: Any, biases: Any, scales: Any, plane: Any, query_scale: Any, query_sum: Any, wanted: Any, sample: Any
) -> Any:
    """A bound that about `wanted` of all rows' leading distances do not exceed, from SAMPLE rows spread over all."""
    total, lead = codes.shape
    if wanted >= total:
        return np.float32(np.inf)
    twice = np.float32(2.0) * query_scale
    offset = np.float32(127.5) * query_sum
    step = max(1, total // SAMPLE)
    taken = min(total // step, SAMPLE)
    at = codes.ctypes.data
    plane_at = plane.ctypes.data
    for j in range(taken):
        ahead = at + np.int64(min(j + 2 * AHEAD, taken - 1) * step) * lead
        for t in range(0, lead, 64):
            prefetch(np.uintp(ahead + t))
        i = j * step
        dot = code_dot_8(at + np.int64(i) * lead, plane_at, lead)
        sample[j] = biases[i] - twice * scales[i] * (np.float32(dot) - offset)
    return nth_smallest(sample, taken, min(taken - 1, wanted * taken // total))


@njit(cache=True, nogil=True)
def _dots(codes_at: Any, wide_at: Any, lead: Any, count: Any, sums: Any) -> None:
    """sums[j] for `count` rows that follow each other; four at a time, so up to three more than that are read and written."""
    sums_at = sums.ctypes.data
    for j in range(0, count, 4):
        four_code_dots(codes_at + j * lead, wide_at, lead, sums_at + 4 * j)


@njit(cache=True, nogil=True)
def _passing(values: Any, first: Any, bound: Any, rows: Any, m: Any) -> Any:
    """Append first + j to rows[:m] for each value within the bound; returns the new m."""
    for j in range(values.shape[0]):
        rows[m] = first + j
        m += np.int64(values[j] <= bound)
    return m


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
        m = _passing(mine, first, bound, rows, m)
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
def keep_best(distances: Any, m: Any, rows: Any, keep: Any, who: Any, far: Any) -> Any:
    """The `keep` nearest of rows[:m] into who and far, nearest first; returns how many."""
    kept = min(keep, m)
    for j in range(kept):
        who[j] = rows[j]
        far[j] = distances[j]
    for place in range(kept // 2 - 1, -1, -1):
        sift_down(far, who, place, kept)
    for j in range(kept, m):
        if distances[j] < far[0]:
            far[0] = distances[j]
            who[0] = rows[j]
            sift_down(far, who, 0, kept)
    for last in range(kept - 1, 0, -1):
        far[0], far[last] = far[last], far[0]
        who[0], who[last] = who[last], who[0]
        sift_down(far, who, 0, last)
    return kept


@njit(cache=True, nogil=True)
def sample_above(values: Any, bound: Any, random: Any, who: Any, first: Any, last: Any) -> Any:
    """Fill who[first:last] with different rows whose value exceeds the bound; returns where it ended.

    values: of all rows; those drawn become minus infinity, so that none is drawn twice.
    """
    m = first
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
def divide(values: Any, rows: Any, m: Any, passing: Any, sample: Any, distances: Any, ordered: Any, band: Any) -> Any:
    """ordered[:p]: about `passing` of rows[:m] with the smallest values; ordered[p:m]: the others, band[:m - p] their values.

    Returns p. values: of all rows; distances float32, ordered int32 (>= m + 1,), band float32 (>= m,): the first is scratch.
    """
    for j in range(m):
        distances[j] = values[rows[j]]
    bound = threshold(distances, m, passing, sample)
    p = 0
    for j in range(m):
        ordered[p] = rows[j]
        p += np.int64(distances[j] <= bound)
    b = np.int64(0)
    for j in range(m):
        if distances[j] > bound:
            ordered[p + b] = rows[j]
            band[b] = distances[j]
            b += 1
    return p


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
    values, distances, masses float32 (V,), rows int32 (V + 1,): scratch.
    """
    total_rows, width = codes.shape
    lead = lead_codes.shape[1]
    moved = np.empty(mean.shape[0], np.float32)
    query = np.empty(width + 1, np.float32)
    plane = np.empty((1, width), np.int8)
    lead_plane = np.empty((1, lead), np.int8)
    wide = np.empty(lead, np.int16)
    sums = np.empty(BLOCK, np.int32)
    sample = np.empty(SAMPLE, np.float32)
    passed = np.empty(total_rows + 1, np.int32)
    band_values = np.empty(total_rows if band > 0 else 0, np.float32)
    far = np.empty(keep, np.float32)
    near = np.empty(keep, np.float32)
    times = np.empty(max(middle, 1), np.int32)
    exps = np.empty(who.shape[1], np.float64)
    for s in range(states.shape[0]):
        state = states[s]
        mine = who[s]
        logit = logits[s]
        weight_of = weights[s]
        for t in range(state.shape[0]):
            moved[t] = state[t] - mean[t]
        project(projection, projection_kind, moved, query)
        offset = query[width]
        query_scale, query_sum = quantise(query[:width], plane[0])
        lead_scale, lead_sum = quantise(query[:lead], lead_plane[0])
        outer = lead_threshold(
            lead_codes, lead_scalars[0], lead_scalars[1], lead_plane, lead_scale, lead_sum, passing + band, sample
        )
        m = scan_lead(
            lead_codes,
            lead_scalars[0],
            lead_scalars[1],
            lead_plane,
            lead_scale,
            lead_sum,
            outer,
            wide,
            sums,
            values,
            rows,
        )
        p = m
        if band > 0 and m > passing:
            p = divide(values, rows, m, passing, sample, distances, passed, band_values)
        else:
            passed[:m] = rows[:m]
        score_codes(codes, scalars, plane, query_scale, query_sum, passed, p, distances)
        known = keep_best(distances, p, passed, keep, mine, near)
        for j in range(known):
            weight_of[j] = 1.0
        score_rows(weight, kind, bias, state, mine, 0, known, logit)
        finish_logits(logit[:known], scale, softcap, logit[:known])
        spread = estimate_error(logit, near, offset, scale, softcap, known)
        count = known
        if middle > 0 or tail > 0:
            top = np.float32(-np.inf)
            for j in range(known):
                top = max(top, logit[j])
            total, squares = sum_seen(distances, p, near[known - 1], offset, scale, softcap, top, masses)
            random = state_seed(state, seed)
            sampled = 0
            drawn_from = 0.0
            if middle > 0:
                random, bits = draw(random)
                start = np.float64(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)
                drawn_from, _ = sum_seen(
                    band_values, m - p, np.float32(-np.inf), offset, scale, softcap, top, masses[p:]
                )
                begin = p
                if whole:
                    # All that was scored is drawn from: what passed by all its coordinates, the band by the leading ones.
                    begin = 0
                    drawn_from += total
                    total = squares = 0.0
                sampled = sample_seen(
                    passed[begin:], masses[begin:], m - begin, drawn_from, middle, start, mine[known:],
                    weight_of[known:], times,
                )  # fmt: skip
                count += sampled
            rest = total_rows - m
            first = count
            count = sample_above(values, outer, random, mine, first, first + min(tail, rest))
            for j in range(first, count):
                weight_of[j] = np.float64(rest) / (count - first)
            score_rows(weight, kind, bias, state, mine, known, count, logit)
            finish_logits(logit[known:count], scale, softcap, logit[known:count])
            log_z[s], error[s] = combine(
                logit[:count], weight_of[:count], known, sampled, times, total, squares, spread, drawn_from, middle,
                rest, exps,
            )  # fmt: skip
        best_first(mine, logit, known, far)
        exact[s] = known
        counts[s] = count
        scored[s] = total_rows
