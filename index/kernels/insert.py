"""Building a graph: walks over int8 rows, hnswlib's diversity rule, reverse links.

Distances are squared: |y_i - y_j|^2 + (e_i - e_j)^2 with y = scale * int8 row and e one extra coordinate a row (0 but for
`dot`, where it makes the largest inner product the nearest row). scalars[i] = (|y_i|^2 + e_i^2, scale_i, e_i).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.dots import dot_int8
from index.kernels.intrinsics import prefetch
from index.kernels.vector_dots import int8_dot

AHEAD = 10


@njit(cache=True, nogil=True, inline="always")
def _fetch_row(rows_at: Any, scalars_at: Any, width: Any, i: Any) -> None:
    at = rows_at + np.int64(i) * width
    for t in range(0, width, 64):
        prefetch(np.uintp(at + t))
    prefetch(np.uintp(scalars_at + np.int64(i) * 12))


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"}, inline="always")
def between(rows: Any, scalars: Any, i: Any, j: Any) -> Any:
    """Squared distance of rows i and j."""
    inner = scalars[i, 1] * scalars[j, 1] * np.float32(dot_int8(rows, i, rows[j])) + scalars[i, 2] * scalars[j, 2]
    return scalars[i, 0] + scalars[j, 0] - np.float32(2.0) * inner


@njit(cache=True, nogil=True, inline="always")
def _place(found: Any, far: Any, used: Any, n: Any, beam: Any, i: Any, value: Any) -> Any:
    """Insert row i into the sorted beam of n rows; returns its place."""
    j = n if n < beam else beam - 1
    while j > 0 and far[j - 1] > value:
        far[j] = far[j - 1]
        found[j] = found[j - 1]
        used[j] = used[j - 1]
        j -= 1
    far[j] = value
    found[j] = i
    used[j] = False
    return j


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def _walk(
    rows: Any,
    scalars: Any,
    links: Any,
    target: Any,
    entries: Any,
    visited: Any,
    mark: Any,
    found: Any,
    far: Any,
    used: Any,
) -> Any:
    """Nearest rows of row `target` in the graph so far; found and far (width: beam) are filled, nearest first."""
    beam = found.shape[0]
    width = rows.shape[1]
    degree = links.shape[1]
    rows_at = rows.ctypes.data
    scalars_at = scalars.ctypes.data
    links_at = links.ctypes.data
    visited_at = visited.ctypes.data
    query_at = rows_at + np.int64(target) * width
    twice = np.float32(2.0) * scalars[target, 1]
    twice_extra = np.float32(2.0) * scalars[target, 2]
    fresh = np.empty(max(degree, entries.shape[0]), np.int32)
    n = 0
    m = 0
    for e in range(entries.shape[0]):
        i = entries[e]
        if visited[i] != mark:
            visited[i] = mark
            fresh[m] = i
            m += 1
    best = 0
    while True:
        for e in range(min(m, AHEAD)):
            _fetch_row(rows_at, scalars_at, width, fresh[e])
        first = n
        for e in range(m):
            if e + AHEAD < m:
                _fetch_row(rows_at, scalars_at, width, fresh[e + AHEAD])
            i = fresh[e]
            dot = int8_dot(rows_at + np.int64(i) * width, query_at, width)
            inner = twice * scalars[i, 1] * np.float32(dot) + twice_extra * scalars[i, 2]
            value = scalars[i, 0] - inner
            if n < beam or value < far[n - 1]:
                first = min(first, _place(found, far, used, n, beam, i, value))
                n = min(n + 1, beam)
        best = min(best, first)
        while best < n and used[best]:
            best += 1
        if best >= n:
            break
        used[best] = True
        at = found[best]
        m = 0
        for e in range(degree):
            if links[at, e] < 0:
                break
            prefetch(np.uintp(visited_at + np.int64(links[at, e])))
        for e in range(degree):
            i = links[at, e]
            if i < 0:
                break
            if visited[i] != mark:
                visited[i] = mark
                fresh[m] = i
                m += 1
        z = best + 1
        while z < n and used[z]:
            z += 1
        if z < n:
            ahead = links_at + np.int64(found[z]) * degree * 4
            for t in range(0, degree * 4, 64):
                prefetch(np.uintp(ahead + t))
    return n


@njit(cache=True, nogil=True)
def select_diverse(
    rows: Any, scalars: Any, target: Any, found: Any, far: Any, count: Any, most: Any, alpha: Any, out: Any
) -> Any:
    """hnswlib's diversity rule: a row is kept unless a kept one is nearer to it (times alpha) than `target` is.

    found: nearest first; far: their distances without the target's own part; out: int32 (>= most,); returns how many.
    """
    width = rows.shape[1]
    rows_at = rows.ctypes.data
    scalars_at = scalars.ctypes.data
    own = scalars[target, 0]
    m = 0
    for a in range(count):
        i = found[a]
        if i == target:
            continue
        if a + 2 < count:
            _fetch_row(rows_at, scalars_at, width, found[a + 2])
        keep = True
        distance = far[a] + own
        for b in range(m):
            if out[b] == i or alpha * between(rows, scalars, i, out[b]) < distance:
                keep = False
                break
        if keep:
            out[m] = i
            m += 1
            if m == most:
                break
    return m


@njit(cache=True, nogil=True)
def link_rows(
    rows: Any,
    scalars: Any,
    links: Any,
    batch: Any,
    entries: Any,
    beam: Any,
    most: Any,
    alpha: Any,
    visited: Any,
    mark: Any,
) -> Any:
    """links[p, :most] for each row p of the batch, found in the graph as it stands; returns the last mark used.

    No row of the batch is linked to yet, so threads may work on parts of one batch at once and the result is the same.
    rows: int8 (n, width); scalars: float32 (n, 3); links: int32 (n, degree), -1 ends a row; visited: uint8 (n,).
    """
    found = np.empty(beam, np.int32)
    far = np.empty(beam, np.float32)
    used = np.empty(beam, np.bool_)
    chosen = np.empty(max(most, 1), np.int32)
    for b in range(batch.shape[0]):
        if mark == 255:
            visited[:] = 0
            mark = 0
        mark += 1
        p = batch[b]
        n = _walk(rows, scalars, links, p, entries, visited, np.uint8(mark), found, far, used)
        m = select_diverse(rows, scalars, p, found, far, n, most, alpha, chosen)
        for e in range(m):
            links[p, e] = chosen[e]
        for e in range(m, links.shape[1]):
            links[p, e] = -1
    return mark


@njit(cache=True, nogil=True)
def add_reverse(
    rows: Any, scalars: Any, links: Any, sources: Any, starts: Any, targets: Any, alpha: Any, first: Any, last: Any
) -> None:
    """Link targets[g] to sources[starts[g] : starts[g + 1]] for first <= g < last; a full row keeps the diverse ones."""
    degree = links.shape[1]
    width = rows.shape[1]
    rows_at = rows.ctypes.data
    scalars_at = scalars.ctypes.data
    chosen = np.empty(degree, np.int32)
    for g in range(first, last):
        t = targets[g]
        a = starts[g]
        b = starts[g + 1]
        k = 0
        while k < degree and links[t, k] >= 0:
            k += 1
        total = k + (b - a)
        if total <= degree:
            for e in range(a, b):
                links[t, k] = sources[e]
                k += 1
            continue
        near = np.empty(total, np.int32)
        far = np.empty(total, np.float32)
        for e in range(k):
            near[e] = links[t, e]
        for e in range(a, b):
            near[k + e - a] = sources[e]
        for e in range(min(total, AHEAD)):
            _fetch_row(rows_at, scalars_at, width, near[e])
        for e in range(total):
            if e + AHEAD < total:
                _fetch_row(rows_at, scalars_at, width, near[e + AHEAD])
            far[e] = between(rows, scalars, near[e], t) - scalars[t, 0]
        order = np.argsort(far, kind="mergesort")
        m = select_diverse(rows, scalars, t, near[order], far[order], total, degree, alpha, chosen)
        for e in range(m):
            links[t, e] = chosen[e]
        for e in range(m, degree):
            links[t, e] = -1


@njit(cache=True, nogil=True)
def reverse_pairs(links: Any, batch: Any, sources: Any, targets: Any) -> Any:
    """The links of a batch as pairs (target, source) in the batch's order; returns how many."""
    k = 0
    for p in batch:
        for e in range(links.shape[1]):
            if links[p, e] < 0:
                break
            sources[k] = p
            targets[k] = links[p, e]
            k += 1
    return k
