"""Which candidates are read, and the exact scores of what was read.

plan_reads   candidates -> places of the vector file; decides, reads nothing
score_reads  pages in memory -> the best hits, exact

One wave. The k-th nearest estimate stands for the k-th exact distance, which is not known yet: reading first and
deciding then saves under one page in ten and costs a second wait for the device (docs/decisions/0003-rerank.md). All rows on
a page that is read anyway are scored. Invariant: every score that leaves here was computed from a stored vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from index.allowed import AllowedRows
from index.fullview.layout import PAGE_BYTES, PageLayout
from index.kernels import choose, score
from index.kernels.allowed import keep_allowed_rows, list_allowed_places
from index.operating_points import READ_ALL, RerankRule, StopByError
from index.preview import Candidates, Groups

Queries = NDArray[np.float32]


class ReadPlan(NamedTuple):
    """places int64 (p,): groups of pages to read; offsets int64 (m + 1,): where each query's places begin;
    pages int64: the same as pages of the file; chosen int64 (m,): candidates taken."""

    places: NDArray[np.int64]
    offsets: NDArray[np.int64]
    pages: NDArray[np.int64]
    chosen: NDArray[np.int64]


@dataclass(slots=True)
class BestHits:
    """The k best of m queries so far: a heap a query until `sort`. scores: larger is nearer; codes: id codes."""

    scores: NDArray[np.float32]
    codes: NDArray[np.uint64]
    rows: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def empty(cls, m: int, k: int) -> BestHits:
        """Room for k hits of each of m queries."""
        return cls(
            np.zeros((m, k), np.float32),
            np.zeros((m, k), np.uint64),
            np.full((m, k), -1, np.int64),
            np.zeros(m, np.int64),
        )

    def add(
        self,
        query_of: NDArray[np.int64],
        scores: NDArray[np.float32],
        codes: NDArray[np.uint64],
        rows: NDArray[np.int64],
    ) -> None:
        """Put scored rows into the heaps of their queries."""
        choose.keep_best(query_of, scores, codes, rows, self.scores, self.codes, self.rows, self.counts)

    def sort(self) -> None:
        """Best first, ties by ascending id. Nothing can be added afterwards."""
        choose.sort_best(self.scores, self.codes, self.rows, self.counts)


@dataclass(frozen=True, slots=True)
class Places:
    """What the file's layout and the groups of equal vectors say about where a node's rows are."""

    layout: PageLayout
    groups: Groups

    def plan_reads(
        self,
        candidates: Candidates,
        scales: NDArray[np.float32],
        reach: NDArray[np.float32],
        *,
        k: int,
        rule: RerankRule,
        allowed: AllowedRows | None = None,
    ) -> ReadPlan:
        """Places to read for each query. reach float32 (m,): a standard deviation of the estimate over a row's scale.

        allowed: all candidates are nodes of which a row is allowed.
        """
        m = len(candidates.nodes)
        chosen, offsets = np.empty(m, np.int64), np.empty(m + 1, np.int64)
        depth = 0
        if not isinstance(rule, StopByError):
            depth = rule.depth
        elif rule.z >= READ_ALL:
            depth = candidates.nodes.shape[1]
        else:
            reach = (reach * np.float32(rule.z)).astype(np.float32)
        choose.choose_candidates(
            candidates.nodes, candidates.distances, candidates.counts, scales, reach, k, depth, chosen
        )
        groups, page_rows = self.groups, self.layout.vectors_per_page
        if allowed is None or not len(groups.nodes):
            places = choose.list_places(candidates.nodes, chosen, groups.nodes, groups.extra, k, page_rows, offsets)
        else:
            places = list_allowed_places(
                candidates.nodes, chosen, groups.nodes, groups.extra, allowed.mask, k, page_rows, offsets
            )
        return ReadPlan(places, offsets, self.pages_of(places), chosen)

    def pages_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pages of the file that make up the places, in order; page 0 is the file's header."""
        each = self.layout.pages_per_vector
        if each == 1:
            return places + 1
        return (places[:, None] * each + np.arange(1, each + 1)).reshape(-1)


def score_reads(
    queries: Queries,
    lengths: NDArray[np.float32],
    metric: int,
    layout: PageLayout,
    plan: ReadPlan,
    pages: NDArray[np.uint8],
    resident_codes: NDArray[np.uint64] | None,
    best: BestHits,
    allowed: AllowedRows | None = None,
    scored: NDArray[np.int64] | None = None,
) -> int:
    """Score every row (of those allowed) on the pages read and keep the best; returns how many were scored.

    scored int64 (m,), needed with `allowed`: filled with how many of each query.

    pages: uint8 (len(plan.pages), 4096); lengths: |q|^2 from `score.squared_lengths`; resident_codes: id codes by row
    where they are not in the pages.
    """
    size = layout.dtype.itemsize
    each = layout.pages_per_vector * PAGE_BYTES
    query_of = np.empty(len(plan.places) * layout.vectors_per_page, np.int64)
    rows, starts = np.empty_like(query_of), np.empty_like(query_of)
    count: int = choose.list_rows(
        plan.places, plan.offsets, layout.n, layout.vectors_per_page, each // size, layout.dim, query_of, rows, starts
    )
    if allowed is not None:
        count = keep_allowed_rows(query_of, rows, starts, count, allowed.mask, scored)
    query_of, rows, starts = query_of[:count], rows[:count], starts[:count]
    scores = np.empty(count, np.float32)
    score.score_pairs(queries, lengths, components(pages, layout), query_of, starts, metric, scores)
    best.add(query_of, scores, codes_of(pages, layout, rows, starts, resident_codes), rows)
    return count


def codes_of(
    pages: NDArray[np.uint8],
    layout: PageLayout,
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    resident_codes: NDArray[np.uint64] | None,
) -> NDArray[np.uint64]:
    """Id codes uint64 of rows whose vectors begin at component `starts` of the buffer."""
    if resident_codes is not None:
        return resident_codes[rows]
    each = layout.pages_per_vector * PAGE_BYTES
    place = starts // (each // layout.dtype.itemsize)
    codes: NDArray[np.uint64] = pages.reshape(-1).view(np.uint64)[(place * each + layout.id_offset(rows)) // 8]
    return codes


def components(pages: NDArray[np.uint8], layout: PageLayout) -> NDArray[np.generic]:
    """Bytes as the stored components; float16 as the uint16 that the kernels take."""
    return pages.reshape(-1).view(np.uint16 if layout.dtype == np.float16 else layout.dtype)
