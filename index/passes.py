"""The passes of a build over its source. Each streams blocks; none holds the vectors.

scan_source   every row is validated and hashed; mean, lengths, ids; payload spooled to disk
encode_nodes  distinct rows -> int8 rows for the graph, and codes
write_rows    rows in disk order into the vector file, through buckets on disk
write_payloads   payloads in disk order, as JSON and as columns

A row here is counted among the rows that are kept: rows skipped as bad have no number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from index.codes import Coder, encode_int8
from index.columns import ColumnsWriter
from index.errors import BadRowsError, SourceError
from index.fullview import VectorFileWriter
from index.fullview.layout import PageLayout
from index.ids import canonical_id
from index.options import Metric
from index.payload import PayloadWriter
from index.progress import Steps
from index.sources import BadRow, Block, VectorSource, find_bad_rows

BUCKET_BYTES = 64_000_000
LISTED_BAD_ROWS = 1000
PAYLOADS_AT_ONCE = 1024

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class Scan:
    """What the first pass learnt. n: rows kept; skipped: source rows left out, ascending; hashes uint64 (n,);
    mean float32 (dim,): of unit vectors under cosine; longest: the largest |x|^2, without far outliers; ids: as given,
    or None."""

    n: int
    skipped: NDArray[np.int64]
    bad_rows: list[tuple[str, int, int, str]]
    hashes: NDArray[np.uint64]
    mean: NDArray[np.float32]
    longest: float
    ids: list[Any] | NDArray[Any] | None
    payload: PayloadSpool | None


class PayloadSpool:
    """Payloads in the order of the rows, on disk until they are written in disk order."""

    def __init__(self, path: Path) -> None:
        # Opened anew for each block and for reading: a build that fails leaves no open file.
        self._path = path
        path.write_bytes(b"")
        self._ends: list[NDArray[np.int64]] = []
        self._at = 0

    def append(self, payloads: Iterable[dict[str, Any] | bytes | None]) -> None:
        """Keep the payloads of the next rows; bytes are JSON as it is."""
        encoded = [p if isinstance(p, bytes) else msgspec.json.encode(p) if p else b"" for p in payloads]
        with self._path.open("ab") as file:
            file.write(b"".join(encoded))
        ends = self._at + np.cumsum([len(e) for e in encoded], dtype=np.int64)
        self._at = int(ends[-1]) if len(ends) else self._at
        self._ends.append(ends)

    def read(self, rows: NDArray[np.int64]) -> Iterator[bytes | None]:
        """The payloads of rows in any order."""
        ends = np.concatenate([np.zeros(1, np.int64), *self._ends])
        with self._path.open("rb") as file:
            for row in rows:
                file.seek(ends[row])
                yield file.read(int(ends[row + 1] - ends[row])) or None

    def close(self) -> None:
        """Delete the spool."""
        self._path.unlink(missing_ok=True)


def ahead(pool: ThreadPoolExecutor, items: Iterable[T], work: Callable[[T], R], *, most: int) -> Iterator[R]:
    """work(item) for each item, in order, with up to `most` of them running: memory stays bounded."""
    running: list[Any] = []
    for item in items:
        running.append(pool.submit(work, item))
        if len(running) >= most:
            yield running.pop(0).result()
    for future in running:
        yield future.result()


def scan_source(
    source: VectorSource,
    *,
    metric: Metric,
    skip_bad_rows: bool,
    payload_spool: PayloadSpool | None,
    pool: ThreadPoolExecutor,
    steps: Steps,
) -> Scan:
    """Look at every row once. Raises BadRowsError after the whole pass, so that all bad rows are counted."""
    steps.start("scan", source.n)
    total = np.zeros(source.dim, np.float64)
    longest = 0.0
    counted = 0
    outlier = _outlier_length(source)
    hashes: list[NDArray[np.uint64]] = []
    skipped: list[NDArray[np.int64]] = []
    bad_rows: list[tuple[str, int, int, str]] = []
    ids: list[Any] = []
    kept = 0
    for block, seen in ahead(pool, source.blocks(), lambda b: (b, _look(b, metric, outlier)), most=4):
        bad_rows.extend((block.file, block.file_start + b.row, b.column, b.reason) for b in seen.bad)
        skipped.append(block.start + np.flatnonzero(~seen.keep))
        hashes.append(seen.hashes)
        total += seen.total
        counted += seen.counted
        longest = max(longest, seen.longest)
        kept += len(seen.hashes)
        if block.ids is not None:
            ids.append(_only(block.ids, seen.keep))
        if payload_spool is not None and block.payload is not None:
            payload_spool.append([p for p, good in zip(block.payload, seen.keep, strict=True) if good])
        steps.advance(block.start + len(block), source.n)
    if bad_rows and not skip_bad_rows:
        raise BadRowsError(rows=bad_rows[:LISTED_BAD_ROWS], count=len(bad_rows))
    return Scan(
        n=kept,
        skipped=np.concatenate(skipped),
        bad_rows=bad_rows,
        hashes=np.concatenate(hashes),
        mean=(total / max(1, counted)).astype(np.float32),
        # Beyond that float32 does not tell the other rows apart beside the extra coordinate of dot; rows that are longer
        # still have none.
        longest=min(longest, 300.0 * outlier),
        ids=_joined(ids) if ids else None,
        payload=payload_spool,
    )


@dataclass(frozen=True, slots=True)
class _Looked:
    """A block seen: bad rows, which rows are kept, their hashes, sum and number of the rows that shape the mean."""

    bad: list[BadRow]
    keep: NDArray[np.bool_]
    hashes: NDArray[np.uint64]
    total: NDArray[np.float64]
    counted: int
    longest: float


def _look(block: Block, metric: Metric, outlier: float) -> _Looked:
    """Look at one block. outlier: squared length above which a row does not shape the mean."""
    bad = find_bad_rows(block)
    keep = np.ones(len(block), np.bool_)
    keep[[b.row for b in bad]] = False
    wide = block.vectors.astype(np.float32)
    wide[~keep] = 0.0
    lengths = np.einsum("ij,ij->i", wide, wide, dtype=np.float64)
    beyond = _beyond_range(wide, lengths, metric)
    keep[[b.row for b in beyond]] = False
    bad = sorted(bad + beyond)
    good = keep & (lengths <= outlier) if metric is not Metric.COSINE else keep
    weights = good.astype(np.float64)
    if metric is Metric.COSINE:
        np.divide(1.0, np.sqrt(lengths), out=weights, where=good & (lengths > 0))
    total = (weights.astype(np.float32) @ wide).astype(np.float64)
    longest = float(lengths[keep].max(initial=0.0))
    kept = block.vectors[keep] if bad else block.vectors
    return _Looked(bad, keep, row_hashes(kept), total, int(good.sum()), longest)


def unusable_rows(block: Block, metric: Metric) -> list[BadRow]:
    """Rows that no index may hold: find_bad_rows(), and lengths whose squares float32 does not hold. One entry a row."""
    bad = {row.row: row for row in find_bad_rows(block)}
    wide = block.vectors.astype(np.float32)
    wide[list(bad)] = 0.0
    lengths = np.einsum("ij,ij->i", wide, wide, dtype=np.float64)
    bad |= {row.row: row for row in _beyond_range(wide, lengths, metric)}
    return [bad[row] for row in sorted(bad)]


def _beyond_range(wide: NDArray[np.float32], lengths: NDArray[np.float64], metric: Metric) -> list[BadRow]:
    """Rows whose squares float32 cannot hold: every estimate and score of them would be wrong."""
    found = [(row, "a length above 1e18, whose square float32 does not hold") for row in np.flatnonzero(lengths > 1e36)]
    if metric is Metric.COSINE:
        small = np.flatnonzero((lengths > 0) & (lengths < 1e-32))
        found += [(row, "a length below 1e-16, whose square float32 does not hold") for row in small]
    return [BadRow(int(row), int(np.argmax(np.abs(wide[row]))), f"{why}; scale the vectors") for row, why in found]


def row_hashes(vectors: NDArray[Any]) -> NDArray[np.uint64]:
    """xxh3 of each row's bytes, uint64 (m,); -0.0 counts as 0.0, so that rows with equal hashes are equal vectors."""
    digest = xxhash.xxh3_64_intdigest
    if vectors.dtype.kind == "f":
        vectors = vectors + vectors.dtype.type(0.0)
    return np.fromiter((digest(row) for row in vectors), np.uint64, len(vectors))


def _outlier_length(source: VectorSource) -> float:
    """A squared length that only outliers exceed: a hundred times the median of rows from all over the source.

    One row of 1e8 among rows of length 1 would move the mean by more than their spread; no code would tell them apart.
    """
    lengths = []
    for part in range(8):
        for block in source.blocks(512, start=source.n * part // 8):
            wide = block.vectors.astype(np.float64)
            squared = np.einsum("ij,ij->i", wide, wide)
            lengths.append(squared[np.isfinite(squared)])
            break
    median = float(np.median(np.concatenate(lengths))) if any(len(x) for x in lengths) else 0.0
    return 100.0 * median if median > 0 else np.inf


def _only(ids: Any, keep: NDArray[np.bool_]) -> Any:
    if isinstance(ids, np.ndarray):
        return ids[keep]
    return [i for i, good in zip(ids, keep, strict=True) if good]


def _joined(parts: list[Any]) -> Any:
    if all(isinstance(p, np.ndarray) for p in parts):
        return np.concatenate(parts)
    return [i for part in parts for i in (part.tolist() if isinstance(part, np.ndarray) else part)]


def kept_blocks(source: VectorSource, scan: Scan) -> Iterator[tuple[int, NDArray[Any]]]:
    """(number of the first kept row, vectors of the kept rows) of each block.

    Raises SourceError where a row is not what the scan saw: its id would get another row's vector.
    """
    skipped = scan.skipped
    for block in source.blocks():
        vectors = block.vectors
        first = block.start - int(np.searchsorted(skipped, block.start))
        inside = skipped[(skipped >= block.start) & (skipped < block.start + len(block))]
        if len(inside):
            vectors = np.delete(vectors, inside - block.start, axis=0)
        same = row_hashes(vectors) == scan.hashes[first : first + len(vectors)]
        if not same.all():
            raise SourceError(
                f"{block.file} was changed while it was being built from: row {block.file_start + int(np.argmin(same))} "
                "is not what it was. Nothing was built; leave the file alone and build again."
            )
        yield first, vectors


def rows_by_id(rows: NDArray[np.int64], ids: Any) -> NDArray[np.int64]:
    """Rows of one node, ascending by id, whatever the spelling of a UUID."""
    if len(rows) == 1:
        return rows

    def order(row: int) -> tuple[bool, int | str]:
        own = canonical_id(ids[row])
        return isinstance(own, str), own

    return np.array(sorted(rows, key=order), np.int64)


@dataclass(slots=True)
class EncodedNodes:
    """Distinct rows. int8_codes (nodes, width), int8_scalars float32 (nodes, 3): see kernels/insert.py; codes uint8
    (nodes, stride), scalars float32 (nodes, 2): the preview's; error_scale: see Coder."""

    int8_codes: NDArray[np.int8]
    int8_scalars: NDArray[np.float32]
    codes: NDArray[np.uint8]
    scalars: NDArray[np.float32]
    error_scale: float


def encode_nodes(
    source: VectorSource,
    scan: Scan,
    nodes: NDArray[np.int64],
    coder: Coder,
    *,
    int8_codes: NDArray[np.int8],
    pool: ThreadPoolExecutor,
    steps: Steps,
) -> EncodedNodes:
    """Encode the kept rows `nodes` (ascending). int8_codes: where the int8 rows go."""
    steps.start("codes", source.n)
    count = len(nodes)
    int8_scalars = np.zeros((count, 3), np.float32)
    codes, scalars = np.empty((count, coder.stride), np.uint8), np.empty((count, 2), np.float32)
    error_scales: list[float] = []

    def encode(item: tuple[int, NDArray[Any]]) -> int:
        first, vectors = item
        a, b = np.searchsorted(nodes, (first, first + len(vectors)))
        mine = vectors[nodes[a:b] - first].astype(np.float32)
        rotated = coder.rotated(mine)
        extra = None
        if coder.metric is Metric.DOT:
            lengths = np.einsum("ij,ij->i", mine, mine, dtype=np.float64)
            extra = np.sqrt(np.maximum(scan.longest - lengths, 0.0)).astype(np.float32)
        int8_codes[a:b], int8_scalars[a:b] = encode_int8(rotated, extra=extra)
        codes[a:b], scalars[a:b] = coder.encode_block(rotated)
        if first == 0 and b > a:
            error_scales.append(coder.error_scale(rotated[:4096]))
        return first + len(vectors)

    for done in ahead(pool, kept_blocks(source, scan), encode, most=4):
        steps.advance(min(done, source.n), source.n)
    return EncodedNodes(int8_codes, int8_scalars, codes, scalars, error_scales[0] if error_scales else 0.0)


def write_rows(
    source: VectorSource,
    scan: Scan,
    disk_rows: NDArray[np.int64],
    id_codes: NDArray[np.uint64],
    layout: PageLayout,
    folder: Path,
    *,
    steps: Steps,
) -> None:
    """Write the vector file. disk_rows int64 (n,): where each kept row goes; id_codes uint64 (n,): in disk order.

    Rows are dealt into buckets of consecutive disk rows, files of 64 MB beside the vector file; then each bucket is
    put in order in memory.
    """
    steps.start("write", 2 * layout.n)
    each = max(1, BUCKET_BYTES // layout.vector_bytes)
    buckets = -(-layout.n // each)
    paths = [folder / f"bucket-{b}.tmp" for b in range(buckets)]
    record = np.dtype([("row", np.int64), ("vector", layout.dtype, (layout.dim,))])
    for first, vectors in kept_blocks(source, scan):
        rows = disk_rows[first : first + len(vectors)]
        where = rows // each
        by_bucket = np.argsort(where, kind="stable")
        records = np.empty(len(vectors), record)
        records["row"], records["vector"] = rows[by_bucket], vectors[by_bucket]
        held, starts = np.unique(where[by_bucket], return_index=True)
        for b, start, end in zip(held, starts, np.append(starts[1:], len(records))):
            # Opened for each write: a terabyte has more buckets than a process may have files open.
            with paths[b].open("ab") as file:
                file.write(records[start:end].data)
        steps.advance(first + len(vectors), 2 * layout.n)
    with VectorFileWriter(folder / "vectors.bin", layout) as writer:
        for b, path in enumerate(paths):
            records = np.fromfile(path, record)
            path.unlink()
            ordered = np.empty((len(records), layout.dim), layout.dtype)
            ordered[records["row"] - b * each] = records["vector"]
            writer.append(ordered, id_codes[b * each : b * each + len(ordered)])
            steps.advance(layout.n + min((b + 1) * each, layout.n), 2 * layout.n)


def write_payloads(payloads: Iterator[bytes | None], folder: Path, *, text_bytes: int, steps: Steps) -> None:
    """Write payloads that come in disk order. text_bytes: see ColumnsWriter."""
    with PayloadWriter(folder) as writer, ColumnsWriter(folder, text_bytes=text_bytes) as columns:
        while some := list(islice(payloads, PAYLOADS_AT_ONCE)):
            writer.append(some)
            columns.append(some)
            steps.check()
