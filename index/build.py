"""Building an index: a file of vectors becomes an immutable folder, or nothing at all.

build         the phases, top to bottom: scan, sample, codes, order, write, graph, tune, verify, publish
check_build   what can be refused at once, before a job is accepted
make_folder   `build` of a source that is open already, for fold_rebuild.py

Everything is written into a temporary sibling of the folder, synchronised, and published by a rename. The source is
streamed three times (scan, codes, write) and never held. Rows are put in disk order before the graph is built, so that
codes, links and pages share one numbering (docs/decisions/0004-phases.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from index import publication
from index.budget import Design, budget_bytes, choose_design
from index.codes import Coder
from index.columns.writing import TEXT_BYTES
from index.disk import as_disk_full, require_room
from index.errors import OptionsError, SourceError
from index.fullview import PageLayout
from index.graph import GraphOptions, GraphRows, build_graph, insert_rows, nearby_order
from index.ids import write_ids
from index.kernels.permute import permute_rows
from index.making import Making
from index.metric import as_queries
from index.options import BuildOptions, Metric, PreviewKind
from index.passes import (
    EncodedNodes,
    PayloadSpool,
    Scan,
    encode_nodes,
    rows_by_id,
    scan_source,
    write_payloads,
    write_rows,
)
from index.preview import Groups, Preview
from index.preview.flat import FlatPreview
from index.preview.graph import GraphPreview
from index.preview.ivf import code_bits
from index.preview.ivf_build import IvfParts, ListOptions, build_ivf, order_by_lists
from index.progress import Cancel, OnProgress, Steps
from index.report import BuildReport
from index.rerank import Places
from index.sources import VectorSource, open_source
from index.tune import points_of_few

FEW_NODES = 300
"""Up to this many distinct rows everything is read, so that answers are exact: nothing to tune."""
HELD_OUT = 1000
SAMPLES = 2000
WORK_BYTES = 400_000_000
"""int8 rows for the graph stay in memory up to this size; larger ones go to a mapped file, which the system may reclaim."""

Ids = str | Sequence[int | str] | NDArray[Any] | None
Payload = Literal["*"] | Sequence[str] | Sequence[dict[str, Any] | None] | None


def build(
    source: str | os.PathLike[str] | NDArray[Any],
    out: str | os.PathLike[str],
    *,
    options: BuildOptions | None = None,
    vector: str | None = None,
    ids: Ids = None,
    payload: Payload = None,
    queries: str | os.PathLike[str] | NDArray[Any] | None = None,
    on_progress: OnProgress | None = None,
    cancel: Cancel | None = None,
    replace: bool = False,
) -> BuildReport:
    """Build an index of `source` in the folder `out`.

    source: a file, a folder of shards, a pattern, or an array (n, dim). vector, ids, payload: names of columns in the
    files, or ids and payloads themselves, one a row; ids default to 0..n-1. queries: sample queries, a file or an array
    (m, dim), with which recall is measured, and which the promise covers. replace: put the new index in the place
    of an index that is there. Raises OptionsError, SourceError, BadRowsError, BudgetTooSmallError, IndexExistsError,
    DiskFullError, BuildCancelledError; nothing is left behind then.
    """
    options = options or BuildOptions()
    target = publication.require_place(Path(out), replace=replace)
    opened, design = check_build(source, options=options, vector=vector, ids=ids, payload=payload)
    steps = Steps(on_progress, cancel)
    return make_folder(opened, design, target, options, steps, ids, payload, queries, replace=replace)


def make_folder(
    opened: VectorSource,
    design: Design,
    target: Path,
    options: BuildOptions,
    steps: Steps,
    ids: Ids,
    payload: Payload,
    queries: Any,
    *,
    replace: bool,
    fold: dict[str, Any] | None = None,
) -> BuildReport:
    """`build` of an open source at a place that is free. fold: what the report says of the fold that this is for."""
    layout = PageLayout(opened.n, opened.dim, opened.dtype)
    publication.remove_leftovers(target.parent)
    folder = publication.temporary_sibling(target)
    building = _Building(opened, folder, options, steps)
    building.report.fold = fold
    try:
        require_room(folder, layout.file_bytes)
        building.run(ids, payload, queries)
        building.steps.start("publish", 1)
        building.steps.check()
        publication.publish(folder, target, replace=replace)
        building.steps.tell(1, 1)
        return building.report
    except BaseException as error:
        building.steps.abandon()
        full = as_disk_full(error, folder, total_bytes=layout.file_bytes + design.total)
        publication.discard(folder)
        if full is not None:
            raise full from error
        raise


def check_build(
    source: str | os.PathLike[str] | NDArray[Any] | VectorSource,
    *,
    options: BuildOptions,
    vector: str | None = None,
    ids: Ids = None,
    payload: Payload = None,
) -> tuple[VectorSource, Design]:
    """Refuse what headers and options show to be impossible; returns the source and what it would become.

    Takes no longer for more rows. The design counts every row as distinct; equal rows only make it smaller.
    """
    names = payload if payload == "*" or (payload and isinstance(payload[0], str)) else None
    opened = open_source(
        source,
        vector=vector,
        ids=ids if isinstance(ids, str) else None,
        payload=names,  # type: ignore[arg-type]
    )
    for what, given in (("ids", ids), ("payload", payload)):
        if given is not None and not isinstance(given, str) and names is None and len(given) != opened.n:
            raise SourceError(f"{len(given):,} {what} came for {opened.n:,} rows; one for each row is needed")
    layout = PageLayout(opened.n, opened.dim, opened.dtype)
    budget = budget_bytes(options.memory_budget, n=opened.n, dim=opened.dim)
    return opened, choose_design(layout, nodes=opened.n, options=options, budget=budget)


class _Building(Making):
    """One build under way. Each method is a phase or two; they run in the order of `run`."""

    def __init__(self, source: VectorSource, folder: Path, options: BuildOptions, steps: Steps) -> None:
        super().__init__(folder, options, steps, dim=source.dim, dtype=source.dtype)
        self.source = source
        self.report.empty_files = [str(path) for path in source.empty_shards]
        self.report.conversion = source.conversion

    def run(self, ids: Ids, payload: Payload, queries: Any) -> None:
        """All phases up to a folder that is complete and verified."""
        begun = time.monotonic()
        with ThreadPoolExecutor(self.threads) as pool:
            scan = self._scan(ids, payload, pool)
            samples = self._sample(queries)
            sources, sizes, order_in = self._distinct(scan)
            encoded = self._encode(scan, sources, pool)
        groups, disk_order = self._order(encoded, scan, sources, sizes, order_in)
        places, codes = self._write(scan, disk_order, groups, payload)
        preview = self._tuned(encoded, places, codes, samples)
        self.finish(preview, places, begun)

    # --- scan, sample -------------------------------------------------------------------------------------------

    def _scan(self, ids: Ids, payload: Payload, pool: ThreadPoolExecutor) -> Scan:
        spool = PayloadSpool(self.folder / "payload.tmp") if payload is not None else None
        scan = scan_source(
            self.source,
            metric=self.metric,
            skip_bad_rows=self.options.on_bad_rows == "skip",
            payload_spool=spool,
            pool=pool,
            steps=self.steps,
        )
        if scan.n == 0:
            raise SourceError(f"all {self.source.n:,} rows are bad; at least one good row is needed")
        keep = np.ones(self.source.n, np.bool_)
        keep[scan.skipped] = False
        if ids is not None and not isinstance(ids, str):
            scan.ids = [i for i, good in zip(ids, keep) if good] if len(scan.skipped) else ids  # type: ignore[assignment]
        if scan.ids is None:
            scan.ids = np.flatnonzero(keep).astype(np.uint64)
        if spool is not None and payload and not isinstance(payload[0], str):
            spool.append([p for p, good in zip(payload, keep) if good])  # type: ignore[misc]
        self.report.rows = scan.n
        self.report.skipped_rows = scan.bad_rows[:1000]
        if scan.bad_rows:
            self.report.warnings.append(f"{len(scan.bad_rows):,} bad rows were left out")
        return scan

    def _sample(self, queries: Any) -> NDArray[np.float32] | None:
        """The sample queries, in an order of the seed's."""
        self.steps.start("sample", 1)
        samples = read_samples(queries, self.source.dim, self.metric, self.options.seed)
        self.steps.advance(1, 1)
        return samples

    def _distinct(self, scan: Scan) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(first row of each distinct vector, ascending; how many rows each has; rows sorted by node, then by row)."""
        _, first, node, sizes = np.unique(scan.hashes, return_index=True, return_inverse=True, return_counts=True)
        rank = np.argsort(first, kind="stable")
        place = np.empty(len(rank), np.int64)
        place[rank] = np.arange(len(rank))
        by_node = np.argsort(place[node.reshape(-1)], kind="stable")
        self.report.distinct_rows = len(first)
        return first[rank].astype(np.int64), sizes[rank].astype(np.int64), by_node

    # --- codes, order, write ------------------------------------------------------------------------------------

    def _encode(self, scan: Scan, sources: NDArray[np.int64], pool: ThreadPoolExecutor) -> EncodedNodes:
        options, nodes = self.options, len(sources)
        layout = PageLayout(scan.n, self.source.dim, self.source.dtype)
        budget = budget_bytes(options.memory_budget, n=scan.n, dim=self.source.dim)
        self.design = choose_design(layout, nodes=nodes, options=options, budget=budget)
        self.layout, self.degree = layout, self.design.degree
        bits = code_bits(self.design.bits)
        self.coder = Coder(dim=layout.dim, metric=self.metric, bits=bits, mean=scan.mean, seed=options.seed)
        report = self.report
        report.budget_bytes, report.preview = budget, self.design.preview.value
        report.bits, report.degree = self.design.bits, self.design.degree
        report.choices += self.design.choices
        int8_codes: NDArray[np.int8]
        if nodes * (self.coder.width + 12 + self.threads) <= WORK_BYTES:
            int8_codes = np.empty((nodes, self.coder.width), np.int8)
        else:
            int8_codes = np.memmap(self.folder / "rows.tmp", np.int8, "w+", shape=(nodes, self.coder.width))
            report.choices.append(
                "rows for the graph lie in a mapped file: in memory they would break the build's bound"
            )
        return encode_nodes(
            self.source,
            scan,
            sources,
            self.coder,
            int8_codes=int8_codes,
            pool=pool,
            steps=self.steps,
        )

    def _order(
        self,
        encoded: EncodedNodes,
        scan: Scan,
        sources: NDArray[np.int64],
        sizes: NDArray[np.int64],
        by_node: NDArray[np.int64],
    ) -> tuple[Groups, NDArray[np.int64]]:
        """Put the nodes in disk order; returns their groups and, for each disk row, its number among the kept rows."""
        order = self._node_order(GraphRows(encoded.int8_codes, encoded.int8_scalars))
        for array in (encoded.int8_codes, encoded.int8_scalars, encoded.codes, encoded.scalars):
            permute_rows(array, order)
            self.steps.check()
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        if len(sources) == scan.n:
            disk_order = sources[order]
        else:
            ids = scan.ids
            assert ids is not None, "ids are filled in by the scan"
            disk_order = np.concatenate([rows_by_id(by_node[starts[v] : starts[v + 1]], ids) for v in order])
        return Groups.of_sizes(sizes[order]), disk_order

    def _node_order(self, rows: GraphRows) -> NDArray[np.int32]:
        """Near nodes side by side; of an ivf list after list."""
        page_rows, seed = self.layout.vectors_per_page, self.options.seed
        if self.design.preview is not PreviewKind.IVF:
            self.steps.start("order", len(rows))
            return nearby_order(rows, page_rows=page_rows, seed=seed, on_progress=self.steps.advance)
        self.steps.start("lists", len(rows))
        how = ListOptions(lists=self.design.lists, page_rows=page_rows, seed=seed, threads=self.threads)
        order, self.offsets = order_by_lists(rows, options=how, check=self.steps.advance)
        return order

    def _write(
        self, scan: Scan, disk_order: NDArray[np.int64], groups: Groups, payload: Payload
    ) -> tuple[Places, NDArray[np.uint64] | None]:
        layout = self.layout
        assert scan.ids is not None, "ids are filled in by the scan"
        codes = write_ids(self.folder, scan.ids, disk_order, codes_file=not layout.ids_in_pages)
        disk_rows = np.empty(layout.n, np.int64)
        disk_rows[disk_order] = np.arange(layout.n)
        write_rows(self.source, scan, disk_rows, codes, layout, self.folder, steps=self.steps)
        if scan.payload is not None:
            # The room that the graph's rows leave of the build's bound is for distinct strings.
            room = max(0, WORK_BYTES - self.report.distinct_rows * self.coder.width)
            write_payloads(
                scan.payload.read(disk_order), self.folder, text_bytes=TEXT_BYTES + room // 2, steps=self.steps
            )
            scan.payload.close()
        scan.ids, scan.hashes = None, np.zeros(0, np.uint64)
        return Places(layout, groups), None if layout.ids_in_pages else codes

    # --- graph, tune --------------------------------------------------------------------------------------------

    def _tuned(
        self,
        encoded: EncodedNodes,
        places: Places,
        codes: NDArray[np.uint64] | None,
        samples: NDArray[np.float32] | None,
    ) -> Preview:
        """The finished preview; operating points go into self.points."""
        self.error_scale = encoded.error_scale
        nodes = len(encoded.codes)
        generator = np.random.default_rng(self.options.seed + 1)
        held = np.zeros(0, np.int32)
        if samples is None and nodes > FEW_NODES:
            held = np.sort(generator.choice(nodes, min(HELD_OUT, nodes // 20), replace=False)).astype(np.int32)
        preview, complete = self._build_preview(encoded, held)
        if nodes <= FEW_NODES:
            self.steps.start("tune", 1)
            self.points = points_of_few(nodes, self.layout.n_pages)
            self.report.promise_covers = "every query: all rows are read"
            self.report.choices.append(f"exact: {nodes} distinct rows are so few that all are read for each query")
        elif samples is not None:
            some = samples[:SAMPLES]
            self.tune(preview, some, np.zeros(0, np.int32), places, codes)
            self.report.promise_covers = f"queries like the {len(some):,} sample queries that it was measured with"
        else:
            rows = places.groups.first_rows(held)
            self.tune(preview, self.stored(rows), held, places, codes)
            self.report.promise_covers = (
                f"queries like the rows only: it was measured with {len(held):,} rows held out of the preview. "
                "Give sample queries (queries=) to have it cover queries of another kind"
            )
        complete()
        return preview

    def _build_preview(self, encoded: EncodedNodes, held: NDArray[np.int32]) -> tuple[Preview, Any]:
        """The preview without the held-out nodes, and what inserts them."""
        if self.design.preview is PreviewKind.FLAT:
            self.steps.start("graph", 1)
            return FlatPreview(encoded.codes, encoded.scalars, self.coder.bits), lambda: None
        rows = GraphRows(encoded.int8_codes, encoded.int8_scalars)
        if self.design.preview is PreviewKind.IVF:
            return self._build_ivf(rows, encoded, held), lambda: self._drop_rows(encoded)
        options = GraphOptions(degree=self.design.degree, seed=self.options.seed)
        self.steps.start("graph", len(rows) - len(held))
        among = np.setdiff1d(np.arange(len(rows), dtype=np.int32), held) if len(held) else None
        links, entries = build_graph(
            rows, options=options, threads=self.threads, among=among, on_progress=self.steps.advance
        )
        preview = GraphPreview(encoded.codes, encoded.scalars, links, entries, self.coder.bits)

        def complete() -> None:
            if len(held):
                # Under dot this may build the graph again: it can be cancelled too.
                insert_rows(
                    rows,
                    links,
                    entries,
                    held,
                    options=options,
                    threads=self.threads,
                    on_progress=lambda done, total: self.steps.check(),
                )
            self._drop_rows(encoded)

        return preview, complete

    def _build_ivf(self, rows: GraphRows, encoded: EncodedNodes, held: NDArray[np.int32]) -> Preview:
        """All nodes are in the lists; held-out ones shape no centroid, and the tuner leaves them out of the candidates."""
        self.steps.start("lists", len(rows))
        design = self.design
        parts = IvfParts(rows, self.offsets, encoded.codes, encoded.scalars, design.bits, design.parts, held)
        preview, self.error_scale = build_ivf(
            parts, coder=self.coder, seed=self.options.seed, threads=self.threads, check=self.steps.advance
        )
        return preview

    def _drop_rows(self, encoded: EncodedNodes) -> None:
        encoded.int8_codes = np.zeros((0, 0), np.int8)
        (self.folder / "rows.tmp").unlink(missing_ok=True)


def read_samples(queries: Any, dim: int, metric: Metric, seed: int) -> NDArray[np.float32] | None:
    """Sample queries, an array or a file, in an order of the seed's."""
    if queries is None:
        return None
    if not isinstance(queries, np.ndarray):
        queries = np.concatenate([block.vectors for block in open_source(queries).blocks()])
    vectors = as_queries(queries, dim=dim, metric=metric)
    if len(vectors) < 20:
        raise OptionsError(f"{len(vectors)} sample queries came, at least 20 are needed to measure a recall")
    return vectors[np.random.default_rng(seed).permutation(len(vectors))]


__all__ = ["build", "check_build", "make_folder", "read_samples"]
