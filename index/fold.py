"""Folding: an old generation and changes become a new generation, without building anew what still fits.

fold     the phases, top to bottom: scan, order, write, codes, graph, tune, verify, publish
Folding  one fold under way

Kept rows keep their codes, their order and what is left of their links; nodes that lost links are given links that the
lost ones had, new nodes are inserted as a build inserts them. Operating points are measured anew. Where that does not pay
or does not hold, the generation is built from its rows: docs/decisions/0012-fold.md says when.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index import publication
from index.budget import budget_bytes
from index.build import SAMPLES, WORK_BYTES, read_samples
from index.codes import encode_int8
from index.columns.writing import TEXT_BYTES
from index.disk import as_disk_full, require_room
from index.fold_plan import Changes, Given, Matched, Placing, match_rows, place
from index.fold_rebuild import FoldOptions, rebuild, told_of, wanted_options, why_rebuild
from index.folder import open_generation
from index.fullview import PageLayout, VectorFileWriter
from index.graph import GraphOptions, GraphRows, insert_rows, nearby_order
from index.ids import write_ids
from index.kernels.reach import connect_rows
from index.kernels.repair import repair_links
from index.making import Making
from index.operating_points import choose_point
from index.options import BuildOptions, Metric, OpenOptions
from index.passes import ahead, row_hashes, scan_source, write_payloads
from index.preview import Preview, Scratch
from index.preview.flat import FlatPreview
from index.preview.graph import GraphPreview
from index.progress import Cancel, OnProgress, Steps
from index.report import BuildReport
from index.rerank import Places
from index.sources import open_source
from index.stored_rows import stored_blocks

DRIFT_COST = 2.0
"""A promised point that costs so many times the old one's: codes and graph do not fit the rows any more."""
FOLD_HELD_OUT = 500
"""Half of a build's: comparing held-out rows with all rows is a large part of a fold. The promise's interval is wider by
0.0025, so a point that costs a little more may be chosen."""
INSERT_BEAM = 80
"""Less than a build's 200: new nodes come into a graph that is complete but for them."""
PIECE = 4096


class _DriftError(Exception):
    """The folded index does not hold what the old one held."""


def fold(
    old: str | os.PathLike[str],
    out: str | os.PathLike[str],
    changes: Changes,
    *,
    options: FoldOptions | None = None,
    queries: Any = None,
    on_progress: OnProgress | None = None,
    cancel: Cancel | None = None,
    replace: bool = False,
) -> BuildReport:
    """Make the generation in `out` that the one in `old` becomes by `changes`; `old` stays as it is.

    queries: sample queries as for `build`. The report's `fold` says what was done and why. Raises what `build` and
    `open_index` raise, and ShapeMismatchError for changes that do not fit; nothing is left behind then.
    """
    options = options or FoldOptions()
    target = publication.require_place(Path(out), replace=replace)
    generation = open_generation(Path(old), OpenOptions(huge_pages=False))
    try:
        given = Given(generation, changes)
        wanted = wanted_options(generation, options)
        publication.remove_leftovers(target.parent)
        why = why_rebuild(given, wanted, options)
        if why is None:
            try:
                return _fold(given, wanted, target, queries, Steps(on_progress, cancel), replace=replace)
            except _DriftError as drift:
                why = str(drift)
        return rebuild(given, wanted, target, queries, Steps(on_progress, cancel), why, replace=replace)
    finally:
        generation.close()


def _fold(
    given: Given, wanted: BuildOptions, target: Path, queries: Any, steps: Steps, *, replace: bool
) -> BuildReport:
    """The discipline of `build`: a temporary sibling, published whole or removed."""
    layout = PageLayout(given.n, given.old.dim, given.dtype)
    folder = publication.temporary_sibling(target)
    try:
        require_room(folder, layout.file_bytes)
        folding = Folding(given, layout, folder, wanted, steps)
        folding.run(queries)
        steps.start("publish", 1)
        steps.check()
        publication.publish(folder, target, replace=replace)
        steps.tell(1, 1)
        return folding.report
    except BaseException as error:
        steps.abandon()
        full = as_disk_full(error, folder, total_bytes=layout.file_bytes)
        publication.discard(folder)
        if full is not None:
            raise full from error
        raise


class Folding(Making):
    """One fold under way. Each method is a phase or two; they run in the order of `run`."""

    def __init__(self, given: Given, layout: PageLayout, folder: Path, options: BuildOptions, steps: Steps) -> None:
        super().__init__(folder, options, steps, dim=layout.dim, dtype=layout.dtype)
        old = given.old
        self.given, self.old, self.layout = given, old, layout
        self.coder, self.error_scale = old.coder, old.error_scale
        self.degree = int(old.manifest.preview_parameters["degree"])
        report = self.report
        report.rows, report.preview, report.bits, report.degree = (
            given.n,
            old.preview.kind.value,
            old.coder.bits,
            self.degree,
        )
        report.budget_bytes = budget_bytes(options.memory_budget, n=layout.n, dim=layout.dim)
        report.fold = told_of(given, "folded", "codes, order and links of the kept rows are kept")
        report.choices.append(
            "folded: codes and links are those of the generation before, mended where rows came or went"
        )

    def run(self, queries: Any) -> None:
        """All phases up to a folder that is complete and verified."""
        begun = time.monotonic()
        with ThreadPoolExecutor(self.threads) as pool:
            matched = self._scan(pool)
            self.steps.start("sample", 1)
            samples = read_samples(queries, self.old.dim, self.metric, self.options.seed)
            self.steps.advance(1, 1)
            placing = self._order(matched, pool)
            self.report.distinct_rows = len(placing.sizes)
            codes = self._write(placing)
            rows = self._codes(placing, pool)
        places = Places(self.layout, placing.groups)
        held = np.zeros(0, np.int32)
        if samples is None:
            nodes, generator = len(placing.sizes), np.random.default_rng(self.options.seed + 1)
            held = np.sort(generator.choice(nodes, min(FOLD_HELD_OUT, nodes // 20), replace=False)).astype(np.int32)
        preview = self._preview(placing, rows, held)
        if samples is not None:
            some = samples[:SAMPLES]
            self.tune(preview, some, held, places, codes)
            self.report.promise_covers = f"queries like the {len(some):,} sample queries that it was measured with"
        else:
            self.tune(preview, self.stored(places.groups.first_rows(held)), held, places, codes)
            self.report.promise_covers = (
                f"queries like the rows only: measured with {len(held):,} rows held out of the preview"
            )
        self._require_no_drift()
        if isinstance(preview, GraphPreview) and rows is not None and len(held):
            self._insert(preview, rows, held)
        del rows
        (self.folder / "rows.tmp").unlink(missing_ok=True)
        self.finish(preview, places, begun)

    # --- scan, order --------------------------------------------------------------------------------------------

    def _scan(self, pool: ThreadPoolExecutor) -> Matched:
        """Look at the new rows, and find who is equal to whom."""
        given, old = self.given, self.old
        new_hashes = np.zeros(0, np.uint64)
        lengths = [np.zeros(0)]
        if len(given.vectors):
            scan = scan_source(
                open_source(given.vectors),
                metric=self.metric,
                skip_bad_rows=False,
                payload_spool=None,
                pool=pool,
                steps=self.steps,
            )
            new_hashes = scan.hashes
            lengths.append(_squared_lengths(given.vectors))
        self.steps.start("scan", old.n)
        firsts = old.places.groups.first_rows(np.arange(old.preview.nodes))
        old_hashes = np.empty(len(firsts), np.uint64)

        def look(item: tuple[int, NDArray[Any]]) -> tuple[int, NDArray[np.float64]]:
            begin, vectors = item
            a, b = np.searchsorted(firsts, (begin, begin + len(vectors)))
            mine = vectors[firsts[a:b] - begin].astype(given.dtype, copy=False)
            old_hashes[a:b] = row_hashes(mine)
            return begin + len(vectors), _squared_lengths(mine) if self.metric is Metric.DOT else np.zeros(0)

        for done, some in ahead(pool, stored_blocks(old), look, most=4):
            lengths.append(some)
            self.steps.advance(done, old.n)
        every = np.concatenate(lengths)
        self.longest = 0.0
        if self.metric is Metric.DOT and len(every):
            median = float(np.median(every))
            self.longest = min(float(every.max()), 300.0 * (100.0 * median if median > 0 else np.inf))
        return match_rows(old, old_hashes, new_hashes)

    def _order(self, matched: Matched, pool: ThreadPoolExecutor) -> Placing:
        """Each new node comes behind the old node nearest to it, so that near rows share pages."""
        new = self.given.vectors[matched.firsts].astype(np.float32)
        self.steps.start("order", len(new))
        near = np.zeros(len(new), np.int64)

        def find(start: int) -> int:
            prepared = self.coder.prepare(new[start : start + PIECE])
            found = self.old.preview.candidates(prepared, effort=16, width=1, scratch=Scratch())
            near[start : start + PIECE] = found.nodes[:, 0]
            return start + len(prepared)

        for done in ahead(pool, range(0, len(new), PIECE), find, most=2 * self.threads):
            self.steps.advance(done, len(new))
        rank = np.arange(len(new))
        if len(new) and np.bincount(near).max() > 2 * self.layout.vectors_per_page:
            # Many behind one: rows of a kind that was not there before.
            rows = GraphRows(*encode_int8(self.coder.rotated(new), extra=None))
            order = nearby_order(rows, page_rows=self.layout.vectors_per_page, seed=self.options.seed)
            rank[order] = np.arange(len(new))
        return place(self.given, matched, near, rank)

    # --- write, codes -------------------------------------------------------------------------------------------

    def _write(self, placing: Placing) -> NDArray[np.uint64] | None:
        """Ids, vectors and payloads in disk order; returns the id codes where they are not in the pages."""
        given, layout = self.given, self.layout
        sources = placing.sources
        self.steps.start("write", layout.n)
        codes = write_ids(self.folder, given.ids_of(sources), np.arange(layout.n), codes_file=not layout.ids_in_pages)
        with VectorFileWriter(self.folder / "vectors.bin", layout) as writer:
            for start, vectors in self._vectors(sources):
                writer.append(vectors, codes[start : start + len(vectors)])
                self.steps.advance(start + len(vectors), layout.n)
        if given.has_payload:
            write_payloads(given.payloads(sources), self.folder, text_bytes=TEXT_BYTES, steps=self.steps)
        return None if layout.ids_in_pages else codes

    def _vectors(self, sources: NDArray[np.int64]) -> Any:
        """(first row, vectors) of the new generation in disk order. Old rows come in it in the order in
        which they lie in the old file; copies of one vector too, by ascending id."""
        given, old = self.given, self.old
        is_old = sources < old.n
        until = np.maximum.accumulate(np.where(is_old, sources, -1))
        start = 0
        for begin, block in stored_blocks(old):
            end = int(np.searchsorted(until, begin + len(block)))
            for first in range(start, end, PIECE):
                some = slice(first, min(first + PIECE, end))
                out = np.empty((some.stop - first, old.dim), given.dtype)
                mine = is_old[some]
                out[mine] = block[until[some][mine] - begin]
                out[~mine] = given.vectors[sources[some][~mine] - old.n]
                yield first, out
            start = max(start, end)
        assert start == len(sources), "every row has a source"

    def _codes(self, placing: Placing, pool: ThreadPoolExecutor) -> GraphRows | None:
        """Codes of old nodes copied, of new ones made; for a graph, int8 rows of all."""
        old, nodes = self.old.preview, len(placing.sizes)
        assert isinstance(old, GraphPreview | FlatPreview), "lists are built anew"
        stay = np.flatnonzero(placing.old_places >= 0)
        self.codes, self.scalars = np.empty((nodes, self.coder.stride), np.uint8), np.empty((nodes, 2), np.float32)
        self.codes[placing.old_places[stay]], self.scalars[placing.old_places[stay]] = (
            old.codes[stay],
            old.scalars[stay],
        )
        new = self.given.vectors[placing.new_rows].astype(np.float32)
        for start in range(0, len(new), PIECE):
            where = placing.new_places[start : start + PIECE]
            self.codes[where], self.scalars[where] = self.coder.encode_block(
                self.coder.rotated(new[start : start + PIECE])
            )
        if not isinstance(old, GraphPreview):
            return None
        return self._int8_rows(placing, pool)

    def _int8_rows(self, placing: Placing, pool: ThreadPoolExecutor) -> GraphRows:
        """What the graph is mended with, in memory or in a mapped file, from the vectors as they were written."""
        nodes, width = len(placing.sizes), self.coder.width
        self.steps.start("codes", nodes)
        rows: NDArray[np.int8]
        if nodes * (width + 12 + self.threads) <= WORK_BYTES:
            rows = np.empty((nodes, width), np.int8)
        else:
            rows = np.memmap(self.folder / "rows.tmp", np.int8, "w+", shape=(nodes, width))
        scalars = np.empty((nodes, 3), np.float32)
        firsts = np.cumsum(placing.sizes) - placing.sizes

        def encode(item: tuple[int, NDArray[Any]]) -> int:
            begin, vectors = item
            a, b = np.searchsorted(firsts, (begin, begin + len(vectors)))
            mine = vectors[firsts[a:b] - begin].astype(np.float32)
            extra = None
            if self.metric is Metric.DOT:
                extra = np.sqrt(np.maximum(self.longest - _squared_lengths(mine), 0.0)).astype(np.float32)
            rows[a:b], scalars[a:b] = encode_int8(self.coder.rotated(mine), extra=extra)
            return int(b)

        for done in ahead(pool, self._vectors(placing.sources), encode, most=4):
            self.steps.advance(done, nodes)
        return GraphRows(rows, scalars)

    # --- graph, tune --------------------------------------------------------------------------------------------

    def _preview(self, placing: Placing, rows: GraphRows | None, held: NDArray[np.int32]) -> Preview:
        """The preview without the held-out nodes."""
        old = self.old.preview
        if not isinstance(old, GraphPreview) or rows is None:
            self.steps.start("graph", 1)
            return FlatPreview(self.codes, self.scalars, self.coder.bits)
        self.steps.start("graph", 2 * len(rows))
        generator = np.random.default_rng(self.options.seed)
        places = placing.old_places.copy()
        places[np.isin(places, held)] = -1
        links = np.full((len(rows), self.degree), -1, np.int32)
        self.mended = self._mend(old.links, places, rows, links)
        there = places[places >= 0]
        there = there[links[there, 0] >= 0]  # a node that lost all is inserted anew
        entries = places[old.entries]
        entries = entries[np.isin(entries, there)]
        more = generator.permutation(np.setdiff1d(there, entries))[: len(old.entries) - len(entries)]
        entries = np.concatenate([entries, more]).astype(np.int32)
        connect_rows(links, entries, np.sort(there).astype(np.int32))
        preview = GraphPreview(self.codes, self.scalars, links, entries, self.coder.bits)
        new = np.setdiff1d(np.arange(len(rows), dtype=np.int32), np.concatenate([there, held]))
        if len(new):
            self._insert(preview, rows, generator.permutation(new).astype(np.int32))
        assert self.report.fold is not None, "told at the start"
        self.report.fold |= {"nodes_mended": self.mended, "nodes_inserted": len(new)}
        return preview

    def _mend(
        self, old: NDArray[np.int32], places: NDArray[np.int32], rows: GraphRows, links: NDArray[np.int32]
    ) -> int:
        """Fill in the links of nodes that stay; returns how many of them had lost one."""
        alpha = np.float32(GraphOptions().alpha)
        cuts = range(0, len(places), PIECE)

        def mend(first: int) -> int:
            last = min(first + PIECE, len(places))
            return int(repair_links(rows.codes, rows.scalars, old, places, alpha, first, last, links))

        lost = 0
        with ThreadPoolExecutor(self.threads) as pool:
            for number, count in enumerate(ahead(pool, cuts, mend, most=2 * self.threads)):
                lost += count
                self.steps.advance(min((number + 1) * PIECE, len(rows)), 2 * len(rows))
        return lost

    def _insert(self, preview: GraphPreview, rows: GraphRows, new: NDArray[np.int32]) -> None:
        """Link new nodes into the graph."""
        insert_rows(
            rows,
            preview.links,
            preview.entries,
            new,
            options=GraphOptions(degree=self.degree, beam=INSERT_BEAM, seed=self.options.seed),
            threads=self.threads,
            on_progress=lambda done, total: self.steps.check(),
        )

    def _require_no_drift(self) -> None:
        """Raise where the promise that the old generation kept is not kept, or costs far more."""
        wanted, old = self.options.recall, self.old
        point = choose_point(self.points, k=10, recall=wanted)
        before = choose_point(old.points, k=10, recall=wanted)
        if before.low >= wanted > point.low:
            raise _DriftError(f"folded, recall {wanted} at k = 10 was not kept any more: {point.low:.4f}")
        if before.low >= wanted and point.cost > DRIFT_COST * before.cost:
            raise _DriftError(
                f"folded, recall {wanted} at k = 10 cost {point.cost / before.cost:.1f} times as much as before"
            )


def _squared_lengths(vectors: NDArray[Any]) -> NDArray[np.float64]:
    wide = vectors.astype(np.float32)
    lengths: NDArray[np.float64] = np.einsum("ij,ij->i", wide, wide, dtype=np.float64)
    return lengths


__all__ = ["Changes", "FoldOptions", "Folding", "fold"]
