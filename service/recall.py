"""Measuring recall: how many of the oracle's hits a search finds, over stored rows or over a client's own queries.

recall_of_rows()      stored rows as queries, each one itself left out
recall_of_queries()   queries that the client brought

A stored row is an easy query: it is its own nearest neighbour, and its neighbours are linked with it. So it is left out
of its own hits; the rest of what flatters can only be told.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from index.options import SearchOptions
from service.generation import SearchableIndex
from service.hits import sample_rows

_ROWS_FLATTER = (
    "Stored rows are easier queries than new ones, so this recall flatters, although each row was left out of its own hits. "
    'Send "queries" to measure with your own.'
)
_OWN_QUERIES = "The queries that came; for others like them the recall is the same within its interval."


def recall_of_rows(index: SearchableIndex, sample: int, *, k: int, options: SearchOptions) -> dict[str, Any]:
    """Recall of up to `sample` stored rows as queries, each one left out of its own hits."""
    # Imported here: the kernels must not load before an index is open.
    from index.exact import interval, recall_of

    rows, vectors = sample_rows(index, sample)
    # The row itself is among the k hits that a client would get, so k - 1 others are compared. Asking for one more hit
    # instead would measure the operating point of a larger k. Only k = 1 leaves no choice.
    wanted = max(2, k)
    sign = 1.0 if index.metric.larger_is_better else -1.0
    searches = (options, SearchOptions(exact=True))
    found, true = (_others(index.search(vectors, wanted, each), rows, wanted - 1, sign) for each in searches)
    estimate = interval(recall_of(*found, *true))
    return _shown(estimate, limit=k, compared=found[0].shape[1], sampled="stored rows", note=_ROWS_FLATTER)


def recall_of_queries(index: SearchableIndex, queries: np.ndarray, *, k: int, options: SearchOptions) -> dict[str, Any]:
    """Recall of queries float32 [m, dim]."""
    k = min(k, index.n)
    estimate = index.recall(queries, k=k, options=options)
    return _shown(estimate, limit=k, compared=k, sampled="queries", note=_OWN_QUERIES)


def _shown(estimate: Any, *, limit: int, compared: int, sampled: str, note: str) -> dict[str, Any]:
    return {
        "recall": float(estimate.mean),
        "low": float(estimate.low),
        "high": float(estimate.high),
        "queries": int(estimate.queries),
        "limit": limit,
        "compared": compared,
        "sampled": sampled,
        "note": note,
    }


def _others(hits: Any, rows: np.ndarray, count: int, sign: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores float32 [m, count] (larger is nearer) and counts of the best hits that are not the query's own row."""
    within = np.arange(hits.rows.shape[1]) < hits.counts[:, None]
    keep = within & (hits.rows != rows[:, None])
    # Stable: what is kept stays in its order and comes first.
    order = np.argsort(~keep, axis=1, kind="stable")[:, :count]
    scores = np.take_along_axis(sign * hits.scores, order, axis=1).astype(np.float32)
    return scores, np.minimum(keep.sum(axis=1), count).astype(np.int64)
