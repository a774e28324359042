"""The reference of the scenarios: brute force in float64 over the stored vectors, and what "same results" means."""

from __future__ import annotations

import numpy as np


def all_scores(vectors: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    """Scores float64 (m, n) as users see them: l2 is the true distance."""
    x, q = np.asarray(vectors, np.float64), np.atleast_2d(np.asarray(queries, np.float64))
    if metric == "l2":
        # Differences, not |q|^2 - 2 q x + |x|^2: that loses all digits of small distances.
        return np.stack([np.linalg.norm(x - one, axis=1) for one in q])
    scores = q @ x.T
    if metric == "cosine":
        both = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(x, axis=1)
        scores = np.divide(scores, both, out=np.zeros_like(scores), where=both > 0)
    return scores


def best_scores(vectors: np.ndarray, queries: np.ndarray, metric: str, k: int) -> np.ndarray:
    """The k best scores of each query, best first."""
    scores = np.sort(all_scores(vectors, queries, metric), axis=1)
    return scores[:, :k] if metric == "l2" else scores[:, ::-1][:, :k]


def id_order(id: int | str) -> tuple[bool, int | str]:
    """Integers ascending, then strings by code point."""
    return isinstance(id, str), id


def require_reference(hits, vectors: np.ndarray, queries: np.ndarray, metric: str, k: int, ids=None) -> None:
    """The hits are the reference's: every score right, none missing, best first, equal scores by ascending id."""
    n = len(vectors)
    ids = list(range(n)) if ids is None else list(ids)
    row_of = {id: row for row, id in enumerate(ids)}
    scores, best = all_scores(vectors, queries, metric), best_scores(vectors, queries, metric, k)
    # float32 sums: relative to the size of what is summed.
    size = np.abs(np.atleast_2d(np.asarray(queries, np.float64))) @ np.abs(np.asarray(vectors, np.float64)).T
    slack = 2e-6 * (1.0 + (size if metric == "dot" else scores)) if metric != "cosine" else np.full(scores.shape, 2e-6)
    assert hits.counts.tolist() == [min(k, n)] * len(best)
    for q in range(len(best)):
        mine = hits.ids[q, : hits.counts[q]].tolist()
        got = hits.scores[q, : hits.counts[q]]
        rows = [row_of[id] for id in mine]
        assert len(set(mine)) == len(mine), "an id came twice"
        assert (np.abs(got - scores[q, rows]) <= slack[q, rows]).all(), "a score is not its vector's"
        assert (np.abs(got - best[q]) <= slack[q, rows]).all(), "a better row is missing"
        worse = np.diff(got) if metric == "l2" else -np.diff(got)
        assert (worse >= 0).all(), "not best first"
        for j in np.flatnonzero(worse == 0):
            assert id_order(mine[j]) < id_order(mine[j + 1]), "ties do not ascend by id"


def recall_by_scores(hits, vectors: np.ndarray, queries: np.ndarray, metric: str, k: int) -> float:
    """Mean share of the k hits that are as good as the reference's k-th."""
    best = best_scores(vectors, queries, metric, k)
    limit = best[:, -1:]
    got = hits.scores[:, :k].astype(np.float64)
    slack = 2e-6 * (1.0 + np.abs(limit))
    good = got <= limit + slack if metric == "l2" else got >= limit - slack
    good &= np.arange(got.shape[1]) < hits.counts[:, None]
    return float(np.minimum(good.sum(axis=1), best.shape[1]).mean() / best.shape[1])


def same_hits(a, b) -> bool:
    """Identical ids and counts, and scores with the same bits."""
    inside = np.arange(a.ids.shape[1]) < a.counts[:, None]
    return (
        a.counts.tolist() == b.counts.tolist()
        and a.ids.shape == b.ids.shape
        and bool((a.ids[inside] == b.ids[inside]).all())
        and a.scores[inside].tobytes() == b.scores[inside].tobytes()
    )
