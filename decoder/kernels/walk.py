"""A walk for each of many states, from the hidden state to sorted exact logits and log Z, without leaving compiled code.

walk_states    frame -> entry rows -> index.kernels.walk.walk_one on the codes -> exact logits of the best -> log Z

Not here: the arithmetic of each step (frame.py, score.py, partition.py) and of the walk itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.frame import nearest_centroid, project, quantise
from decoder.kernels.partition import combine, draw, sample_seen, state_seed, sum_seen
from decoder.kernels.score import finish_logits, score_rows
from index.kernels.scan import sift_down
from index.kernels.walk import visit, walk_one

DRAWS_MOST = 8
"""Attempts for each row of a uniform sample; a walk scores few of all rows, so that nearly every first one is new."""


@njit(cache=True, nogil=True)
def best_first(who: Any, logits: Any, count: Any, far: Any) -> None:
    """Sort who[:count] and logits[:count]: larger logits first, of equals lower ids. far: float32 (>= count,), scratch."""
    for j in range(count):
        far[j] = -logits[j]
    for at in range(count // 2 - 1, -1, -1):
        sift_down(far, who, at, count)
    for last in range(count - 1, 0, -1):
        far[0], far[last] = far[last], far[0]
        who[0], who[last] = who[last], who[0]
        sift_down(far, who, 0, last)
    for j in range(count):
        logits[j] = -far[j]


@njit(cache=True, nogil=True)
def estimate_error(logits: Any, distances: Any, offset: Any, scale: Any, softcap: Any, count: Any) -> Any:
    """Standard deviation of exact over estimated mass, from `count` rows of which both are known."""
    spread = 0.0
    for j in range(count):
        estimate = np.float64(np.float32(-0.5) * distances[j] + offset) * scale
        if softcap != np.float32(0.0):
            estimate = softcap * np.tanh(estimate / softcap)
        spread += (np.exp(min(np.float64(logits[j]) - estimate, 20.0)) - 1.0) ** 2
    return np.sqrt(spread / max(count, 1))


@njit(cache=True, nogil=True)
def sample_unseen(visited: Any, mask: Any, mark: Any, total: Any, random: Any, who: Any, first: Any, last: Any) -> Any:
    """Fill who[first:last] with different rows that no walk came by; returns where it ended. Rows: 0 to total - 1."""
    m = first
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

    weight, kind, bias, scale, softcap: the layer, as kernels/score.py takes it. mean: float32 (d,); projection:
    (width + 1, d), the last row the frame's centre, and its kind, see kernels/frame.py; codes uint8 (V, width), scalars
    float32 (V, 2), links int32 (V, degree); centroids float32 (c, lead), halves float32 (c,), table int32 (c, e).
    states: float32 (n, d); warm: int32 (n, any), more rows to begin at, -1 for none; keep: rows that are reranked;
    middle, tail: rows rescored for log Z: of those scored, of all others; seed: uint64.
    visited: uint64 (2^x,), mark: the last one used; seen_rows int32, seen_distances float32, masses float32: as long.
    Filled: who int32, logits float32, weights float64 (n, keep + middle + tail): exact[i] rows, best first, whose weight
    is 1, then sampled ones up to counts[i]; log_z, error float64 (n,); scored int64 (n,): rows whose code was scored.
    """
    width = codes.shape[1]
    degree = links.shape[1]
    mask = np.uint32(visited.shape[0] - 1)
    wide = max(degree, table.shape[1] + warm.shape[1])
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
        for t in range(state.shape[0]):
            moved[t] = state[t] - mean[t]
        project(projection, projection_kind, moved, query)
        offset = query[width]
        query_scale, query_sum = quantise(query[:width], plane[0])
        place = nearest_centroid(centroids, halves, query, scores)
        m = 0
        for e in range(warm.shape[1]):
            if warm[s, e] >= 0:
                entries[m] = warm[s, e]
                m += 1
        for e in range(table.shape[1]):
            entries[m] = table[place, e]
            m += 1
        mark += 1
        found, _, seen = walk_one(
            codes, scalars, 8, links, plane, query_scale, query_sum, entries[:m], visited, np.uint64(mark),
            rows, distances, expanded, fresh, new_rows, new, values, seen_rows, seen_distances,
        )  # fmt: skip
        known = min(keep, found)
        mine = who[s]
        logit = logits[s]
        weight_of = weights[s]
        for j in range(known):
            mine[j] = rows[j]
            weight_of[j] = 1.0
        score_rows(weight, kind, bias, state, mine, 0, known, logit)
        finish_logits(logit[:known], scale, softcap, logit[:known])
        count = known
        sampled = 0
        total = 0.0
        squares = 0.0
        spread = estimate_error(logit, distances, offset, scale, softcap, known)
        random = state_seed(state, seed)
        if middle > 0 or tail > 0:
            top = np.float32(-np.inf)
            for j in range(known):
                top = max(top, logit[j])
            limit = distances[known - 1]
            total, squares = sum_seen(seen_distances, seen, limit, offset, scale, softcap, top, masses)
            if middle > 0:
                random, bits = draw(random)
                start = np.float64(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)
                sampled = sample_seen(
                    seen_rows, masses, seen, total, middle, start, mine[known:], weight_of[known:], times
                )
                count += sampled
            rest = codes.shape[0] - seen
            first = count
            count = sample_unseen(
                visited, mask, np.uint64(mark), codes.shape[0], random, mine, first, first + min(tail, rest)
            )
            for j in range(first, count):
                weight_of[j] = np.float64(rest) / (count - first)
            score_rows(weight, kind, bias, state, mine, known, count, logit)
            finish_logits(logit[known:count], scale, softcap, logit[known:count])
            # What was sampled in proportion to its estimate counts by the sample, else the estimates count as they are.
            drawn_from = total if middle > 0 else 0.0
            if middle > 0:
                total = squares = 0.0
            log_z[s], error[s] = combine(
                logit[:count], weight_of[:count], known, sampled, times, total, squares, spread, drawn_from, middle,
                rest, exps,
            )  # fmt: skip
        best_first(mine, logit, known, far)
        exact[s] = known
        counts[s] = count
        scored[s] = seen
    return mark
