"""From candidates to what is read, and from pages to the best hits: the integer work around the exact scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def choose_candidates(
    nodes: Any, distances: Any, counts: Any, scalars: Any, reach: Any, k: Any, depth: Any, chosen: Any
) -> None:
    """chosen[q] = how many leading or near enough candidates of q are worth reading; they are moved to the front.

    A candidate is read while distance - reach[q] * scale <= the k-th distance: while its optimistic estimate could still
    be among the k best. depth > 0: the first `depth` instead. nodes: int32 (m, beam), distances: float32 (m, beam),
    sorted to counts[q]; scalars: float32 (n, 2); reach: float32 (m,); chosen: int64 (m,).
    """
    for q in range(nodes.shape[0]):
        count = counts[q]
        if depth > 0 or count <= k:
            chosen[q] = min(count, max(depth, k) if depth <= 0 else depth)
            continue
        limit = distances[q, k - 1]
        kept = k
        for j in range(k, count):
            node = nodes[q, j]
            if distances[q, j] - reach[q] * scalars[node, 1] <= limit:
                nodes[q, kept] = node
                kept += 1
        chosen[q] = kept


@njit(cache=True, nogil=True)
def first_row(node: Any, group_nodes: Any, group_extra: Any) -> Any:
    """Row of a node's first copy. group_nodes: int32 (g,), ascending nodes with several rows; group_extra: int64 (g,),
    how many rows more than nodes there are up to and with that group."""
    low = 0
    high = group_nodes.shape[0]
    while low < high:
        middle = (low + high) // 2
        if group_nodes[middle] < node:
            low = middle + 1
        else:
            high = middle
    return np.int64(node) + (group_extra[low - 1] if low > 0 else 0)


@njit(cache=True, nogil=True)
def copies(node: Any, group_nodes: Any, group_extra: Any) -> Any:
    """How many rows hold the node's vector."""
    at = np.searchsorted(group_nodes, node)
    if at == group_nodes.shape[0] or group_nodes[at] != node:
        return np.int64(1)
    return group_extra[at] - (group_extra[at - 1] if at > 0 else 0) + 1


@njit(cache=True, nogil=True)
def list_places(
    nodes: Any, chosen: Any, group_nodes: Any, group_extra: Any, k: Any, page_rows: Any, offsets: Any
) -> Any:
    """The places (page numbers, or runs of pages of large vectors) that hold the chosen nodes' rows.

    Each once a query and ascending, so that neighbours can be read together. Of a node's copies the first k are wanted.
    offsets: int64 (m + 1,), where each query's places begin in the result.
    """
    size = 0
    for q in range(nodes.shape[0]):
        size += chosen[q]
    places = np.empty(size + 16, np.int64)
    filled = 0
    for q in range(nodes.shape[0]):
        start = filled
        offsets[q] = start
        for j in range(chosen[q]):
            row = first_row(nodes[q, j], group_nodes, group_extra)
            first = row // page_rows
            last = first
            if group_nodes.shape[0] > 0:
                last = (row + min(copies(nodes[q, j], group_nodes, group_extra), k) - 1) // page_rows
            if filled + last - first + 1 > places.shape[0]:
                grown = np.empty(2 * (filled + last - first + 1), np.int64)
                grown[:filled] = places[:filled]
                places = grown
            for place in range(first, last + 1):
                places[filled] = place
                filled += 1
        mine = np.sort(places[start:filled])
        filled = start
        for e in range(mine.shape[0]):
            if e == 0 or mine[e] != mine[e - 1]:
                places[filled] = mine[e]
                filled += 1
    offsets[nodes.shape[0]] = filled
    return places[:filled]


@njit(cache=True, nogil=True)
def list_rows(
    places: Any,
    offsets: Any,
    n: Any,
    page_rows: Any,
    place_size: Any,
    vector_size: Any,
    query_of: Any,
    rows: Any,
    starts: Any,
) -> Any:
    """Every row on the places read: (query, row, where its vector begins in the buffer); returns how many.

    place_size, vector_size: components from one place, one vector, to the next in the buffer (place_size may count
    bytes // itemsize). query_of, rows, starts: int64 (places * page_rows,), filled to the returned count.
    """
    filled = 0
    for q in range(offsets.shape[0] - 1):
        for e in range(offsets[q], offsets[q + 1]):
            for s in range(page_rows):
                row = places[e] * page_rows + s
                if row >= n:
                    break
                query_of[filled] = q
                rows[filled] = row
                starts[filled] = e * place_size + s * vector_size
                filled += 1
    return filled


@njit(cache=True, nogil=True, inline="always")
def _worse(score_a: Any, code_a: Any, score_b: Any, code_b: Any) -> Any:
    """True where hit a comes after hit b: a lower score, of equals the larger id."""
    return score_a < score_b or (score_a == score_b and code_a > code_b)


@njit(cache=True, nogil=True)
def _sift_down(scores: Any, codes: Any, rows: Any, at: Any, count: Any) -> None:
    """Restore a heap whose root is the worst hit."""
    while True:
        child = 2 * at + 1
        if child >= count:
            return
        if child + 1 < count and _worse(scores[child + 1], codes[child + 1], scores[child], codes[child]):
            child += 1
        if not _worse(scores[child], codes[child], scores[at], codes[at]):
            return
        scores[at], scores[child] = scores[child], scores[at]
        codes[at], codes[child] = codes[child], codes[at]
        rows[at], rows[child] = rows[child], rows[at]
        at = child


@njit(cache=True, nogil=True)
def keep_best(
    query_of: Any, scores: Any, codes: Any, rows: Any, best_scores: Any, best_codes: Any, best_rows: Any, counts: Any
) -> None:
    """Put hits into each query's heap of its k best. best_*: (m, k); counts: int64 (m,), how full each heap is.

    query_of int64, scores float32, codes uint64 (id codes), rows int64: all (p,).
    """
    k = best_scores.shape[1]
    for j in range(query_of.shape[0]):
        q = query_of[j]
        held = counts[q]
        if held < k:
            at = held
            best_scores[q, at] = scores[j]
            best_codes[q, at] = codes[j]
            best_rows[q, at] = rows[j]
            counts[q] = held + 1
            while at > 0:
                above = (at - 1) // 2
                if not _worse(best_scores[q, at], best_codes[q, at], best_scores[q, above], best_codes[q, above]):
                    break
                best_scores[q, at], best_scores[q, above] = best_scores[q, above], best_scores[q, at]
                best_codes[q, at], best_codes[q, above] = best_codes[q, above], best_codes[q, at]
                best_rows[q, at], best_rows[q, above] = best_rows[q, above], best_rows[q, at]
                at = above
        elif _worse(best_scores[q, 0], best_codes[q, 0], scores[j], codes[j]):
            best_scores[q, 0] = scores[j]
            best_codes[q, 0] = codes[j]
            best_rows[q, 0] = rows[j]
            _sift_down(best_scores[q], best_codes[q], best_rows[q], 0, k)


@njit(cache=True, nogil=True)
def sort_best(best_scores: Any, best_codes: Any, best_rows: Any, counts: Any) -> None:
    """Turn each query's heap into a list, best hit first."""
    for q in range(counts.shape[0]):
        scores, codes, rows = best_scores[q], best_codes[q], best_rows[q]
        for count in range(counts[q] - 1, 0, -1):
            scores[0], scores[count] = scores[count], scores[0]
            codes[0], codes[count] = codes[count], codes[0]
            rows[0], rows[count] = rows[count], rows[0]
            _sift_down(scores, codes, rows, 0, count)


@njit(cache=True, nogil=True)
def count_found(true_places: Any, places: Any, offsets: Any, found: Any) -> None:
    """found[q] = how many of true_places[q] (int64 (m, k), -1: none) are among the places of query q. found: int64 (m,).

    places: of each query ascending, as `list_places` gives them.
    """
    for q in range(true_places.shape[0]):
        mine = places[offsets[q] : offsets[q + 1]]
        hits = 0
        for j in range(true_places.shape[1]):
            at = np.searchsorted(mine, true_places[q, j])
            if at < mine.shape[0] and mine[at] == true_places[q, j]:
                hits += 1
        found[q] = hits
