"""Lists of near rows: which lists are near a query, the codes in them scored, and rows without their list's centroid.

nearest_lists    all centroids compared with a query, the nearest kept: the route while lists are few
list_bases       the part of a distance that a list's rows share, for lists found another way
scan_lists       codes of 1, 2, 4 or 8 bits in the probed lists
scan_lists_pq    product quantiser codes, by a table of a query's
Rows of a list lie one after the other, so a list is read as one stream and only its beginning is fetched ahead.
A distance is base(list) + scalars[row, 0] - 2 <query, residual's code>.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.dots import dot_int8, dot_range
from index.kernels.intrinsics import prefetch
from index.kernels.scan import sift_down

AT_ONCE = 64
"""Rows scored before any of them is looked at."""
LINES_AHEAD = 8
"""Cache lines of the next list asked for while a list is scored; the rest of it comes by itself."""


@njit(cache=True, nogil=True)
def offer_all(values: Any, first: Any, last: Any, distances: Any, rows: Any, count: Any) -> Any:
    """Put rows first to last, at values[0] and on, into a heap of the nearest, of equals the lower row; returns how many
    it holds. In a function of its own, so that the loop over values keeps the heap's worst in a register."""
    keep = distances.shape[0]
    worst = distances[0] if count == keep else np.float32(np.inf)
    for row in range(first, last):
        value = values[row - first]
        if count < keep:
            distances[count] = value
            rows[count] = row
            count += 1
            if count == keep:
                for at in range(keep // 2 - 1, -1, -1):
                    sift_down(distances, rows, at, keep)
                worst = distances[0]
        elif value < worst or (value == worst and row < rows[0]):
            distances[0] = value
            rows[0] = row
            sift_down(distances, rows, 0, keep)
            worst = distances[0]
    return count


@njit(cache=True, nogil=True)
def sort_heap(distances: Any, rows: Any, count: Any) -> None:
    """Turn a heap into a list, nearest first."""
    if count < distances.shape[0]:
        for at in range(count // 2 - 1, -1, -1):
            sift_down(distances, rows, at, count)
    for held in range(count - 1, 0, -1):
        distances[0], distances[held] = distances[held], distances[0]
        rows[0], rows[held] = rows[held], rows[0]
        sift_down(distances, rows, 0, held)


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def _centroid_distances(centroids: Any, scalars: Any, query: Any, twice: Any, first: Any, last: Any, out: Any) -> None:
    for i in range(first, last):
        out[i - first] = scalars[i, 0] - twice * scalars[i, 1] * np.float32(dot_int8(centroids, i, query))


@njit(cache=True, nogil=True)
def nearest_lists(
    centroids: Any, centroid_scalars: Any, queries: Any, query_scales: Any, lists: Any, bases: Any
) -> None:
    """lists[q] = the nearest lists of query q, nearest first, of equals the lower one; bases: their distances.

    centroids: int8 (l, width); centroid_scalars: float32 (l, 2), additive part and scale; queries: int8 (m, width);
    lists: int32 (m, probes) and bases: float32 (m, probes) with probes <= l, filled in full.
    """
    values = np.empty(AT_ONCE, np.float32)
    for q in range(queries.shape[0]):
        twice = np.float32(2.0) * query_scales[q]
        count = 0
        for start in range(0, centroids.shape[0], AT_ONCE):
            end = min(start + AT_ONCE, centroids.shape[0])
            _centroid_distances(centroids, centroid_scalars, queries[q], twice, start, end, values)
            count = offer_all(values, start, end, bases[q], lists[q], count)
        sort_heap(bases[q], lists[q], count)


@njit(cache=True, nogil=True)
def list_bases(centroids: Any, centroid_scalars: Any, queries: Any, query_scales: Any, lists: Any, bases: Any) -> None:
    """bases[q, p] = what `nearest_lists` would give for list lists[q, p]. Arrays as there."""
    for q in range(queries.shape[0]):
        twice = np.float32(2.0) * query_scales[q]
        for p in range(lists.shape[1]):
            i = lists[q, p]
            _centroid_distances(centroids, centroid_scalars, queries[q], twice, i, i + 1, bases[q, p : p + 1])


@njit(cache=True, nogil=True, inline="always")
def _fetch_list(codes: Any, scalars: Any, first: Any) -> None:
    at = codes.ctypes.data + np.int64(first) * codes.shape[1]
    for t in range(LINES_AHEAD):
        prefetch(np.uintp(at + t * 64))
    prefetch(np.uintp(scalars.ctypes.data + np.int64(first) * 8))
    prefetch(np.uintp(scalars.ctypes.data + np.int64(first) * 8 + 64))


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def _distances(along: Any, scalars: Any, first: Any, last: Any, base: Any, twice: Any, offset: Any, out: Any) -> None:
    for i in range(first, last):
        out[i - first] = base + scalars[i, 0] - twice * scalars[i, 1] * (np.float32(along[i - first]) - offset)


@njit(cache=True, nogil=True)
def scan_lists(
    codes: Any,
    scalars: Any,
    bits: Any,
    offsets: Any,
    lists: Any,
    bases: Any,
    queries: Any,
    query_scales: Any,
    query_sums: Any,
    rows: Any,
    distances: Any,
    counts: Any,
    scored: Any,
) -> None:
    """For each query the nearest rows of its lists by their codes, nearest first, of equals the lower row.

    codes: uint8 (n, stride), scalars: float32 (n, 2), list l in rows offsets[l] to offsets[l + 1], int32 (l + 1,);
    lists: int32 (m, probes), bases: float32 (m, probes); queries: int8 (m, 8 / bits, stride); rows: int32 (m, keep) and
    distances: float32 (m, keep), filled to counts[q]; counts, scored: int64 (m,).
    """
    along = np.empty(AT_ONCE, np.int32)
    values = np.empty(AT_ONCE, np.float32)
    middle = np.float32(((1 << bits) - 1) * 0.5)
    for q in range(queries.shape[0]):
        twice = np.float32(2.0) * query_scales[q]
        offset = middle * query_sums[q]
        count = 0
        seen = 0
        for p in range(lists.shape[1]):
            if p + 1 < lists.shape[1]:
                _fetch_list(codes, scalars, offsets[lists[q, p + 1]])
            last = offsets[lists[q, p] + 1]
            for start in range(offsets[lists[q, p]], last, AT_ONCE):
                end = min(start + AT_ONCE, last)
                dot_range(codes, start, end, queries[q], bits, along)
                _distances(along, scalars, start, end, bases[q, p], twice, offset, values)
                count = offer_all(values, start, end, distances[q], rows[q], count)
                seen += end - start
        sort_heap(distances[q], rows[q], count)
        counts[q] = count
        scored[q] = seen


@njit(cache=True, nogil=True, fastmath={"contract"})
def fill_tables(query: Any, codebooks: Any, table: Any) -> None:
    """table[s, c] = twice the inner product of part s of the query and centroid c of its sub-quantiser.

    query: float32 (width,); codebooks: float32 (parts, width / parts, 256); table: float32 (parts, 256), overwritten.
    """
    each = codebooks.shape[1]
    for s in range(codebooks.shape[0]):
        for c in range(256):
            table[s, c] = np.float32(0.0)
        for t in range(each):
            component = np.float32(2.0) * query[s * each + t]
            for c in range(256):
                table[s, c] += component * codebooks[s, t, c]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _table_distances(codes: Any, scalars: Any, table: Any, first: Any, last: Any, base: Any, out: Any) -> None:
    parts = codes.shape[1]
    for i in range(first, last):
        one = np.float32(0.0)
        two = np.float32(0.0)
        # Two sums: one alone waits for its own last addition.
        for s in range(0, parts - 1, 2):
            one += table[s, codes[i, s]]
            two += table[s + 1, codes[i, s + 1]]
        if parts % 2 == 1:
            one += table[parts - 1, codes[i, parts - 1]]
        out[i - first] = base + scalars[i, 0] - (one + two)


@njit(cache=True, nogil=True)
def scan_lists_pq(
    codes: Any,
    scalars: Any,
    codebooks: Any,
    offsets: Any,
    lists: Any,
    bases: Any,
    queries: Any,
    table: Any,
    rows: Any,
    distances: Any,
    counts: Any,
    scored: Any,
) -> None:
    """`scan_lists` for codes of a product quantiser. codes: uint8 (n, parts); codebooks, table: see `fill_tables`;

    queries: float32 (m, width), rotated; scalars: float32 (n, 2), only the additive part is used. Others as there.
    """
    values = np.empty(AT_ONCE, np.float32)
    for q in range(queries.shape[0]):
        fill_tables(queries[q], codebooks, table)
        count = 0
        seen = 0
        for p in range(lists.shape[1]):
            if p + 1 < lists.shape[1]:
                _fetch_list(codes, scalars, offsets[lists[q, p + 1]])
            last = offsets[lists[q, p] + 1]
            for start in range(offsets[lists[q, p]], last, AT_ONCE):
                end = min(start + AT_ONCE, last)
                _table_distances(codes, scalars, table, start, end, bases[q, p], values)
                count = offer_all(values, start, end, distances[q], rows[q], count)
                seen += end - start
        sort_heap(distances[q], rows[q], count)
        counts[q] = count
        scored[q] = seen


@njit(cache=True, nogil=True, fastmath={"contract"})
def encode_pq(residuals: Any, codebooks: Any, codes: Any) -> None:
    """codes[i, s] = the centroid of sub-quantiser s nearest to part s of row i, of equals the lower one.

    residuals: float32 (m, width); codebooks: float32 (parts, width / parts, 256); codes: uint8 (m, parts), overwritten.
    """
    each = codebooks.shape[1]
    near = np.empty(256, np.float32)
    for i in range(residuals.shape[0]):
        for s in range(codebooks.shape[0]):
            for c in range(256):
                near[c] = np.float32(0.0)
            for t in range(each):
                component = residuals[i, s * each + t]
                for c in range(256):
                    difference = component - codebooks[s, t, c]
                    near[c] += difference * difference
            codes[i, s] = np.argmin(near)


@njit(cache=True, nogil=True)
def list_means(codes: Any, scales: Any, offsets: Any, left_out: Any, first: Any, last: Any, means: Any) -> None:
    """means[l] = mean of the rows of list l, for lists first to last, without rows that are left out (unless all are).

    codes: int8 (n, width); scales: float32 (n,); offsets: int32 (l + 1,); left_out: bool (n,); means: float32 (l, width).
    """
    width = codes.shape[1]
    total = np.empty(width, np.float64)
    for at in range(first, last):
        rows = 0
        for i in range(offsets[at], offsets[at + 1]):
            if not left_out[i]:
                rows += 1
        all_out = rows == 0
        rows = offsets[at + 1] - offsets[at] if all_out else rows
        total[:] = 0.0
        for i in range(offsets[at], offsets[at + 1]):
            if all_out or not left_out[i]:
                for t in range(width):
                    total[t] += np.float64(scales[i]) * codes[i, t]
        for t in range(width):
            means[at, t] = np.float32(total[t] / max(1, rows))


@njit(cache=True, nogil=True)
def residuals(codes: Any, scales: Any, centroids: Any, centroid_scales: Any, labels: Any, first: Any, out: Any) -> None:
    """out[j] = row first + j without the centroid of its list. out: float32 (m, width), overwritten.

    codes: int8 (n, width), scales: float32 (n,); centroids: int8 (l, width), centroid_scales: float32 (l,);
    labels: int32 (n,), the list of each row.
    """
    for j in range(out.shape[0]):
        i = first + j
        at = labels[i]
        scale = scales[i]
        centroid_scale = centroid_scales[at]
        for t in range(out.shape[1]):
            out[j, t] = scale * np.float32(codes[i, t]) - centroid_scale * np.float32(centroids[at, t])
