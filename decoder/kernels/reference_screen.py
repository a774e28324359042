"""Slow twins of screen.py: the same names and signatures, written to be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.kernels.partition import HIGHEST
from decoder.kernels.reference import exact_logits, exp_roughly, finish_one
from decoder.kernels.reference_frame import into_frame, quantise
from decoder.kernels.reference_partition import mass_seen, sample_seen, state_seed, sum_up, uniform
from decoder.kernels.reference_select import best_first, keep_best, passing_rows, threshold
from decoder.kernels.screen import BLOCK, GROUPS, OF_EACH
from decoder.preview import LEAD_MIDDLE, MIDDLE


def distances_of(
    codes: Any, added: Any, scales: Any, levels: Any, query_scale: Any, query_sum: Any, middle: Any = MIDDLE
) -> Any:
    """-2 (estimated logit) of every row, float32."""
    dots = codes.astype(np.int64) @ levels.astype(np.int64)
    return added - np.float32(2.0) * query_scale * scales * (dots.astype(np.float32) - np.float32(middle) * query_sum)


def lead_distances(codes: Any, added: Any, scales: Any, levels: Any, query_scale: Any, query_sum: Any) -> Any:
    """The same by leading codes: a byte's low half, then its high half."""
    halves = np.concatenate([codes & 15, codes >> 4], axis=1)
    return distances_of(halves, added, scales, levels, query_scale, query_sum, LEAD_MIDDLE)


def scan_lead(
    codes: Any, biases: Any, scales: Any, plane: Any, query_scale: Any, query_sum: Any, sums: Any, values: Any
) -> None:
    """Distances of all rows."""
    values[:] = lead_distances(codes, biases, scales, plane[0], query_scale, query_sum)


def score_codes(
    codes: Any, scalars: Any, plane: Any, query_scale: Any, query_sum: Any, rows: Any, m: Any, out: Any
) -> None:
    """Distances of some rows."""
    some = rows[:m]
    out[:m] = distances_of(codes[some], scalars[some, 0], scalars[some, 1], plane[0], query_scale, query_sum)


def masses_above(values: Any, bound: Any, offset: Any, scale: Any, softcap: Any, top: Any) -> None:
    """In place: about exp(estimated logit - top), 0 where the distance is within the bound."""
    for j, distance in enumerate(values):
        logit = finish_one(np.float32(-0.5) * distance + offset, scale, softcap)
        values[j] = exp_roughly(min(logit - top, HIGHEST)) if distance > bound else 0.0


def rows_in_order(count: Any) -> Any:
    """All rows, group after group."""
    rows = np.arange(-(-count // BLOCK) * BLOCK, dtype=np.int32).reshape(-1, OF_EACH, GROUPS)
    rows = rows.transpose(0, 2, 1).ravel()
    return rows[rows < count]


def sum_groups(masses: Any, sums: Any) -> Any:
    """Sums of groups of rows, and of all."""
    padded = np.zeros(len(sums) * OF_EACH)
    padded[: len(masses)] = masses
    sums[:] = padded.reshape(-1, OF_EACH, GROUPS).sum(axis=1).ravel()
    return sums.sum(dtype=np.float64)


def draw_rows(masses: Any, sums: Any, total: Any, draws: Any, start: Any, who: Any, weights: Any, times: Any) -> Any:
    """As sample_seen() draws from all rows."""
    rows = rows_in_order(len(masses))
    return sample_seen(rows, masses[rows], len(rows), total, draws, start, who, weights, times)


def rows_of_mass(masses: Any, who: Any, first: Any) -> Any:
    """All rows whose mass is above 0."""
    rows = np.flatnonzero(masses > 0)
    who[first : first + len(rows)] = rows
    return first + len(rows)


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
        lead_levels = np.zeros(2 * lead_codes.shape[1], np.int8)
        lead = min(width, len(lead_levels))
        lead_scale, lead_sum = quantise(query[:lead], lead_levels[:lead])
        values[:] = lead_distances(lead_codes, *lead_scalars, lead_levels, lead_scale, lead_sum)
        bound = threshold(values, passing, None)
        if np.count_nonzero(values <= bound) < min(keep, V):
            bound = np.sort(values)[min(keep, V) - 1]
        m = passing_rows(values, bound, rows)
        score_codes(codes, scalars, levels[None], query_scale, query_sum, rows, m, distances)
        near = np.empty(keep, np.float32)
        known = keep_best(distances, m, rows, keep, who[s], near)
        weights[s, :known] = 1.0
        exact_logits(stored, kind, bias, scale, softcap, state, who[s], 0, known, logits[s])
        exact[s], counts[s], scored[s] = known, known, V
        if draws:
            layer = stored, kind, bias, scale, softcap
            seen = rows, distances, m, values, bound
            effort = draws, whole, state_seed(state, seed)
            counts[s], log_z[s], error[s] = _log_z(
                layer,
                (codes, scalars, levels, query_scale, query_sum),
                state,
                query[width],
                near,
                known,
                seen,
                effort,
                masses,
                who[s],
                logits[s],
                weights[s],
            )
        best_first(who[s], logits[s], known, None)


def typed(weight: Any, dim: Any) -> Any:
    """Bytes as what score_rows() takes, by their number."""
    return weight.view(np.float32 if weight.shape[1] == 4 * dim else np.uint16) if weight.dtype == np.uint8 else weight


def _log_z(
    layer: Any, estimates: Any, state: Any, offset: Any, near: Any, known: Any, seen: Any, effort: Any, masses: Any,
    who: Any, logit: Any, weight_of: Any,
) -> Any:  # fmt: skip
    *_, scale, softcap = layer
    passed, distances, m, values, bound = seen
    draws, whole, random = effort
    top, spread_of, total, squares = mass_seen(
        logit, who, near, known, passed, distances, m, offset, scale, softcap, masses
    )
    masses_above(values, bound, offset, scale, softcap, top)
    if whole:
        values[passed[:m]] = masses[:m]
        total = squares = 0.0
    rest = len(values) - (known if whole else m)
    times, sampled, drawn_from = np.empty(max(draws, 1), np.int32), 0, 0.0
    if rest <= draws:
        count = rows_of_mass(values, who, known)
        rest = count - known
    else:
        random, start = uniform(random)
        sums = np.empty(-(-len(values) // BLOCK) * GROUPS, np.float32)
        drawn_from = sum_groups(values, sums)
        sampled = draw_rows(values, sums, drawn_from, draws, start, who[known:], weight_of[known:], times)
        count = known + sampled
    codes, scalars, levels, query_scale, query_sum = estimates
    if not sampled or whole or codes.shape[1] < len(state):
        exact_logits(*layer, state, who, known, count, logit)
    else:
        far = np.empty(sampled, np.float32)
        score_codes(codes, scalars, levels[None], query_scale, query_sum, who[known:], sampled, far)
        logit[known:count] = [finish_one(np.float32(-0.5) * distance + offset, scale, softcap) for distance in far]
    z, error = sum_up(
        logit[:count], weight_of[:count], known, sampled, times, total, squares, spread_of, drawn_from, draws, rest,
        np.empty(count),
    )  # fmt: skip
    return count, z, error
