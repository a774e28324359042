"""A second look, for searches among allowed rows: what the first wave of reads may have missed is read.

The stop rule of an operating point was calibrated where a query's nearest rows are: a few near ones, then ever more that
are farther. Where the near ones are not allowed, the best allowed rows are many and about equally far, and estimates do
not tell them apart. So the rows that are still expected to belong among the k best are counted, from the estimates, their
errors and the exact k-th distance that the first wave found. Nearly always that is less than MISS allows, and nothing
more is done. Else more candidates are read; where even the candidates are too few, all allowed codes are scored and the
candidates read in turn; where that would cost as much as the oracle, the oracle answers.
Figures: docs/decisions/0011-filtered-search.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.allowed import AllowedRows
from index.codes import PreparedQueries
from index.exact import PAGE_AT_RANDOM, search_allowed
from index.folder import Generation
from index.fullview import PageReader, aligned_pages
from index.hits import Work
from index.kernels import score
from index.kernels.allowed import missed_ends
from index.metric import KERNEL_METRIC
from index.operating_points import FixedDepth
from index.preview import Candidates
from index.rerank import BestHits, ReadPlan, score_reads

MISS = 0.5
"""Of the hits that the asked recall lets go, the share that the reads may be expected to lose."""
DEEP = 4096
"""Candidates of a query whose first ones were too few."""
READ_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class SecondLook:
    """What it takes to look again. reader: one with no request open; recall: what the search was asked for."""

    generation: Generation
    reader: PageReader
    allowed: AllowedRows
    k: int
    recall: float

    def complete(
        self,
        vectors: NDArray[np.float32],
        prepared: PreparedQueries,
        candidates: Candidates,
        plan: ReadPlan,
        read: NDArray[np.int32],
        best: BestHits,
        work: Work,
        first: int,
    ) -> None:
        """Read on where too much is expected to be missing. best: after the first wave, of these queries; first: the
        first query's place in `work`; read: nodes of the first wave, to plan.chosen."""
        if self.k >= self.allowed.count:
            return
        ends = self._ends(vectors, prepared, candidates, read, plan.chosen, best)
        for q in np.flatnonzero(ends):
            one = slice(int(q), int(q) + 1)
            mine = BestHits(best.scores[one], best.codes[one], best.rows[one], best.counts[one])
            looked = _Looked(self, vectors[one], prepared.only(np.array([q])), mine, work, first + int(q))
            if ends[q] < 0:
                looked.look_deep()
            else:
                there = plan.places[plan.offsets[q] : plan.offsets[q + 1]]
                looked.read(candidates.nodes[one, : ends[q]], except_places=there)

    def _ends(
        self,
        vectors: NDArray[np.float32],
        prepared: PreparedQueries,
        candidates: Candidates,
        read: NDArray[np.int32],
        chosen: NDArray[np.int64],
        best: BestHits,
    ) -> NDArray[np.int64]:
        """How many leading candidates are worth reading: 0 no more than was read, -1 more than there are."""
        generation = self.generation
        assert candidates.horizons is not None, "candidates among allowed nodes say how far they are complete"
        ends = np.empty(len(vectors), np.int64)
        missed_ends(
            candidates.nodes,
            candidates.distances,
            candidates.counts,
            candidates.horizons,
            read,
            chosen,
            generation.preview.error_scales(),
            prepared.lengths * np.float32(generation.error_scale),
            generation.coder.distances_of(best.scores[:, 0], vectors, prepared),
            MISS * (1.0 - self.recall) * self.k,
            ends,
        )
        return ends


@dataclass(frozen=True, slots=True)
class _Looked:
    """One query that is looked at again. best: its heap; at: its place in `work`."""

    look: SecondLook
    vector: NDArray[np.float32]
    prepared: PreparedQueries
    best: BestHits
    work: Work
    at: int

    def read(self, nodes: NDArray[np.int32], *, except_places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Read the pages of nodes int32 (1, c), but those read already, and score them; returns the places read now."""
        look, generation = self.look, self.look.generation
        layout = generation.layout
        count = np.full(1, nodes.shape[1], np.int64)
        found = Candidates(np.ascontiguousarray(nodes), np.zeros(nodes.shape, np.float32), count, count, count)
        plan = generation.places.plan_reads(
            found,
            generation.preview.error_scales(),
            np.zeros(1, np.float32),
            k=look.k,
            rule=FixedDepth(depth=max(1, nodes.shape[1])),
            allowed=look.allowed,
        )
        new = np.setdiff1d(plan.places, except_places, assume_unique=True)
        for start in range(0, len(new), READ_AT_ONCE):
            some = new[start : start + READ_AT_ONCE]
            part = ReadPlan(some, np.array([0, len(some)], np.int64), generation.places.pages_of(some), count)
            pages = aligned_pages(len(part.pages))
            look.reader.begin(part.pages, out=pages)
            look.reader.finish()
            scored = np.zeros(1, np.int64)
            score_reads(
                self.vector,
                score.squared_lengths(self.vector),
                KERNEL_METRIC[generation.metric],
                layout,
                part,
                pages,
                generation.resident_codes,
                self.best,
                look.allowed,
                scored,
            )
            self.work.pages_read[self.at] += len(part.pages)
            self.work.rows_reranked[self.at] += int(scored[0])
        self.work.candidates[self.at] = max(int(self.work.candidates[self.at]), nodes.shape[1])
        return new

    def look_deep(self) -> None:
        """Score all allowed codes and read candidates in turn, or score all allowed rows."""
        look, generation = self.look, self.look.generation
        nodes = look.allowed.nodes(generation.places.groups)
        found = generation.preview.allowed_scan(self.prepared, keep=DEEP, allowed=nodes)
        self.work.rows_scored[self.at] += int(found.scored[0])
        self.best.counts[:] = 0
        done, places, end = 0, np.zeros(0, np.int64), min(max(look.k, READ_AT_ONCE), int(found.counts[0]))
        layout = generation.layout
        most = min(
            len(look.allowed.places(layout.vectors_per_page)), layout.n // layout.vectors_per_page // PAGE_AT_RANDOM
        )
        while done < end:
            new = self.read(found.nodes[:, done:end], except_places=places)
            places, done = np.union1d(places, new), end
            known = np.full(1, done, np.int64)
            ends = look._ends(self.vector, self.prepared, found, found.nodes, known, self.best)
            if ends[0] < 0 or ends[0] > most:
                self.score_all()
                return
            end = min(int(ends[0]), done + 2 * READ_AT_ONCE)

    def score_all(self) -> None:
        """The oracle's answer."""
        look, generation = self.look, self.look.generation
        best, pages = search_allowed(
            look.reader,
            generation.places,
            generation.resident_codes,
            self.vector,
            look.allowed,
            metric=KERNEL_METRIC[generation.metric],
            k=look.k,
        )
        # Best first, so backwards it is a heap, whose root is the worst.
        self.best.scores[:], self.best.codes[:] = best.scores[:, ::-1], best.codes[:, ::-1]
        self.best.rows[:], self.best.counts[:] = best.rows[:, ::-1], best.counts
        self.work.pages_read[self.at] += pages
        self.work.rows_reranked[self.at] += look.allowed.count
        self.work.candidates[self.at] = look.allowed.count
