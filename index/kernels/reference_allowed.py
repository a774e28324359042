"""Slow twins of kernels/allowed.py: see reference.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from index.kernels import reference


def _nearest(far: Any, nodes: Any, distances: Any, rows: Any) -> int:
    """The nearest nodes, of equals the lower one, into distances and rows; returns how many."""
    best = np.lexsort((nodes, far))[: len(distances)]
    distances[: len(best)], rows[: len(best)] = far[best], nodes[best]
    return len(best)


def scan_nodes(
    codes: Any,
    scalars: Any,
    bits: Any,
    nodes: Any,
    queries: Any,
    query_scales: Any,
    query_sums: Any,
    rows: Any,
    distances: Any,
) -> None:
    """The nearest of the listed nodes by their codes."""
    for q in range(len(queries)):
        far = reference._estimates(codes, scalars, bits, queries[q], query_scales[q], query_sums[q])
        _nearest(far[nodes], nodes, distances[q], rows[q])


def _visited(starts: Any, nodes: Any, lists: Any, bases: Any, wanted: Any) -> tuple[Any, Any, int]:
    """Listed nodes of the lists in turn, until `wanted` were met; the base of each; how many lists."""
    met: list[int] = []
    base: list[float] = []
    hops = 0
    for at, own in zip(lists.tolist(), bases.tolist()):
        if len(met) >= wanted:
            break
        hops += 1
        mine = nodes[starts[at] : starts[at + 1]].tolist()
        met += mine
        base += [own] * len(mine)
    return np.array(met, np.int32), np.array(base, np.float32), hops


def scan_allowed_lists(
    codes: Any,
    scalars: Any,
    bits: Any,
    nodes: Any,
    starts: Any,
    lists: Any,
    bases: Any,
    wanted: Any,
    queries: Any,
    query_scales: Any,
    query_sums: Any,
    rows: Any,
    distances: Any,
    counts: Any,
    hops: Any,
    scored: Any,
) -> None:
    """The nearest listed nodes of the lists visited."""
    for q in range(len(queries)):
        met, base, hops[q] = _visited(starts, nodes, lists[q], bases[q], wanted)
        far = reference._estimates(codes, scalars, bits, queries[q], query_scales[q], query_sums[q])
        scored[q] = len(met)
        counts[q] = _nearest(far[met] + base, met, distances[q], rows[q])


def scan_allowed_pq(
    codes: Any,
    scalars: Any,
    codebooks: Any,
    nodes: Any,
    starts: Any,
    lists: Any,
    bases: Any,
    wanted: Any,
    queries: Any,
    table: Any,
    rows: Any,
    distances: Any,
    counts: Any,
    hops: Any,
    scored: Any,
) -> None:
    """The same with what the codes stand for written out."""
    for q in range(len(queries)):
        met, base, hops[q] = _visited(starts, nodes, lists[q], bases[q], wanted)
        stands_for = np.concatenate([book[:, codes[met, part]].T for part, book in enumerate(codebooks)], axis=1)
        far = base + scalars[met, 0] - 2 * stands_for @ queries[q]
        scored[q] = len(met)
        counts[q] = _nearest(far.astype(np.float32), met, distances[q], rows[q])


def keep_allowed(nodes: Any, distances: Any, counts: Any, allowed: Any, most: Any, wanted: Any, reached: Any) -> None:
    """The first `most` candidates that are allowed."""
    for q in range(len(nodes)):
        kept = np.flatnonzero(allowed[nodes[q, : counts[q]]])[:most]
        reached[q] = kept[wanted - 1] + 1 if len(kept) >= wanted else -1
        counts[q] = len(kept)
        nodes[q, : len(kept)], distances[q, : len(kept)] = nodes[q, kept], distances[q, kept]


def list_allowed_places(
    nodes: Any, chosen: Any, group_nodes: Any, group_extra: Any, allowed: Any, k: Any, page_rows: Any, offsets: Any
) -> Any:
    """The places of the first k allowed copies of each chosen node, each place once a query, ascending."""
    places: list[int] = []
    for q in range(len(nodes)):
        offsets[q] = len(places)
        mine: set[int] = set()
        for node in nodes[q, : chosen[q]].tolist():
            first = reference.first_row(node, group_nodes, group_extra)
            rows = [first + i for i in range(reference.copies(node, group_nodes, group_extra)) if allowed[first + i]]
            mine.update(row // page_rows for row in rows[:k])
        places.extend(sorted(mine))
    offsets[len(nodes)] = len(places)
    return np.array(places, np.int64)


def keep_allowed_rows(query_of: Any, rows: Any, starts: Any, count: Any, allowed: Any, scored: Any) -> Any:
    """The rows that are allowed, in front."""
    kept = np.flatnonzero(allowed[rows[:count]])
    for array in (query_of, rows, starts):
        array[: len(kept)] = array[kept]
    scored[:] = np.bincount(query_of[: len(kept)], minlength=len(scored))
    return len(kept)


def chance_below(distance: Any, limit: Any, deviation: Any) -> Any:
    """The normal distribution's share below the limit; five deviations above it none."""
    if deviation <= 0:
        return float(distance < limit)
    z = (float(limit) - float(distance)) / float(deviation)
    return 0.0 if z < -5 else 0.5 * (1 + math.erf(z / math.sqrt(2)))


def expected_beyond(dense: Any, distance: Any, limit: Any, deviation: Any) -> Any:
    """The sum of `chance_below` over estimates from `distance` on, `dense` in each deviation: here a sum of small steps."""
    if float(distance) - float(limit) > 5 * float(deviation):
        return 0.0
    steps = (np.arange(30_000) + 0.5) * 1e-3
    return dense * 1e-3 * sum(chance_below(distance + step * deviation, limit, deviation) for step in steps)


def missed_ends(
    nodes: Any,
    distances: Any,
    counts: Any,
    horizons: Any,
    read: Any,
    chosen: Any,
    scalars: Any,
    deviations: Any,
    limits: Any,
    miss: Any,
    ends: Any,
) -> None:
    """Where the expected number of rows missed, summed from the last candidate on, goes beyond `miss`."""
    for q in range(len(nodes)):
        mine, far = nodes[q, : counts[q]], distances[q, : counts[q]]
        errors = deviations[q] * scalars[mine, 1]
        done = set(read[q, : chosen[q]].tolist())
        tail, ends[q] = 0.0, 0
        if np.isfinite(horizons[q]) and len(mine) and errors[-1] > 0:
            dense = 1.0 + np.count_nonzero(far > horizons[q] - errors[-1])
            tail = expected_beyond(dense, horizons[q], limits[q], errors[-1])
        if tail > miss:
            ends[q] = -1
            continue
        for j in reversed(range(len(mine))):
            if int(mine[j]) not in done:
                tail += chance_below(far[j], limits[q], errors[j])
            if tail > miss:
                ends[q] = j + 1
                break
