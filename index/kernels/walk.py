"""The beam walk: from entry rows along links, always expanding the best row not yet expanded, scoring codes.

walk_queries  many queries, one after the other, on one thread
walk_one      one query, for kernels of others; on demand with every row that it scored
visit         marks a row as visited
A walk is bound by cache misses, so every miss is asked for before it is needed: codes and their scalars 12 rows ahead,
the links of the row that is likely to be expanded next. Visited rows are kept in a hash table that fits the cache and
whose size follows the beam, not the number of rows. A hop's new rows are sorted among themselves and merged into the beam
in one pass. Measured figures: docs/decisions/0002-walk.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.intrinsics import prefetch
from index.kernels.vector_dots import code_dot_1, code_dot_2, code_dot_4, code_dot_8

AHEAD = 12


@njit(cache=True, nogil=True, inline="always")
def _fetch_row(codes_at: Any, scalars_at: Any, stride: Any, i: Any) -> None:
    at = codes_at + np.int64(i) * stride
    for t in range(0, stride, 64):
        prefetch(np.uintp(at + t))
    prefetch(np.uintp(scalars_at + np.int64(i) * 8))


@njit(cache=True, nogil=True, inline="always")
def _fetch_ahead(codes_at: Any, scalars_at: Any, stride: Any, rows: Any, e: Any, m: Any) -> None:
    """Before row e is scored, ask for the row AHEAD places later; before the first, for all up to there."""
    if e == 0:
        for f in range(min(m, AHEAD)):
            _fetch_row(codes_at, scalars_at, stride, rows[f])
    if e + AHEAD < m:
        _fetch_row(codes_at, scalars_at, stride, rows[e + AHEAD])


@njit(cache=True, nogil=True, inline="always")
def _distance(scalars: Any, i: Any, dot: Any, twice: Any, offset: Any) -> Any:
    return scalars[i, 0] - twice * scalars[i, 1] * (np.float32(dot) - offset)


@njit(cache=True, nogil=True, inline="always")
def _merge(rows: Any, distances: Any, expanded: Any, count: Any, beam: Any, new_rows: Any, new: Any, c: Any) -> Any:
    """Merge c sorted new rows into the sorted beam from its worse end; returns (count, first changed place)."""
    total = min(beam, count + c)
    a = count - 1
    b = c - 1
    over = count + c - total
    while over > 0 and b >= 0:
        if a >= 0 and distances[a] > new[b]:
            a -= 1
        else:
            b -= 1
        over -= 1
    a -= over
    first = total
    w = a + b + 1
    while b >= 0:
        if a >= 0 and distances[a] > new[b]:
            distances[w] = distances[a]
            rows[w] = rows[a]
            expanded[w] = expanded[a]
            a -= 1
        else:
            distances[w] = new[b]
            rows[w] = new_rows[b]
            expanded[w] = False
            first = w
            b -= 1
        w -= 1
    return total, first


@njit(cache=True, nogil=True, inline="always")
def visit(visited: Any, mask: Any, mark: Any, i: Any) -> Any:
    """Mark row i as visited; False if it was already. A slot holds (mark, row); another mark means free."""
    key = (mark << np.uint64(32)) | np.uint64(np.uint32(i))
    at = np.uint32((np.uint64(np.uint32(i)) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while True:
        held = visited[np.uintp(at)]
        if held == key:
            return False
        if (held >> np.uint64(32)) != mark:
            visited[np.uintp(at)] = key
            return True
        at = (at + np.uint32(1)) & mask


# As in the scan: a distance is rounded alike wherever it is computed, whichever kernel was compiled first.
@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def score_rows(
    codes: Any, scalars: Any, bits: Any, rows: Any, m: Any, query: Any, twice: Any, offset: Any, out: Any
) -> None:
    """out[e] = distance of row rows[e] for e < m. Each width of codes has its loop: see kernels/dots.py."""
    stride = codes.shape[1]
    at = codes.ctypes.data
    scalars_at = scalars.ctypes.data
    query_at = query.ctypes.data
    if bits == 4:
        for e in range(m):
            _fetch_ahead(at, scalars_at, stride, rows, e, m)
            i = rows[e]
            dot = code_dot_4(at + np.int64(i) * stride, query_at, stride)
            out[e] = _distance(scalars, i, dot, twice, offset)
    elif bits == 2:
        for e in range(m):
            _fetch_ahead(at, scalars_at, stride, rows, e, m)
            i = rows[e]
            dot = code_dot_2(at + np.int64(i) * stride, query_at, stride)
            out[e] = _distance(scalars, i, dot, twice, offset)
    elif bits == 8:
        for e in range(m):
            _fetch_ahead(at, scalars_at, stride, rows, e, m)
            i = rows[e]
            dot = code_dot_8(at + np.int64(i) * stride, query_at, stride)
            out[e] = _distance(scalars, i, dot, twice, offset)
    else:
        for e in range(m):
            _fetch_ahead(at, scalars_at, stride, rows, e, m)
            i = rows[e]
            dot = code_dot_1(at + np.int64(i) * stride, query_at, stride)
            out[e] = _distance(scalars, i, dot, twice, offset)


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def walk_one(
    codes: Any,
    scalars: Any,
    bits: Any,
    links: Any,
    query: Any,
    query_scale: Any,
    query_sum: Any,
    entries: Any,
    visited: Any,
    mark: Any,
    rows: Any,
    distances: Any,
    expanded: Any,
    fresh: Any,
    new_rows: Any,
    new: Any,
    values: Any,
    seen_rows: Any,
    seen_distances: Any,
) -> Any:
    """One walk. The beam's width is rows.shape[0]; returns (rows in it, hops, rows scored).

    seen_rows int32, seen_distances float32: every row scored, in order; of length 0 where nobody asks, else at least
    visited.shape[0].
    """
    beam = rows.shape[0]
    keep = seen_rows.shape[0] > 0
    degree = links.shape[1]
    links_at = links.ctypes.data
    mask = np.uint32(visited.shape[0] - 1)
    twice = np.float32(2.0) * query_scale
    offset = np.float32(((1 << bits) - 1) * 0.5) * query_sum
    worst = np.float32(np.inf)
    count = 0
    hops = 0
    scored = 0
    m = 0
    for e in range(entries.shape[0]):
        i = entries[e]
        if visit(visited, mask, mark, i):
            fresh[m] = i
            m += 1
    room = (visited.shape[0] // 4) * 3 - degree
    best = -1
    while True:
        score_rows(codes, scalars, bits, fresh, m, query, twice, offset, values)
        c = 0
        for e in range(m):
            value = values[e]
            if value < worst:
                j = c
                c += 1
                while j > 0 and new[j - 1] > value:
                    new[j] = new[j - 1]
                    new_rows[j] = new_rows[j - 1]
                    j -= 1
                new[j] = value
                new_rows[j] = fresh[e]
        if keep:
            for e in range(m):
                seen_rows[scored + e] = fresh[e]
                seen_distances[scored + e] = values[e]
        scored += m
        if c > 0:
            count, first = _merge(rows, distances, expanded, count, beam, new_rows, new, c)
            if count == beam:
                worst = distances[count - 1]
            best = min(best, first) if best >= 0 else 0
        elif best < 0:
            break
        while best < count and expanded[best]:
            best += 1
        if best >= count or scored > room:
            break
        expanded[best] = True
        hops += 1
        at = rows[best]
        m = 0
        for e in range(degree):
            i = links[at, e]
            if i < 0:
                break
            if visit(visited, mask, mark, i):
                fresh[m] = i
                m += 1
        z = best + 1
        while z < count and expanded[z]:
            z += 1
        if z < count:
            ahead = links_at + np.int64(rows[z]) * degree * 4
            for t in range(0, degree * 4, 64):
                prefetch(np.uintp(ahead + t))
    return count, hops, scored


def visited_slots(beam: int, degree: int, entries: int) -> int:
    """Slots of a table of visited rows that stays at most half full: a walk expands few more rows than its beam holds."""
    return 1 << (2 * (entries + (beam + beam // 4 + 8) * degree)).bit_length()


@njit(cache=True, nogil=True)
def walk_queries(
    codes: Any,
    scalars: Any,
    bits: Any,
    links: Any,
    queries: Any,
    query_scales: Any,
    query_sums: Any,
    entries: Any,
    visited: Any,
    mark: Any,
    rows: Any,
    distances: Any,
    counts: Any,
    hops: Any,
    scored: Any,
) -> Any:
    """Walk for each query; returns the last mark used (visited marks survive between calls).

    codes: uint8 (n, stride); scalars: float32 (n, 2), additive part and scale; links: int32 (n, degree), -1 ends a row;
    queries: int8 (m, 8 / bits, stride); entries: int32 (e,); visited: uint64 (power of two, at least `visited_slots`);
    mark: the last mark used with this table, 0 at first;
    rows: int32 (m, beam) and distances: float32 (m, beam), both filled to counts[i], nearest first;
    counts, hops, scored: int64 (m,). Distances leave out what is the same for all rows of one query.
    """
    beam = rows.shape[1]
    wide = max(links.shape[1], entries.shape[0])
    expanded = np.empty(beam, np.bool_)
    fresh = np.empty(wide, np.int32)
    new_rows = np.empty(wide, np.int32)
    new = np.empty(wide, np.float32)
    values = np.empty(wide, np.float32)
    nothing = np.empty(0, np.int32)
    none = np.empty(0, np.float32)
    for q in range(queries.shape[0]):
        mark += 1
        count, hop, score = walk_one(
            codes,
            scalars,
            bits,
            links,
            queries[q],
            query_scales[q],
            query_sums[q],
            entries,
            visited,
            np.uint64(mark),
            rows[q],
            distances[q],
            expanded,
            fresh,
            new_rows,
            new,
            values,
            nothing,
            none,
        )
        counts[q] = count
        hops[q] = hop
        scored[q] = score
    return mark
