"""Operating points: what recall each effort and each stop rule gives, measured before anyone is promised anything.

The queries are rows that are not in the preview yet (rows that are in it flatter: 0.988 against 0.945 in a trial), or a
held-back half of the sample queries. The truth is the oracle's. Nothing is read: whether a true neighbour would be found
follows from the places that would be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.codes import Coder, PreparedQueries
from index.exact import interval, search_all
from index.fullview import VectorFile
from index.kernels.choose import count_found
from index.operating_points import MEASURED_K, READ_ALL, OperatingPoint, StopByError
from index.options import PreviewKind
from index.preview import Candidates, Preview, Scratch
from index.rerank import BestHits, Places

BEAMS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
PROMISE_DEVIATIONS = 2.58
"""A 99 % interval: among many points the cheapest that just reaches a target was lucky more often than not (with 95 % a
promise of 0.95 turned out 0.947 on 2,000 other queries)."""
STOPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
ANSWERS = max(MEASURED_K)
ENOUGH = 0.997
"""Recall beyond which no wider beam is measured: the points above it would all serve the same requests."""


def true_rows(
    file: VectorFile,
    places: Places,
    resident_codes: NDArray[np.uint64] | None,
    queries: NDArray[np.float32],
    *,
    metric: int,
    left_out: NDArray[np.int64],
    threads: int,
    check: Callable[[int, int], None],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The oracle's ANSWERS best rows of each query that are not left out, and their inner scores.

    int64 (m, ANSWERS), -1 where there are fewer; float32 (m, ANSWERS), minus infinity there. left_out: rows int64,
    ascending. check: called by one thread with (pages done, in all); may raise.
    """
    n = places.layout.n
    surplus = 50 + 2 * ANSWERS * len(left_out) // n if len(left_out) else 0
    parts = [part for part in np.array_split(queries, threads) if len(part)]

    def answer(number: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        best = search_all(
            file.reader(),
            places,
            resident_codes,
            parts[number],
            metric=metric,
            k=ANSWERS + surplus,
            check=(
                lambda done, total: check(
                    min(done * places.layout.pages_per_vector, places.layout.n_pages), places.layout.n_pages
                )
            )
            if number == 0
            else None,
        )
        return _first_outside(best, left_out)

    with ThreadPoolExecutor(len(parts)) as pool:
        others = [pool.submit(answer, number) for number in range(1, len(parts))]
        answers = [answer(0), *(other.result() for other in others)]
    return np.concatenate([rows for rows, _ in answers]), np.concatenate([scores for _, scores in answers])


def _first_outside(best: BestHits, left_out: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The first ANSWERS rows of each list that are not left out, and their scores."""
    good = ~np.isin(best.rows, left_out) & (np.arange(best.rows.shape[1]) < best.counts[:, None])
    order = np.argsort(~good, axis=1, kind="stable")[:, :ANSWERS]
    rows = np.full((len(best.rows), ANSWERS), -1, np.int64)
    scores = np.full(rows.shape, -np.inf, np.float32)
    rows[:, : order.shape[1]] = np.take_along_axis(np.where(good, best.rows, -1), order, axis=1)
    scores[:, : order.shape[1]] = np.take_along_axis(np.where(good, best.scores, -np.inf), order, axis=1)
    return rows, scores


@dataclass(frozen=True, slots=True)
class TuneQueries:
    """queries float32 (m, dim); true_rows int64 (m, 100), best first, -1 where there are fewer, with their inner scores;
    left_out int32: nodes that may not be candidates because they are the queries themselves, ascending."""

    queries: NDArray[np.float32]
    true_rows: NDArray[np.int64]
    true_scores: NDArray[np.float32]
    left_out: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tuner:
    """What a measurement needs beside the queries."""

    preview: Preview
    coder: Coder
    error_scale: float
    places: Places
    efforts: tuple[int, ...] = BEAMS

    def measure(self, tune: TuneQueries, *, check: Callable[[], None]) -> list[OperatingPoint]:
        """Points for k = 1, 10 and 100, effort by effort until recall is enough. check() may raise."""
        points: list[OperatingPoint] = []
        prepared = self.coder.prepare(tune.queries)
        open_k = list(MEASURED_K)
        for effort in self._efforts():
            some = [k for k in open_k if effort >= min(k, self.preview.nodes) or self.preview.kind is PreviewKind.IVF]
            if some:
                found = self.preview.candidates(prepared, effort=effort, width=max(some), scratch=Scratch())
                found = _without(found, tune.left_out)
            for k in some:
                at_effort = self._measure(tune, found, prepared, k, effort)
                points.extend(at_effort)
                if max(p.low for p in at_effort) >= ENOUGH:
                    open_k.remove(k)
            check()
        return points

    def _efforts(self) -> Iterator[int]:
        for effort in self.efforts:
            yield min(effort, self.preview.nodes)
            if effort >= self.preview.nodes:
                return

    def _measure(
        self, tune: TuneQueries, found: Candidates, prepared: PreparedQueries, k: int, effort: int
    ) -> list[OperatingPoint]:
        """Points of one effort, one for each stop rule."""
        # Of rows that are as good as the k-th any will do, as for whoever measures recall later.
        last = min(k, tune.true_scores.shape[1]) - 1
        good = (tune.true_rows >= 0) & (tune.true_scores >= tune.true_scores[:, last : last + 1])
        true = np.where(good, tune.true_rows, -1)
        wanted = np.clip(good.sum(axis=1), 1, k)
        true_places = np.where(true >= 0, true // self.places.layout.vectors_per_page, -1)
        reach = prepared.lengths * np.float32(self.error_scale)
        points = []
        for z in STOPS:
            copy = found._replace(nodes=found.nodes.copy())
            plan = self.places.plan_reads(copy, self.preview.error_scales(), reach, k=k, rule=StopByError(z=z))
            hits = np.empty(len(true), np.int64)
            count_found(true_places, plan.places, plan.offsets, hits)
            estimate = interval(np.minimum(hits, wanted) / wanted, deviations=PROMISE_DEVIATIONS)
            points.append(
                OperatingPoint(
                    k=k,
                    effort=effort,
                    rule=StopByError(z=z),
                    recall=estimate.mean,
                    low=estimate.low,
                    high=estimate.high,
                    pages=float(np.diff(plan.offsets).mean()) * self.places.layout.pages_per_vector,
                    rows_scored=float(found.scored.mean()),
                )
            )
        return points


def _without(found: Candidates, left_out: NDArray[np.int32]) -> Candidates:
    """The candidates without some nodes; order stays."""
    if not len(left_out):
        return found
    place = np.minimum(np.searchsorted(left_out, found.nodes), len(left_out) - 1)
    filled = np.arange(found.nodes.shape[1]) < found.counts[:, None]
    good = filled & (left_out[place] != found.nodes)
    order = np.argsort(~good, axis=1, kind="stable")
    return Candidates(
        np.ascontiguousarray(np.take_along_axis(found.nodes, order, axis=1)),
        np.ascontiguousarray(np.take_along_axis(found.distances, order, axis=1)),
        good.sum(axis=1).astype(np.int64),
        found.hops,
        found.scored,
    )


def useful(points: list[OperatingPoint]) -> list[OperatingPoint]:
    """The points that some request may choose: no other of the same k is as cheap with as good a lower bound."""
    kept: list[OperatingPoint] = []
    for k in MEASURED_K:
        best = -1.0
        for point in sorted((p for p in points if p.k == k), key=lambda p: (p.cost, -p.low)):
            if point.low > best:
                kept.append(point)
                best = point.low
    return kept


def points_of_few(nodes: int, pages: int) -> list[OperatingPoint]:
    """The only point of a collection so small that everything is read: exact."""
    return [
        OperatingPoint(
            k=k,
            effort=max(1, nodes),
            rule=StopByError(z=READ_ALL),
            recall=1.0,
            low=1.0,
            high=1.0,
            pages=float(pages),
            rows_scored=float(nodes),
        )
        for k in MEASURED_K
    ]
