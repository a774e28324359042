"""The oracle: exact scores of every stored vector, and recall against it.

search_all      the k best of all rows, in the same arithmetic as the rerank
search_allowed  the k best of the allowed rows; where they are few, only their pages are read
recall_of       share of the oracle's hits found, with its interval

A hit counts as found when its score is at least as good as the oracle's k-th: of equally good rows either is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from index.allowed import AllowedRows
from index.fullview import PageReader, aligned_pages
from index.fullview.layout import PAGE_BYTES, PageLayout
from index.kernels import score
from index.rerank import BestHits, Places, codes_of, components

BLOCK_PAGES = 256
QUERIES_AT_ONCE = 64
PAGE_AT_RANDOM = 8
"""Reading a page by itself costs as much as so many in one large read."""


@dataclass(frozen=True, slots=True)
class RecallEstimate:
    """Mean recall over `queries` queries and its 95 % interval."""

    mean: float
    low: float
    high: float
    queries: int


def search_all(
    reader: PageReader,
    places: Places,
    resident_codes: NDArray[np.uint64] | None,
    queries: NDArray[np.float32],
    *,
    metric: int,
    k: int,
    check: Callable[[int, int], None] | None = None,
) -> BestHits:
    """The k best of all rows for each query: float32 (m, dim). check: called with (pages done, in all); may raise."""
    layout = places.layout
    best = BestHits.empty(len(queries), min(k, layout.n))
    each = layout.pages_per_vector
    block = max(1, BLOCK_PAGES // each)
    total = layout.n_pages // each
    buffer = aligned_pages(block * each)
    lengths = score.squared_lengths(queries)
    for first in range(0, total, block):
        some = np.arange(first, min(first + block, total), dtype=np.int64)
        reader.sequential(1 + first * each, len(some) * each, buffer)
        _score_block(queries, lengths, metric, layout, some, buffer, resident_codes, best)
        if check is not None:
            check(min(first + block, total), total)
    best.sort()
    return best


def search_allowed(
    reader: PageReader,
    places: Places,
    resident_codes: NDArray[np.uint64] | None,
    queries: NDArray[np.float32],
    allowed: AllowedRows,
    *,
    metric: int,
    k: int,
) -> tuple[BestHits, int]:
    """The k best of the allowed rows for each query, and how many pages were read."""
    layout = places.layout
    best = BestHits.empty(len(queries), min(k, allowed.count))
    each = layout.pages_per_vector
    block = max(1, BLOCK_PAGES // each)
    buffer = aligned_pages(block * each)
    lengths = score.squared_lengths(queries)
    listed, pages = allowed.places(layout.vectors_per_page), 0
    few = len(listed) * PAGE_AT_RANDOM < layout.n_pages // each
    # Blocks of places in the file, or of listed places.
    cuts = np.arange(0, (len(listed) if few else layout.n_pages // each) + block, block)
    inside = cuts if few else np.searchsorted(listed, cuts)
    for start, end in pairwise(inside.tolist()):
        some = listed[start:end]
        if few:
            reader.begin(places.pages_of(some), out=buffer)
            reader.finish()
        elif len(some):
            some = np.arange(some[0], some[-1] + 1)
            reader.sequential(1 + int(some[0]) * each, len(some) * each, buffer)
        pages += len(some) * each
        _score_block(queries, lengths, metric, layout, some, buffer, resident_codes, best, allowed.mask)
    best.sort()
    return best, pages


def _score_block(
    queries: NDArray[np.float32],
    lengths: NDArray[np.float32],
    metric: int,
    layout: PageLayout,
    some: NDArray[np.int64],
    buffer: NDArray[np.uint8],
    resident_codes: NDArray[np.uint64] | None,
    best: BestHits,
    mask: NDArray[np.bool_] | None = None,
) -> None:
    """Score all rows (mask: those allowed) on places against all queries, QUERIES_AT_ONCE in a call."""
    page_rows = layout.vectors_per_page
    rows = (some[:, None] * page_rows + np.arange(page_rows)).reshape(-1)
    rows = rows[: len(rows) - max(0, (int(some[-1]) + 1) * page_rows - layout.n)] if len(rows) else rows
    inside = np.arange(len(rows))
    if mask is not None:
        inside = np.flatnonzero(mask[rows])
        rows = rows[inside]
    each = layout.pages_per_vector * PAGE_BYTES // layout.dtype.itemsize
    starts = inside // page_rows * each + inside % page_rows * layout.dim
    codes = codes_of(buffer, layout, rows, starts, resident_codes)
    flat = components(buffer, layout)
    for q in range(0, len(queries), QUERIES_AT_ONCE):
        m = min(QUERIES_AT_ONCE, len(queries) - q)
        # Row after row, so that each is widened once for all queries.
        query_of = np.tile(np.arange(q, q + m), len(rows))
        scores = np.empty(m * len(rows), np.float32)
        score.score_pairs(queries, lengths, flat, query_of, np.repeat(starts, m), metric, scores)
        best.add(query_of, scores, np.repeat(codes, m), np.repeat(rows, m))


def recall_of(
    found: NDArray[np.float32],
    found_counts: NDArray[np.int64],
    true: NDArray[np.float32],
    true_counts: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Recall of each query, float64 (m,), from inner scores (larger is nearer) of distinct rows, best first.

    found float32 (m, k), true float32 (m, k), each filled to its counts.
    """
    m = len(true)
    recall = np.ones(m)
    for q in range(m):
        wanted = int(true_counts[q])
        if wanted:
            limit = true[q, wanted - 1]
            recall[q] = min(wanted, int(np.count_nonzero(found[q, : found_counts[q]] >= limit))) / wanted
    return recall


def interval(recall: NDArray[np.float64], *, deviations: float = 1.96) -> RecallEstimate:
    """The mean and its interval: 95 % with 1.96 standard deviations to either side.

    Where every query was perfect, the rule of three bounds it from below.
    """
    m = len(recall)
    if m == 0:
        return RecallEstimate(1.0, 0.0, 1.0, 0)
    mean = float(recall.mean())
    error = float(recall.std(ddof=1) / np.sqrt(m)) if m > 1 else 0.0
    half = deviations * error
    if error == 0.0:
        half = min(1.0, 3.0 / m) * max(1.0 - mean, 0.1)
    return RecallEstimate(mean, max(0.0, mean - half), min(1.0, mean + half), m)
