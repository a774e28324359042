"""Slow twins of screen.py: the same names and signatures, written to be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.kernels.reference import exact_logits
from decoder.kernels.reference_frame import into_frame, quantise
from decoder.kernels.reference_partition import draw, mass_seen, sample_seen, state_seed, sum_seen, sum_up, uniform
from decoder.kernels.reference_select import best_first, divide, keep_best, passing_rows, spread
from decoder.kernels.walk import DRAWS_MOST


def distances_of(codes: Any, added: Any, scales: Any, levels: Any, query_scale: Any, query_sum: Any) -> Any:
    """-2 (estimated logit) of every row, float32."""
    dots = codes.astype(np.int64) @ levels.astype(np.int64)
    return added - np.float32(2.0) * query_scale * scales * (dots.astype(np.float32) - np.float32(127.5) * query_sum)


def lead_threshold(
    codes: Any, biases: Any, scales: Any, plane: Any, query_scale: Any, query_sum: Any, wanted: Any, sample: Any
) -> Any:
    """The bound that the wanted share of a sample of rows does not exceed."""
    total = len(codes)
    if wanted >= total:
        return np.float32(np.inf)
    some = spread(total)
    far = distances_of(codes[some], biases[some], scales[some], plane[0], query_scale, query_sum)
    return np.sort(far)[min(len(some) - 1, wanted * len(some) // total)]


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
    """Distances of all rows, and which are within the bound."""
    values[:] = distances_of(codes, biases, scales, plane[0], query_scale, query_sum)
    return passing_rows(values, 0, bound, rows, 0)


def score_codes(
    codes: Any, scalars: Any, plane: Any, query_scale: Any, query_sum: Any, rows: Any, m: Any, out: Any
) -> None:
    """Distances of some rows."""
    some = rows[:m]
    out[:m] = distances_of(codes[some], scalars[some, 0], scalars[some, 1], plane[0], query_scale, query_sum)


def sample_above(values: Any, bound: Any, rest: Any, random: Any, who: Any, first: Any, last: Any) -> Any:
    """Different rows above the bound: all of them, or as random numbers hit them."""
    above = [int(row) for row in np.flatnonzero(values > bound)]
    if last - first == rest:
        who[first:last] = above
        return last
    chosen: list[int] = []
    waiting = set(above)
    for _ in range(DRAWS_MOST * (last - first)):
        if len(chosen) == last - first:
            break
        random, bits = draw(random)
        row = ((int(bits) >> 32) * len(values)) >> 32
        if row in waiting:
            waiting.remove(row)
            chosen.append(row)
    who[first : first + len(chosen)] = chosen
    return first + len(chosen)


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
    """All rows by their leading coordinates, then fewer and fewer, ever more exactly; then log Z."""
    V, width = codes.shape
    stored = typed(weight, states.shape[1])
    for s, state in enumerate(states):
        query, levels = np.empty(width + 1, np.float32), np.empty(width, np.int8)
        moved = np.empty(len(mean), np.float32)
        query_scale, query_sum, usable = into_frame(state, mean, projection, projection_kind, moved, query, levels)
        exact[s] = counts[s] = scored[s] = 0
        if not usable:
            continue
        lead_levels = np.empty(lead_codes.shape[1], np.int8)
        lead_scale, lead_sum = quantise(query[: len(lead_levels)], lead_levels)
        values[:] = distances_of(lead_codes, *lead_scalars, lead_levels, lead_scale, lead_sum)
        bound = np.inf
        if passing + band < V:
            some = np.sort(values[spread(V)])
            bound = some[min(len(some) - 1, (passing + band) * len(some) // V)]
        if np.count_nonzero(values <= bound) < min(keep, V):
            bound = np.sort(values)[min(keep, V) - 1]
        m = passing_rows(values, 0, bound, rows, 0)
        passed, band_values = np.empty(m + 1, np.int32), np.empty(m, np.float32)
        p = m
        passed[:m] = rows[:m]
        if band and m > passing:
            p = divide(values, rows, m, passing, min(keep, m), None, distances, passed, band_values)
        score_codes(codes, scalars, levels[None], query_scale, query_sum, passed, p, distances)
        near = np.empty(keep, np.float32)
        known = keep_best(distances, p, passed, keep, who[s], near)
        weights[s, :known] = 1.0
        exact_logits(stored, kind, bias, scale, softcap, state, who[s], 0, known, logits[s])
        exact[s], counts[s], scored[s] = known, known, V
        if middle or tail:
            layer = stored, kind, bias, scale, softcap
            seen = passed, distances, p, band_values, m, values, bound
            effort = middle, tail, whole, state_seed(state, seed)
            counts[s], log_z[s], error[s] = _log_z(
                layer, state, query[width], near, known, seen, effort, masses, who[s], logits[s], weights[s]
            )
        best_first(who[s], logits[s], known, None)


def typed(weight: Any, dim: Any) -> Any:
    """Bytes as what score_rows() takes, by their number."""
    return weight.view(np.float32 if weight.shape[1] == 4 * dim else np.uint16) if weight.dtype == np.uint8 else weight


def _log_z(
    layer: Any, state: Any, offset: Any, near: Any, known: Any, seen: Any, effort: Any, masses: Any, who: Any,
    logit: Any, weight_of: Any,
) -> Any:  # fmt: skip
    *_, scale, softcap = layer
    passed, distances, p, band_values, m, values, bound = seen
    middle, tail, whole, random = effort
    top, spread_of, total, squares = mass_seen(
        logit, who, near, known, passed, distances, p, offset, scale, softcap, masses
    )
    times, sampled, drawn_from = np.empty(max(middle, 1), np.int32), 0, 0.0
    if middle:
        random, start = uniform(random)
        drawn_from, _ = sum_seen(band_values, m - p, -np.inf, offset, scale, softcap, top, masses[p:])
        begin = p
        if whole:
            begin, drawn_from, total, squares = 0, drawn_from + total, 0.0, 0.0
        sampled = sample_seen(
            passed[begin:], masses[begin:], m - begin, drawn_from, middle, start, who[known:], weight_of[known:], times
        )
    first, rest = known + sampled, len(values) - m
    count = sample_above(values, bound, rest, random, who, first, first + min(tail, rest))
    z, error = sum_up(
        *layer, state, who, logit, weight_of, known, sampled, count, times, total, squares, spread_of, drawn_from, middle,
        rest, np.empty(count),
    )  # fmt: skip
    return count, z, error
