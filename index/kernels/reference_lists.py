"""Slow twins of kernels/lists.py and of `dot_range`: see reference.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from index.kernels import reference


def dot_range(codes: Any, first: Any, last: Any, query: Any, bits: Any, out: Any) -> None:
    """out[j] = dot_code of row first + j."""
    out[: last - first] = [reference.dot_code(codes, i, query, bits) for i in range(first, last)]


def _keep(values: Any, rows: Any, distances: Any, kept: Any) -> int:
    """The nearest rows by value, of equals the lower row, into distances and kept; returns how many."""
    best = np.lexsort((rows, values))[: len(distances)]
    distances[: len(best)], kept[: len(best)] = values[best], rows[best]
    return len(best)


def nearest_lists(
    centroids: Any, centroid_scalars: Any, queries: Any, query_scales: Any, lists: Any, bases: Any
) -> None:
    """The nearest lists of each query: additive part - 2 <query, centroid>."""
    everything = np.arange(len(centroids), dtype=np.int32)
    for q in range(len(queries)):
        values = np.empty((1, len(centroids)), np.float32)
        list_bases(centroids, centroid_scalars, queries[q : q + 1], query_scales[q:], everything[None], values)
        _keep(values[0], everything, bases[q], lists[q])


def list_bases(centroids: Any, centroid_scalars: Any, queries: Any, query_scales: Any, lists: Any, bases: Any) -> None:
    """bases[q, p] = additive part of list lists[q, p] - 2 <query, its centroid>."""
    for q, query in enumerate(queries):
        for p, at in enumerate(lists[q]):
            along = np.float32(reference.dot_int8(centroids, at, query))
            twice = np.float32(2.0) * query_scales[q]
            bases[q, p] = centroid_scalars[at, 0] - twice * centroid_scalars[at, 1] * along


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
    """All rows of each query's lists, scored by their codes, and the nearest kept."""
    for q in range(len(queries)):
        ranges = [np.arange(offsets[at], offsets[at + 1], dtype=np.int32) for at in lists[q]]
        base = np.repeat(bases[q], [len(r) for r in ranges])
        seen = np.concatenate(ranges)
        offset = np.float32(((1 << bits) - 1) * 0.5) * query_sums[q]
        along = reference.unpack(codes[seen], bits) @ queries[q].reshape(-1).astype(np.int64)
        twice = np.float32(2.0) * query_scales[q] * scalars[seen, 1]
        values = base + scalars[seen, 0] - twice * (along.astype(np.float32) - offset)
        counts[q] = _keep(values.astype(np.float32), seen, distances[q], rows[q])
        scored[q] = len(seen)


def fill_tables(query: Any, codebooks: Any, table: Any) -> None:
    """table[s, c] = 2 <part s of the query, centroid c of sub-quantiser s>."""
    table[:] = 2.0 * np.einsum("st,stc->sc", query.reshape(codebooks.shape[:2]).astype(np.float64), codebooks)


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
    """As scan_lists; an inner product is the sum over a row's bytes of the table's entries."""
    parts = np.arange(codes.shape[1])
    for q in range(len(queries)):
        fill_tables(queries[q], codebooks, table)
        ranges = [np.arange(offsets[at], offsets[at + 1], dtype=np.int32) for at in lists[q]]
        base = np.repeat(bases[q], [len(r) for r in ranges])
        seen = np.concatenate(ranges)
        values = base + scalars[seen, 0] - table[parts, codes[seen]].sum(axis=1, dtype=np.float64)
        counts[q] = _keep(values.astype(np.float32), seen, distances[q], rows[q])
        scored[q] = len(seen)


def encode_pq(residuals: Any, codebooks: Any, codes: Any) -> None:
    """codes[i, s] = the centroid nearest to part s of row i."""
    parts = residuals.reshape(len(residuals), *codebooks.shape[:2], 1).astype(np.float64)
    codes[:] = ((parts - codebooks) ** 2).sum(axis=2).argmin(axis=2)


def list_means(codes: Any, scales: Any, offsets: Any, left_out: Any, first: Any, last: Any, means: Any) -> None:
    """The mean of each list's rows that are not left out; of all where all are."""
    for at in range(first, last):
        own = np.arange(offsets[at], offsets[at + 1])
        own = own if left_out[own].all() else own[~left_out[own]]
        means[at] = (scales[own, None].astype(np.float64) * codes[own]).mean(axis=0) if len(own) else 0.0


def residuals(codes: Any, scales: Any, centroids: Any, centroid_scales: Any, labels: Any, first: Any, out: Any) -> None:
    """Rows without their list's centroid."""
    own = slice(first, first + len(out))
    lists = labels[own]
    out[:] = scales[own, None] * codes[own] - centroid_scales[lists, None] * centroids[lists].astype(np.float32)
