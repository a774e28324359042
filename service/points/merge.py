"""Hits of a generation and hits of a delta -> hits of the collection.

search_slots()   the delta, exactly, in the arithmetic of the index's own exact scores
merge()          both, best first, ties by ascending id
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.options import Metric, SearchOptions
from service.points.delta import DeltaView

_BOUNDED_FROM = 256
"""Below so many slots all are scored: bounding them costs as much."""


@dataclass(slots=True)
class Found:
    """Hits of m queries, as index.Hits has them, with positions (view.py) in place of rows."""

    ids: NDArray[Any]
    scores: NDArray[np.float32]
    counts: NDArray[np.int64]
    positions: NDArray[np.int64]
    work: Any


@dataclass(slots=True)
class _Written:
    """Hits of the delta for m queries: scores outward, ids, slots; one list each."""

    scores: list[NDArray[np.float32]]
    ids: list[list[Any]]
    slots: list[NDArray[np.int64]]
    scored: NDArray[np.int64]
    micros: float


def search_slots(
    delta: DeltaView | None,
    slots: NDArray[np.int64],
    queries: NDArray[np.float32],
    *,
    k: int,
    metric: str,
    options: SearchOptions,
    dim: int,
) -> _Written:
    """The k best of some slots for each query. Raises what index.search raises for queries that have no answer."""
    # Imported here: an import of the service must not compile or load kernels.
    from index.bounded import candidates
    from index.kernels import score
    from index.metric import KERNEL_METRIC, as_queries, inward, outward

    begun = time.perf_counter()
    kind = Metric(metric)
    vectors = as_queries(queries, dim=dim, metric=kind)
    m = len(vectors)
    found = _Written([], [], [], np.zeros(m, np.int64), 0.0)
    usable = slots[delta.has_vector[slots]] if delta is not None else slots[:0]
    lengths = score.squared_lengths(vectors)
    limit = None if options.score_threshold is None else np.float32(inward(options.score_threshold, kind))
    for q in range(m):
        chosen = usable
        if delta is not None and len(usable) >= _BOUNDED_FROM:
            chosen = candidates(delta.codes, usable, vectors[q], k=k, metric=kind)
        scores = np.empty(len(chosen), np.float32)
        if delta is not None and len(chosen):
            query_of = np.full(len(chosen), q, np.int64)
            score.score_pairs(
                vectors, lengths, delta.vectors.reshape(-1), query_of, chosen * dim, KERNEL_METRIC[kind], scores
            )
        good = np.arange(len(scores)) if limit is None else np.flatnonzero(scores >= limit)
        if len(good) > k:
            # All that are as good as the k-th: ids decide among them.
            worst = np.partition(scores[good], len(good) - k)[len(good) - k]
            good = good[scores[good] >= worst]
        ids = [delta.id(slot) for slot in chosen[good].tolist()] if delta is not None else []
        order = sorted(range(len(good)), key=lambda j: (-scores[good[j]], isinstance(ids[j], str), ids[j]))[:k]
        found.scores.append(outward(scores[good[order]], kind))
        found.ids.append([ids[j] for j in order])
        found.slots.append(chosen[good[order]])
        found.scored[q] = len(chosen)
    found.micros = (time.perf_counter() - begun) * 1e6 / max(1, m)
    return found


def merge(hits: Any, written: _Written, *, k: int, n_rows: int, metric: str) -> Found:
    """hits: of the generation, or None where nothing of it matches."""
    from index.hits import Work

    m = len(written.scores)
    sign = 1.0 if metric == Metric.L2 else -1.0
    rows = []
    for q in range(m):
        merged = [
            (sign * float(score), isinstance(id_, str), id_, n_rows + int(slot), score)
            for score, id_, slot in zip(written.scores[q], written.ids[q], written.slots[q], strict=True)
        ]
        if hits is not None:
            count = int(hits.counts[q])
            merged += [
                (sign * float(score), isinstance(id_, str), id_, row, score)
                for score, id_, row in zip(
                    hits.scores[q, :count], hits.ids[q, :count].tolist(), hits.rows[q, :count].tolist(), strict=True
                )
            ]
            merged.sort(key=lambda hit: hit[:3])
        rows.append(merged[:k])
    width = max((len(merged) for merged in rows), default=0)
    texts = any(hit[1] for merged in rows for hit in merged)
    ids = np.zeros((m, width), object if texts else np.uint64)
    scores, positions = np.zeros((m, width), np.float32), np.full((m, width), -1, np.int64)
    counts = np.array([len(merged) for merged in rows], np.int64)
    for q, merged in enumerate(rows):
        if merged:
            ids[q, : len(merged)] = [hit[2] for hit in merged]
            scores[q, : len(merged)] = [hit[4] for hit in merged]
            positions[q, : len(merged)] = [hit[3] for hit in merged]
    work = hits.work if hits is not None else Work.empty(m)
    work.rows_reranked[:] += written.scored
    work.microseconds["delta"] = np.full(m, written.micros)
    return Found(ids, scores, counts, positions, work)
