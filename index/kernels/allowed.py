"""Searching among some rows only: the codes of listed nodes scored, and what is not allowed left out.

scan_nodes           the codes of listed nodes, the best kept
scan_allowed_lists   of an ivf: the listed nodes of the nearest lists, until enough of them were seen
scan_allowed_pq      the same for codes of a product quantiser
keep_allowed         candidates that are not allowed dropped
list_allowed_places  where the first allowed copies of nodes are
keep_allowed_rows    rows of pages that were read, those not allowed dropped
missed_ends          how far down the candidates rows are expected that belong among the k best
Listed nodes lie anywhere, so their codes are asked for ahead, as in a walk.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from index.kernels.choose import copies, first_row
from index.kernels.lists import fill_tables, offer_all, sort_heap
from index.kernels.walk import score_rows

AT_ONCE = 256
"""Nodes scored before any is looked at, and for all queries before the next: their codes stay in the cache."""


@njit(cache=True, nogil=True)
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
    """For each query the nearest of `nodes` by their codes, nearest first, of equals the lower one.

    codes: uint8 (n, stride); scalars: float32 (n, 2); nodes: int32 (c,), ascending; queries: int8 (m, 8 / bits, stride);
    rows: int32 (m, keep) and distances: float32 (m, keep) with keep <= c, filled in full.
    """
    values = np.empty(AT_ONCE, np.float32)
    middle = np.float32(((1 << bits) - 1) * 0.5)
    held = 0
    for start in range(0, nodes.shape[0], AT_ONCE):
        end = min(start + AT_ONCE, nodes.shape[0])
        some = nodes[start:end]
        count = held
        for q in range(queries.shape[0]):
            twice = np.float32(2.0) * query_scales[q]
            score_rows(codes, scalars, bits, some, end - start, queries[q], twice, middle * query_sums[q], values)
            count = offer_all(values, start, end, distances[q], rows[q], held)
        held = count
    for q in range(queries.shape[0]):
        sort_heap(distances[q], rows[q], held)
        for j in range(held):
            rows[q, j] = nodes[rows[q, j]]


@njit(cache=True, nogil=True)
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
    """For each query the nearest listed nodes of its lists by their codes, nearest first, of equals the lower one.

    Lists are visited in their order until `wanted` nodes were scored. nodes: int32 (c,), ascending; list l has
    nodes[starts[l] : starts[l + 1]], int64 (l + 1,); hops: int64 (m,), lists visited. Others as in `scan_lists`.
    """
    values = np.empty(AT_ONCE, np.float32)
    middle = np.float32(((1 << bits) - 1) * 0.5)
    for q in range(queries.shape[0]):
        twice = np.float32(2.0) * query_scales[q]
        offset = middle * query_sums[q]
        count = 0
        seen = 0
        visited = 0
        for p in range(lists.shape[1]):
            if seen >= wanted:
                break
            visited += 1
            last = starts[lists[q, p] + 1]
            for start in range(starts[lists[q, p]], last, AT_ONCE):
                end = min(start + AT_ONCE, last)
                score_rows(codes, scalars, bits, nodes[start:end], end - start, queries[q], twice, offset, values)
                for e in range(end - start):
                    values[e] += bases[q, p]
                count = offer_all(values, start, end, distances[q], rows[q], count)
                seen += end - start
        _finish(distances[q], rows[q], count, nodes)
        counts[q], hops[q], scored[q] = count, visited, seen


@njit(cache=True, nogil=True)
def _finish(distances: Any, rows: Any, count: Any, nodes: Any) -> None:
    """A heap of places in `nodes` -> a list of nodes."""
    sort_heap(distances, rows, count)
    for j in range(count):
        rows[j] = nodes[rows[j]]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _table_distances(codes: Any, scalars: Any, table: Any, nodes: Any, base: Any, out: Any) -> None:
    for e in range(nodes.shape[0]):
        i = nodes[e]
        along = np.float32(0.0)
        for s in range(codes.shape[1]):
            along += table[s, codes[i, s]]
        out[e] = base + scalars[i, 0] - along


@njit(cache=True, nogil=True)
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
    """`scan_allowed_lists` for codes of a product quantiser: codes, codebooks, queries, table as in `scan_lists_pq`."""
    values = np.empty(AT_ONCE, np.float32)
    for q in range(queries.shape[0]):
        fill_tables(queries[q], codebooks, table)
        count = 0
        seen = 0
        visited = 0
        for p in range(lists.shape[1]):
            if seen >= wanted:
                break
            visited += 1
            last = starts[lists[q, p] + 1]
            for start in range(starts[lists[q, p]], last, AT_ONCE):
                end = min(start + AT_ONCE, last)
                _table_distances(codes, scalars, table, nodes[start:end], bases[q, p], values)
                count = offer_all(values, start, end, distances[q], rows[q], count)
                seen += end - start
        _finish(distances[q], rows[q], count, nodes)
        counts[q], hops[q], scored[q] = count, visited, seen


@njit(cache=True, nogil=True)
def keep_allowed(nodes: Any, distances: Any, counts: Any, allowed: Any, most: Any, wanted: Any, reached: Any) -> None:
    """Drop candidates that are not allowed, and those after the first `most`; the others keep their order.

    nodes: int32 (m, beam), distances: float32 (m, beam), counts: int64 (m,), changed in place; allowed: bool (n,).
    reached: int64 (m,), how many candidates it took to meet `wanted` allowed ones (1 to `most`); -1: more than there are.
    """
    for q in range(nodes.shape[0]):
        kept = 0
        reached[q] = -1
        for j in range(counts[q]):
            node = nodes[q, j]
            if allowed[node] and kept < most:
                nodes[q, kept] = node
                distances[q, kept] = distances[q, j]
                kept += 1
                if kept == wanted:
                    reached[q] = j + 1
        counts[q] = kept


@njit(cache=True, nogil=True)
def list_allowed_places(
    nodes: Any, chosen: Any, group_nodes: Any, group_extra: Any, allowed: Any, k: Any, page_rows: Any, offsets: Any
) -> Any:
    """`list_places` among allowed rows: of a node's copies the first k that are allowed. allowed: bool (n,)."""
    places = np.empty(chosen.sum() + 16, np.int64)
    filled = 0
    for q in range(nodes.shape[0]):
        start = filled
        offsets[q] = start
        for j in range(chosen[q]):
            row = first_row(nodes[q, j], group_nodes, group_extra)
            end = row + copies(nodes[q, j], group_nodes, group_extra)
            wanted = k
            last = np.int64(-1)
            while row < end and wanted > 0:
                if allowed[row]:
                    wanted -= 1
                    if row // page_rows != last:
                        last = row // page_rows
                        if filled == places.shape[0]:
                            grown = np.empty(2 * filled, np.int64)
                            grown[:filled] = places
                            places = grown
                        places[filled] = last
                        filled += 1
                row += 1
        mine = np.sort(places[start:filled])
        filled = start
        for e in range(mine.shape[0]):
            if e == 0 or mine[e] != mine[e - 1]:
                places[filled] = mine[e]
                filled += 1
    offsets[nodes.shape[0]] = filled
    return places[:filled]


@njit(cache=True, nogil=True)
def keep_allowed_rows(query_of: Any, rows: Any, starts: Any, count: Any, allowed: Any, scored: Any) -> Any:
    """Drop rows that are not allowed from the first `count` of `list_rows`; returns how many are left.

    query_of, rows, starts: int64, changed in place; allowed: bool (n,); scored: int64 (m,), how many of each query are left.
    """
    scored[:] = 0
    kept = 0
    for j in range(count):
        if allowed[rows[j]]:
            query_of[kept] = query_of[j]
            rows[kept] = rows[j]
            starts[kept] = starts[j]
            scored[query_of[j]] += 1
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def chance_below(distance: Any, limit: Any, deviation: Any) -> Any:
    """The chance that a row with this estimate is nearer than `limit`."""
    if deviation <= 0:
        return 1.0 if distance < limit else 0.0
    z = (np.float64(limit) - np.float64(distance)) / np.float64(deviation)
    return 0.0 if z < -5 else 0.5 * math.erfc(-z / math.sqrt(2.0))


@njit(cache=True, nogil=True)
def expected_beyond(dense: Any, distance: Any, limit: Any, deviation: Any) -> Any:
    """How many rows whose estimates are above `distance`, `dense` of them in each deviation, are nearer than `limit`."""
    z = (np.float64(distance) - np.float64(limit)) / np.float64(deviation)
    if z > 5:
        return 0.0
    return dense * (math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) - z * 0.5 * math.erfc(z / math.sqrt(2.0)))


@njit(cache=True, nogil=True)
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
    """ends[q]: candidates before that place should be read too; behind it no more than `miss` rows are expected that are
    nearer than limits[q]. -1 where more than that are expected behind the last candidate: these candidates are too few.

    nodes int32 (m, width), distances float32, nearest first to counts[q]; horizons float32 (m,), how far they are complete;
    read int32 (m, any): those read already, some of the candidates in their order, to chosen[q]; deviations float32 (m,):
    of an estimate over a row's scale; limits float32 (m,): the exact k-th distance so far; ends int64 (m,).
    """
    for q in range(nodes.shape[0]):
        tail = 0.0
        ends[q] = 0
        deviation = np.float64(0.0)
        if counts[q] > 0:
            deviation = np.float64(deviations[q]) * scalars[nodes[q, counts[q] - 1], 1]
        if horizons[q] < np.inf and deviation > 0:
            dense = 1.0
            j = counts[q] - 1
            while j >= 0 and distances[q, j] > horizons[q] - deviation:
                dense += 1.0
                j -= 1
            tail = expected_beyond(dense, horizons[q], limits[q], deviation)
            if tail > miss:
                ends[q] = -1
                continue
        done = chosen[q] - 1
        for j in range(counts[q] - 1, -1, -1):
            node = nodes[q, j]
            if done >= 0 and read[q, done] == node:
                done -= 1
                continue
            tail += chance_below(distances[q, j], limits[q], deviations[q] * scalars[node, 1])
            if tail > miss:
                ends[q] = j + 1
                break
