"""Measuring recall: how many of the oracle's hits a search finds, over stored rows or over a client's own queries.

recall_of_points()    stored points as queries, each one itself left out
recall_of_queries()   queries that the client brought

A stored row is an easy query: it is its own nearest neighbour, and its neighbours are linked with it. So it is left out
of its own hits; the rest of what flatters can only be told.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from index.options import Metric, SearchOptions
from service.points.merge import Found
from service.points.view import PointsView

_ROWS_FLATTER = (
    "Stored rows are easier queries than new ones, so this recall flatters, although each row was left out of its own hits. "
    'Send "queries" to measure with your own.'
)
_OWN_QUERIES = "The queries that came; for others like them the recall is the same within its interval."


def recall_of_points(view: PointsView, sample: int, *, k: int, options: SearchOptions) -> dict[str, Any]:
    """Recall of up to `sample` stored points as queries, each one left out of its own hits."""
    # Imported here: the kernels must not load before an index is open.
    from index.exact import interval, recall_of

    positions, vectors = sample_points(view, sample)
    # The row itself is among the k hits that a client would get, so k - 1 others are compared. Asking for one more hit
    # instead would measure the operating point of a larger k. Only k = 1 leaves no choice.
    wanted = max(2, k)
    sign = -1.0 if view.metric == Metric.L2 else 1.0
    searches = (options, SearchOptions(exact=True))
    found, true = (_others(view.search(vectors, wanted, each), positions, wanted - 1, sign) for each in searches)
    estimate = interval(recall_of(*found, *true))
    return _shown(estimate, limit=k, compared=found[0].shape[1], sampled="stored rows", note=_ROWS_FLATTER)


def sample_points(view: PointsView, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions int64 of up to `size` points with vectors, the same ones at each call, and these as float32.

    Zero vectors are no queries.
    """
    masks = view.masks(None)
    rows = np.arange(view.n_rows) if masks.rows is None else np.flatnonzero(masks.rows.mask)
    slots = masks.slots if view.delta is None else masks.slots[view.delta.has_vector[masks.slots]]
    every = np.concatenate([rows, view.n_rows + slots])
    chosen = np.sort(np.random.default_rng(0).choice(every, size=min(size, len(every)), replace=False))
    vectors = np.array([vector for vector in view.vectors_of(chosen) if vector is not None], np.float32)
    vectors = vectors.reshape(len(chosen), view.dim)
    given = np.any(vectors != 0, axis=1)
    return chosen[given], vectors[given]


def recall_of_queries(view: PointsView, queries: np.ndarray, *, k: int, options: SearchOptions) -> dict[str, Any]:
    """Recall of queries float32 [m, dim]."""
    from index.exact import interval, recall_of

    k = min(k, view.count())
    sign = -1.0 if view.metric == Metric.L2 else 1.0
    found, true = (view.search(queries, k, each) for each in (options, SearchOptions(exact=True)))
    estimate = interval(
        recall_of(
            (sign * found.scores).astype(np.float32), found.counts, (sign * true.scores).astype(np.float32), true.counts
        )
    )
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


def _others(hits: Found, own: np.ndarray, count: int, sign: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores float32 [m, count] (larger is nearer) and counts of the best hits that are not the query's own point."""
    within = np.arange(hits.positions.shape[1]) < hits.counts[:, None]
    keep = within & (hits.positions != own[:, None])
    # Stable: what is kept stays in its order and comes first.
    order = np.argsort(~keep, axis=1, kind="stable")[:, :count]
    scores = np.take_along_axis(sign * hits.scores, order, axis=1).astype(np.float32)
    return scores, np.minimum(keep.sum(axis=1), count).astype(np.int64)
