"""Slow twins of walk.py: the same names and signatures, written to be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.kernels.reference import exact_logits
from decoder.kernels.reference_frame import into_frame, nearest_centroid
from decoder.kernels.reference_partition import draw, mass_seen, sample_seen, state_seed, sum_up, uniform
from decoder.kernels.reference_screen import distances_of, typed
from decoder.kernels.reference_select import best_first
from decoder.kernels.walk import DRAWS_MOST


def sample_unseen(
    visited: Any, mask: Any, mark: Any, total: Any, rest: Any, random: Any, who: Any, first: Any, last: Any
) -> Any:
    """Different rows that are not marked in the table: all of them, or as random numbers hit them."""
    slots = [int(held) for held in visited]
    waiting = set(range(total)) - {held & 0xFFFFFFFF for held in slots if held >> 32 == int(mark)}
    chosen: list[int] = []
    if last - first == rest:
        chosen = sorted(waiting)
    else:
        for _ in range(DRAWS_MOST * (last - first)):
            if len(chosen) == last - first:
                break
            random, bits = draw(random)
            row = ((int(bits) >> 32) * total) >> 32
            if row in waiting:
                waiting.remove(row)
                chosen.append(row)
    who[first : first + len(chosen)] = chosen
    return first + len(chosen)


def begin(warm: Any, place: Any, entries: Any) -> Any:
    """The rows of both, those of `warm` first."""
    both = [*warm[warm >= 0], *place]
    entries[: len(both)] = both
    return len(both)


def walked(far: Any, links: Any, entries: Any, beam: Any, room: Any) -> tuple[list[int], list[int]]:
    """A beam walk with a Python set: (the beam, nearest first; every row that was scored, in order)."""
    seen: list[int] = []
    expanded: set[int] = set()
    best: list[int] = []
    fresh = list(dict.fromkeys(int(entry) for entry in entries))
    while True:
        seen += fresh
        best = sorted(best + fresh, key=lambda i: float(far[i]))[:beam]
        waiting = [i for i in best if i not in expanded]
        if not waiting or len(seen) > room:
            return best, seen
        expanded.add(waiting[0])
        mine = links[waiting[0]].tolist()
        mine = mine[: mine.index(-1)] if -1 in mine else mine
        there = set(seen)
        fresh = [i for i in dict.fromkeys(mine) if i not in there]


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
    """All distances at once, a walk over them, exact logits of the best, then log Z."""
    V, width = codes.shape
    stored = typed(weight, states.shape[1])
    room = len(visited) // 4 * 3 - links.shape[1]
    for s, state in enumerate(states):
        query, levels = np.empty(width + 1, np.float32), np.empty(width, np.int8)
        moved = np.empty(len(mean), np.float32)
        query_scale, query_sum, usable = into_frame(state, mean, projection, projection_kind, moved, query, levels)
        exact[s] = counts[s] = scored[s] = 0
        if not usable:
            continue
        mark += 1
        place = nearest_centroid(centroids, halves, query, np.empty(len(centroids)))
        entries = np.empty(table.shape[1] + warm.shape[1], np.int32)
        m = begin(warm[s], table[place], entries)
        far = distances_of(codes, *scalars.T, levels, query_scale, query_sum)
        best, seen = walked(far, links, entries[:m], beam, room)
        known = min(keep, len(best))
        who[s, :known], weights[s, :known] = best[:known], 1.0
        exact_logits(stored, kind, bias, scale, softcap, state, who[s], 0, known, logits[s])
        exact[s], counts[s], scored[s] = known, known, len(seen)
        if middle or tail:
            layer = stored, kind, bias, scale, softcap
            around = query[width], far[best], known, np.array(seen, np.int32), far[seen]
            effort = V, middle, tail, state_seed(state, seed)
            counts[s], log_z[s], error[s] = _log_z(layer, state, around, effort, who[s], logits[s], weights[s])
        best_first(who[s], logits[s], known, None)
    return mark


def _log_z(layer: Any, state: Any, around: Any, effort: Any, who: Any, logit: Any, weight_of: Any) -> Any:
    *_, scale, softcap = layer
    offset, near, known, seen, far = around
    V, middle, tail, random = effort
    masses = np.empty(len(seen), np.float32)
    _, spread, total, squares = mass_seen(logit, who, near, known, seen, far, len(seen), offset, scale, softcap, masses)
    times, sampled, drawn_from = np.empty(max(middle, 1), np.int32), 0, 0.0
    if middle:
        random, start = uniform(random)
        drawn_from, total, squares = total, 0.0, 0.0
        sampled = sample_seen(seen, masses, len(seen), drawn_from, middle, start, who[known:], weight_of[known:], times)
    first, rest = known + sampled, V - len(seen)
    table = (np.uint64(1) << np.uint64(32)) | seen.astype(np.uint64)
    count = sample_unseen(table, None, 1, V, rest, random, who, first, first + min(tail, rest))
    exact_logits(*layer, state, who, known, count, logit)
    z, error = sum_up(
        logit[:count], weight_of[:count], known, sampled, times, total, squares, spread, drawn_from, middle, rest,
        np.empty(count),
    )  # fmt: skip
    return count, z, error
