"""A walk for each of many states, from the hidden state to sorted exact logits and log Z, without leaving compiled code.

walk_states    frame -> entry rows -> index.kernels.walk.walk_one on the codes -> exact logits of the best -> log Z

Not here: the arithmetic of each step (frame.py, score.py, partition.py) and of the walk itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.frame import into_frame, nearest_centroid
from decoder.kernels.partition import draw, mass_seen, sample_seen, state_seed, sum_up, uniform
from decoder.kernels.score import exact_logits
from decoder.kernels.select import best_first
from index.kernels.walk import visit, walk_one

DRAWS_MOST = 8
"""Attempts for each row of a uniform sample; a walk scores few of all rows, so that nearly every first one is new."""


@njit(cache=True, nogil=True)
def sample_unseen(
    visited: Any, mask: Any, mark: Any, total: Any, rest: Any, random: Any, who: Any, first: Any, last: Any
) -> Any:
    """Fill who[first:last] with different rows that no walk came by; returns where it ended.

    Rows: 0 to total - 1, of which no walk came by `rest`: all of these where there is room for so many.
    """
    m = first
    if last - first == rest:
        for row in range(total):
            if m == last:
                break
            if visit(visited, mask, mark, np.int32(row)):
                who[m] = row
                m += 1
        return m
    for _ in range(DRAWS_MOST * (last - first)):
        if m == last:
            break
        random, bits = draw(random)
        row = np.int32(((bits >> np.uint64(32)) * np.uint64(total)) >> np.uint64(32))
        if visit(visited, mask, mark, row):
            who[m] = row
            m += 1
    return m


@njit(cache=True, nogil=True)
def begin(warm: Any, place: Any, entries: Any) -> Any:
    """entries[:m]: the rows of `warm` int32 (any,), -1 for none, then those of `place` int32 (e,); returns m."""
    m = 0
    for e in range(warm.shape[0]):
        if warm[e] >= 0:
            entries[m] = warm[e]
            m += 1
    for e in range(place.shape[0]):
        entries[m] = place[e]
        m += 1
    return m


@njit(cache=True, nogil=True)
def walk_states(
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
    links: Any,
    centroids: Any,
    halves: Any,
    table: Any,
    states: Any,
    warm: Any,
    beam: Any,
    keep: Any,
    middle: Any,
    tail: Any,
    seed: Any,
    visited: Any,
    mark: Any,
    seen_rows: Any,
    seen_distances: Any,
    masses: Any,
    who: Any,
    logits: Any,
    weights: Any,
    exact: Any,
    counts: Any,
    log_z: Any,
    error: Any,
    scored: Any,
) -> Any:
    """Candidates and log Z of each state; returns the last mark used.

    weight, kind, bias, scale, softcap: the layer, as kernels/score.py takes it, the weight as bytes. mean: float32 (d,);
    projection: width + 1 rows as bytes, the last one the frame's centre, and its kind, see kernels/frame.py; codes uint8
    (V, width), scalars float32 (V, 2), links int32 (V, degree); centroids float32 (c, lead), halves float32 (c,), table
    int32 (c, e).
    states: float32 (n, d); warm: int32 (n, any), more rows to begin at, -1 for none; keep: rows that are reranked;
    middle, tail: rows rescored for log Z: of those scored, of all others; seed: uint64.
    visited: uint64 (2^x,), mark: the last one used; seen_rows int32, seen_distances float32, masses float32: as long.
    Filled: who int32, logits float32, weights float64 (n, keep + middle + tail): exact[i] rows, best first, whose weight
    is 1, then sampled ones up to counts[i]; log_z, error float64 (n,); scored int64 (n,): rows whose code was scored.
    A state that overflows float32 in the frame has no rows at all: exact[i] is 0.
    """
    width = codes.shape[1]
    wide = max(links.shape[1], table.shape[1] + warm.shape[1])
    moved = np.empty(mean.shape[0], np.float32)
    query = np.empty(width + 1, np.float32)
    plane = np.empty((1, width), np.int8)
    scores = np.empty(centroids.shape[0], np.float32)
    entries = np.empty(table.shape[1] + warm.shape[1], np.int32)
    rows = np.empty(beam, np.int32)
    distances = np.empty(beam, np.float32)
    expanded = np.empty(beam, np.bool_)
    fresh = np.empty(wide, np.int32)
    new_rows = np.empty(wide, np.int32)
    new = np.empty(wide, np.float32)
    values = np.empty(wide, np.float32)
    far = np.empty(keep, np.float32)
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
        m = begin(warm[s], table[nearest_centroid(centroids, halves, query, scores)], entries)
        mark += 1
        found, _, seen = walk_one(
            codes, scalars, 8, links, plane, query_scale, query_sum, entries[:m], visited, np.uint64(mark),
            rows, distances, expanded, fresh, new_rows, new, values, seen_rows, seen_distances,
        )  # fmt: skip
        known = min(keep, found)
        mine[:known] = rows[:known]
        weights[s, :known] = 1.0
        exact_logits(weight, kind, bias, scale, softcap, state, mine, 0, known, logit)
        exact[s] = counts[s] = known
        scored[s] = seen
        if known > 0 and (middle > 0 or tail > 0):
            counts[s], log_z[s], error[s] = _log_z(
                weight, kind, bias, scale, softcap, state, query[width], rows, distances, known, seen_rows,
                seen_distances, seen, visited, np.uint64(mark), codes.shape[0], middle, tail, state_seed(state, seed),
                masses, times, exps, mine, logit, weights[s],
            )  # fmt: skip
        best_first(mine, logit, known, far)
    return mark


@njit(cache=True, nogil=True)
def _log_z(
    weight: Any, kind: Any, bias: Any, scale: Any, softcap: Any, state: Any, offset: Any, rows: Any, distances: Any,
    known: Any, seen_rows: Any, seen_distances: Any, seen: Any, visited: Any, mark: Any, total_rows: Any, middle: Any,
    tail: Any, random: Any, masses: Any, times: Any, exps: Any, who: Any, logit: Any, weight_of: Any,
) -> Any:  # fmt: skip
    """(rows in who, log Z, its standard error), after `known` rows of one walk were reranked; the sampled rows are added."""
    _, spread, total, squares = mass_seen(
        logit, who, distances, known, seen_rows, seen_distances, seen, offset, scale, softcap, masses
    )
    sampled = 0
    drawn_from = 0.0
    if middle > 0:
        # What is sampled in proportion to its estimate counts by the sample; else the estimates count as they are.
        random, start = uniform(random)
        drawn_from = total
        total = squares = 0.0
        sampled = sample_seen(seen_rows, masses, seen, drawn_from, middle, start, who[known:], weight_of[known:], times)
    first = known + sampled
    rest = total_rows - seen
    mask = np.uint32(visited.shape[0] - 1)
    count = sample_unseen(visited, mask, mark, total_rows, rest, random, who, first, first + min(tail, rest))
    exact_logits(weight, kind, bias, scale, softcap, state, who, known, count, logit)
    log_z, error = sum_up(
        logit[:count], weight_of[:count], known, sampled, times, total, squares, spread, drawn_from, middle, rest, exps
    )
    return count, log_z, error
