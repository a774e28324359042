"""Two-stage search: propose candidates from the preview in memory, rerank them exactly from the vector file.

OpenIndex.search   the whole path of a query, from top to bottom
open_index         a folder that `build` made, ready to search

The walk of the next few queries runs while the pages of the last few are read. Invariant: a score that leaves here is
exact. Not here: how candidates are found (preview/), which are read (rerank.py), how pages are read (fullview/).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from index import exact
from index.allowed import AllowedRows
from index.codes import PreparedQueries
from index.columns import PayloadColumns
from index.errors import IndexClosedError, OptionsError, ShapeMismatchError
from index.folder import Generation, open_generation
from index.fullview import PageReader, aligned_pages
from index.hits import Hits, Work
from index.kernels import score
from index.metric import KERNEL_METRIC, as_queries, inward, outward
from index.operating_points import (
    MEASURED_K,
    FixedDepth,
    OperatingPoint,
    RerankRule,
    among_allowed,
    choose_point,
    effort_for,
    measured_k,
)
from index.options import Metric, OpenOptions, PreviewKind, SearchOptions
from index.preview import Candidates, Scratch
from index.rerank import BestHits, ReadPlan, score_reads
from index.second_look import SecondLook

PAGES_AT_ONCE = 96
"""Pages asked for together, of as many queries as that takes: a device gives no more than with 32 to 64 waiting reads."""

SCAN_SHARE = 50
"""Above every measured k, a search for more than one row in so many scans the whole file: at 40,000 x 96 float32 that takes
5 ms, walking and reading for 1,000 hits 29 ms, for 5,000 hits 165 ms. A beam or rerank that is asked for is kept to."""

PROMISED = SearchOptions()
"""A search that says nothing gets what was promised at build. Made once: making options checks them."""


class SearchScratch:
    """What one running search borrows: a page reader, two page buffers in turn, the preview's scratch."""

    def __init__(self, generation: Generation) -> None:
        self.reader: PageReader = generation.vectors.reader()
        self.preview = Scratch()
        self._generation = generation
        self._second: PageReader | None = None
        self._buffers = [aligned_pages(32), aligned_pages(32)]
        self._turn = 0

    @property
    def second_reader(self) -> PageReader:
        """Another reader, for reads while the first one's are on their way."""
        if self._second is None:
            self._second = self._generation.vectors.reader()
        return self._second

    def buffer(self, pages: int) -> NDArray[np.uint8]:
        """The other buffer of the two, at least `pages` long: the last one may still be in use."""
        self._turn ^= 1
        if len(self._buffers[self._turn]) < pages:
            self._buffers[self._turn] = aligned_pages(pages + pages // 8)
        return self._buffers[self._turn]

    @property
    def resident_bytes(self) -> int:
        """Memory held."""
        return sum(b.nbytes for b in self._buffers) + self.preview.resident_bytes


class _How(NamedTuple):
    """How one search proposes and reads: hits wanted, effort, candidates kept at least, when to stop; among which rows,
    and what recall a second look holds (None: no second look)."""

    k: int
    effort: int
    width: int
    rule: RerankRule
    allowed: AllowedRows | None
    look_again: float | None


class _Wave(NamedTuple):
    """A few queries on their way. candidates: as proposed, for a second look."""

    part: slice
    plan: ReadPlan
    proposed: Candidates
    prepared: PreparedQueries
    candidates: Candidates | None


class OpenIndex:
    """An index open for reading.

    Threads: search() from any number at once, each call on its caller's thread. Fork: a child may go on searching.
    close() waits for running searches. Arrays returned are the caller's.

    ids: the IdTable, ids to rows and back. payload: the PayloadFile, or None where the index was built without payloads;
    payloads() answers either way.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.n, self.dim, self.metric = generation.n, generation.dim, generation.metric
        self.dtype, self.path = generation.dtype, generation.path
        self.ids, self.payload = generation.ids, generation.payload
        self._idle: list[SearchScratch] = []
        self._chosen: dict[tuple[int, float], OperatingPoint] = {}
        self._closed = False
        self._pid = os.getpid()

    def search(
        self, queries: Any, k: int = 10, options: SearchOptions | None = None, *, allowed: AllowedRows | None = None
    ) -> Hits:
        """The k nearest stored vectors of each query, nearest first, with exact scores.

        queries: (m, dim) or (dim,), any numeric dtype; k >= 1, more than n gives n hits. allowed: the rows that may be hits;
        fewer of them than k give all of them.
        Raises ShapeMismatchError, BadQueryError, OptionsError, ReadFailedError, CorruptIndexError, IndexClosedError.
        """
        options = options or PROMISED
        vectors = as_queries(queries, dim=self.dim, metric=self.metric)
        k = _require_k(k, self.n)
        effort, width, rule = self._effort(k, options)
        point = self.point(k, options.recall)
        given = options.beam or options.probes or options.rerank
        if allowed is not None:
            k, rule = _require_allowed(allowed, self.n, k), among_allowed(rule, k)
        asked = self.generation.promised_recall if options.recall is None else options.recall
        everything = options.exact or (given is None and k > MEASURED_K[-1] and k * SCAN_SHARE >= self.n)
        if everything or (allowed is not None and self._few(allowed, k, point)):
            return self._search_exact(vectors, k, options, allowed)
        how = _How(k, effort, width, rule, allowed, asked if allowed is not None and given is None else None)
        work = Work.empty(len(vectors))
        best = BestHits.empty(len(vectors), k)
        with self._scratch() as scratch:
            waiting: tuple[_Wave, NDArray[np.uint8]] | None = None
            for part in _parts(len(vectors), point.pages * max(1.0, k / 100)):
                wave = self._propose(vectors[part], how, scratch, work, part)
                if waiting is not None:
                    self._wait(scratch, work, waiting[0].part)
                pages = scratch.buffer(len(wave.plan.pages))
                scratch.reader.begin(wave.plan.pages, out=pages)
                if waiting is not None:
                    self._rerank(vectors, how, best, work, scratch, *waiting)
                waiting = wave, pages
            if waiting is not None:
                self._wait(scratch, work, waiting[0].part)
                self._rerank(vectors, how, best, work, scratch, *waiting)
        best.sort()
        return self._hits(best, work, options, point if given is None else None)

    def _few(self, allowed: AllowedRows, k: int, point: OperatingPoint) -> bool:
        """Whether the allowed rows lie on so few pages that reading all of them costs what a rerank would."""
        usual = point.pages * max(1.0, k / point.k)
        if allowed.count > (k + usual) * self.generation.layout.vectors_per_page:
            return False
        layout = self.generation.layout
        return len(allowed.places(layout.vectors_per_page)) * layout.pages_per_vector <= k + usual

    def _propose(
        self, vectors: NDArray[np.float32], how: _How, scratch: SearchScratch, work: Work, part: slice
    ) -> _Wave:
        """Candidates of a few queries, and which pages to read for them."""
        begun = time.perf_counter()
        generation, preview = self.generation, self.generation.preview
        prepared = generation.coder.prepare(vectors)
        effort, width, allowed = how.effort, how.width, how.allowed
        candidates: Candidates
        if allowed is None:
            candidates = preview.candidates(prepared, effort=effort, width=width, scratch=scratch.preview)
        else:
            nodes = allowed.nodes(generation.places.groups)
            candidates = preview.allowed_candidates(
                prepared, effort=effort, width=width, allowed=nodes, scratch=scratch.preview
            )
        # Choosing moves what is read to the front; a second look wants the candidates in their order.
        whole = None if how.look_again is None else candidates._replace(nodes=candidates.nodes.copy())
        reach = prepared.lengths * np.float32(generation.error_scale)
        plan = generation.places.plan_reads(
            candidates, preview.error_scales(), reach, k=how.k, rule=how.rule, allowed=allowed
        )
        work.hops[part], work.rows_scored[part] = candidates.hops, candidates.scored
        work.candidates[part] = plan.chosen
        work.pages_read[part] = np.diff(plan.offsets) * generation.layout.pages_per_vector
        work.spend("preview", part, begun)
        return _Wave(part, plan, candidates, prepared, whole)

    def _wait(self, scratch: SearchScratch, work: Work, part: slice) -> None:
        """Wait until the pages asked for are there and verified."""
        begun = time.perf_counter()
        scratch.reader.finish()
        work.spend("read", part, begun)

    def _rerank(
        self,
        vectors: NDArray[np.float32],
        how: _How,
        best: BestHits,
        work: Work,
        scratch: SearchScratch,
        wave: _Wave,
        pages: NDArray[np.uint8],
    ) -> None:
        """Score all rows (of those allowed) on the pages and keep each query's best; look again where that is not enough."""
        begun = time.perf_counter()
        part, plan = wave.part, wave.plan
        mine = BestHits(best.scores[part], best.codes[part], best.rows[part], best.counts[part])
        some = vectors[part]
        work.rows_reranked[part] = np.diff(plan.offsets) * self.generation.layout.vectors_per_page
        score_reads(
            some,
            score.squared_lengths(some),
            KERNEL_METRIC[self.metric],
            self.generation.layout,
            plan,
            pages[: len(plan.pages)],
            self.generation.resident_codes,
            mine,
            how.allowed,
            work.rows_reranked[part],
        )
        if how.allowed is not None and how.look_again is not None and wave.candidates is not None:
            look = SecondLook(self.generation, scratch.second_reader, how.allowed, how.k, how.look_again)
            look.complete(some, wave.prepared, wave.candidates, plan, wave.proposed.nodes, mine, work, part.start)
        work.spend("rerank", part, begun)

    def _search_exact(
        self, vectors: NDArray[np.float32], k: int, options: SearchOptions, allowed: AllowedRows | None
    ) -> Hits:
        generation, begun = self.generation, time.perf_counter()
        places, codes, metric = generation.places, generation.resident_codes, KERNEL_METRIC[self.metric]
        work = Work.empty(len(vectors))
        with self._scratch() as scratch:
            if allowed is None:
                best = exact.search_all(scratch.reader, places, codes, vectors, metric=metric, k=k)
                count, pages = self.n, generation.layout.n_pages
            else:
                best, pages = exact.search_allowed(scratch.reader, places, codes, vectors, allowed, metric=metric, k=k)
                count = allowed.count
        work.rows_reranked[:], work.candidates[:] = count, count
        work.pages_read[:] = pages
        work.spend("exact", slice(0, len(vectors)), begun)
        return self._hits(best, work, options)

    def _hits(self, best: BestHits, work: Work, options: SearchOptions, point: OperatingPoint | None = None) -> Hits:
        """Ids and outward scores; hits worse than the threshold are cut off."""
        counts = best.counts
        if options.score_threshold is not None:
            with np.errstate(over="ignore"):  # beyond float32 is beyond every score
                limit = np.float32(inward(options.score_threshold, self.metric))
            good = (best.scores >= limit) & (np.arange(best.scores.shape[1]) < counts[:, None])
            counts = good.sum(axis=1).astype(np.int64)
        work.finish()
        return Hits(
            ids=self.ids.ids_of_codes(best.codes),
            scores=outward(best.scores, self.metric),
            counts=counts,
            rows=best.rows,
            work=work,
            point=point,
            reached=self._reached(options, point),
        )

    def _reached(self, options: SearchOptions, point: OperatingPoint | None) -> bool:
        if point is None:
            return options.rerank is None or options.recall is None
        return point.low >= (self.generation.promised_recall if options.recall is None else options.recall)

    def _effort(self, k: int, options: SearchOptions) -> tuple[int, int, RerankRule]:
        """(effort, candidates kept at least, rerank rule) of a search."""
        point, kind = self.point(k, options.recall), self.generation.preview.kind
        right, wrong = ("probes", "beam") if kind is PreviewKind.IVF else ("beam", "probes")
        if getattr(options, wrong) is not None:
            why = "it visits lists" if right == "probes" else "it has no lists"
            raise OptionsError(f"{wrong} was given, but the preview of this index is {kind}: {why}. Give {right}.")
        given = getattr(options, right)
        effort = given if given is not None else effort_for(point, k)
        rule: RerankRule = FixedDepth(depth=options.rerank) if options.rerank is not None else point.rule
        return effort, max(k, options.rerank or 0), rule

    @property
    def columns(self) -> PayloadColumns | None:
        """Typed columns of the payloads, for filters; None where the index was built without payloads.

        Raises CorruptIndexError, ReadFailedError, IndexClosedError.
        """
        if self._closed:
            raise IndexClosedError(f"{self.path} was closed; open the index again")
        return self.generation.columns

    def point(self, k: int, recall: float | None = None) -> OperatingPoint:
        """The operating point of a search for k hits: for the recall asked for, or the one promised at build."""
        asked = self.generation.promised_recall if recall is None else recall
        key = (measured_k(k), asked)
        if key not in self._chosen:
            # Only as many entries as recalls were asked for; looking through the points takes a fifth of a query's time.
            if len(self._chosen) > 1000:
                self._chosen.clear()
            self._chosen[key] = choose_point(self.generation.points, k=k, recall=asked)
        return self._chosen[key]

    def stats(self) -> dict[str, Any]:
        """Rows, dim, metric, preview, resident bytes by part, operating points, how pages are read and why."""
        return self.generation.stats() | {
            "scratch_bytes": sum(s.resident_bytes for s in self._idle),
        }

    def vectors(self, rows: Any) -> NDArray[np.generic]:
        """Stored vectors, as given, of rows int64 (m,) -> (m, dim)."""
        layout = self.generation.layout
        raw = self._bytes_of(self._rows(rows), layout.vector_offset, layout.vector_bytes)
        return raw.view(layout.dtype)

    def ids_of_rows(self, rows: Any) -> NDArray[Any]:
        """Ids of rows int64 (m,): uint64, or object where strings are."""
        wanted = self._rows(rows)
        codes = self.generation.resident_codes
        if codes is None:
            own = self._bytes_of(wanted, self.generation.layout.id_offset, 8).view(np.uint64).reshape(-1)
        else:
            own = codes[wanted]
        return self.ids.ids_of_codes(own)

    def _bytes_of(
        self, wanted: NDArray[np.int64], offset_of: Callable[[NDArray[np.int64]], NDArray[np.int64]], size: int
    ) -> NDArray[np.uint8]:
        """What lies at an offset inside each row's pages, uint8 (m, size)."""
        layout = self.generation.layout
        out = np.empty((len(wanted), size), np.uint8)
        with self._scratch() as scratch:
            for start in range(0, len(wanted), 1024):
                some = wanted[start : start + 1024]
                pages = self.generation.places.pages_of(some // layout.vectors_per_page)
                buffer = scratch.buffer(len(pages))
                scratch.reader.begin(pages, out=buffer)
                scratch.reader.finish()
                groups = buffer[: len(pages)].reshape(len(some), layout.group_bytes)
                at = offset_of(some)[:, None] + np.arange(size)
                out[start : start + len(some)] = np.take_along_axis(groups, at, axis=1)
        return out

    def recall(
        self, queries: Any, k: int = 10, options: SearchOptions | None = None, *, allowed: AllowedRows | None = None
    ) -> exact.RecallEstimate:
        """Recall of searches with these options against the oracle, with its 95 % interval; of the allowed rows only."""
        options = options or PROMISED
        found = self.search(queries, k, options, allowed=allowed)
        oracle = SearchOptions(exact=True, score_threshold=options.score_threshold)
        true = self.search(queries, k, oracle, allowed=allowed)
        sign = -1.0 if self.metric is Metric.L2 else 1.0
        return exact.interval(
            exact.recall_of(
                (sign * found.scores).astype(np.float32),
                found.counts,
                (sign * true.scores).astype(np.float32),
                true.counts,
            )
        )

    def payloads(self, rows: Any) -> list[dict[str, Any] | None]:
        """Payloads of rows int64 (m,), as hits give them; None for a row without, so for all of an index without payloads.

        Raises ShapeMismatchError, CorruptIndexError, ReadFailedError, IndexClosedError.
        """
        wanted = self._rows(rows)
        if self._closed:
            raise IndexClosedError(f"{self.path} was closed; open the index again")
        if self.payload is None:
            return [None] * len(wanted)
        return [None if raw is None else msgspec.json.decode(raw) for raw in self.payload.get(wanted)]

    def _rows(self, rows: Any) -> NDArray[np.int64]:
        given = np.asarray(rows).reshape(-1)
        if len(given) and (given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= self.n):
            raise ShapeMismatchError(
                f"rows {given[:5].tolist()} ({given.dtype}) were asked for, needed integers from 0 to {self.n - 1}"
            )
        return given.astype(np.int64)

    @contextmanager
    def _scratch(self) -> Iterator[SearchScratch]:
        """Borrow scratch memory; it comes back unless the search failed."""
        if self._closed:
            raise IndexClosedError(f"{self.path} was closed; open the index again")
        if self._pid != os.getpid():
            # A forked child shares neither the parent's reads in flight nor its buffers.
            self._idle, self._pid = [], os.getpid()
        try:
            scratch = self._idle.pop()
        except IndexError:
            scratch = SearchScratch(self.generation)
        yield scratch
        self._give_back(scratch)

    def _give_back(self, scratch: SearchScratch) -> None:
        if not self._closed:  # close() may have passed by while the search ran
            self._idle.append(scratch)

    def close(self) -> None:
        """Close the files. Searches that run end first or raise IndexClosedError."""
        if not self._closed:
            self._closed = True
            self._idle.clear()
            self.generation.close()

    def __enter__(self) -> OpenIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_index(path: str | os.PathLike[str], *, options: OpenOptions | None = None) -> OpenIndex:
    """Open the index in a folder. Raises UnknownIndexError, CorruptIndexError, UnsupportedFormatError, OptionsError."""
    return OpenIndex(open_generation(Path(path), options or OpenOptions()))


def _parts(m: int, pages: float) -> Iterator[slice]:
    """Consecutive slices of m queries whose pages, about `pages` each, are asked for together."""
    each = max(1, min(16, int(PAGES_AT_ONCE / max(1.0, pages))))
    return (slice(start, min(start + each, m)) for start in range(0, m, each))


def _require_k(k: Any, n: int) -> int:
    if isinstance(k, bool | np.bool_) or not isinstance(k, int | np.integer):
        raise OptionsError(f"k is {k!r}, it must be a whole number of at least 1")
    if k < 1:
        raise OptionsError(f"k is {k}, it must be at least 1")
    return min(int(k), n)


def _require_allowed(allowed: AllowedRows, n: int, k: int) -> int:
    """How many hits there will be: k, or all allowed rows."""
    if len(allowed) != n:
        raise ShapeMismatchError(f"allowed says which of {len(allowed):,} rows may be hits; the index has {n:,} rows")
    return min(k, allowed.count)
