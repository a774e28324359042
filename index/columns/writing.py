"""Writing payload/columns.bin from payloads in disk order, in bounded memory.

ColumnsWriter   append() payloads, close()

Cells wait in a nameless file, 64 MB at a time; close() puts them together column by column. What stays in memory are the
distinct strings, up to TEXT_BYTES_MAX; a column that would break that bound is dropped, and its conditions are then
decided from the JSON.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from index.columns.growing import ColumnBuilder, Entries, GrowingColumn, times_of
from index.columns.kinds import Kind, Names
from index.columns.layout import (
    ALIGNMENT,
    COLUMNS_NAME,
    HEADER,
    MAGIC,
    CellsEntry,
    ColumnEntry,
    Directory,
    Section,
    StringsEntry,
    pack_header,
)
from index.columns.times import NO_TIME

CELL_BYTES_MAX = 64_000_000
TEXT_BYTES_MAX = 160_000_000
_ROWS_AT_ONCE = 4096
_DENSE_SHARE = 2
"""A column that every second row has is written with a cell for each row: a mask over rows is then one pass."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Cells of one column that were spooled together: how many, where."""

    at: int
    count: int


@dataclass(frozen=True, slots=True)
class _Period:
    """Rows first to last - 1, which were spooled together: the parts of each column's cells, and of their elements."""

    first: int
    last: int
    cells: dict[Names, _Part]
    elements: dict[Names, _Part]


class ColumnsWriter:
    """Writes payload/columns.bin of the generation in `folder`, where payload/ exists. A context manager; left by an
    exception it abandons the file."""

    def __init__(self, folder: Path | str) -> None:
        place = Path(folder) / "payload"
        self._builder = ColumnBuilder()
        self._dropped: list[Names] = []
        self._periods: list[_Period] = []
        self._drained = 0
        self._spool = tempfile.TemporaryFile(dir=place)  # noqa: SIM115 (open until close())
        self._out = _Out((place / COLUMNS_NAME).open("wb", buffering=1 << 20))

    def append(self, payloads: Iterable[bytes | None]) -> None:
        """Add rows in disk order: the bytes of a JSON object, or None for a row without payload."""
        decode = msgspec.json.decode
        some: list[dict[str, Any] | None] = []
        for raw in payloads:
            some.append(None if raw is None else decode(raw))
            if len(some) == _ROWS_AT_ONCE:
                self._take(some)
                some = []
        self._take(some)

    def close(self) -> None:
        """Put the columns together, then write directory and header. May be called twice."""
        if self._out.closed:
            return
        try:
            self._drain()
            # A dropped column takes no place, but what is below it may have one.
            columns = [self._column(path) for path in sorted(self._builder.columns) if path not in self._dropped]
            spilled = np.array(self._builder.spilled, np.int32)
            directory = Directory(
                columns=columns,
                spilled=self._out.write(iter([spilled]), "<i4") if len(spilled) else None,
                dropped=[list(path) for path in sorted(self._dropped)],
            )
            self._out.finish(msgspec.json.encode(directory), n=self._builder.n)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; without close() before, it is refused."""
        try:
            self._out.abandon()
        finally:
            self._spool.close()

    def __enter__(self) -> ColumnsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    # --- inside -------------------------------------------------------------------------------------------------

    def _take(self, payloads: list[dict[str, Any] | None]) -> None:
        builder = self._builder
        builder.append(payloads)
        while builder.text_bytes > TEXT_BYTES_MAX:
            dearest = max(builder.columns.values(), key=lambda column: column.strings.text_bytes)
            builder.drop(dearest.path)
            self._dropped.append(dearest.path)
        if builder.cell_bytes > CELL_BYTES_MAX:
            self._drain()

    def _drain(self) -> None:
        """Move all cells to the spool."""
        builder = self._builder
        if builder.n > self._drained:
            cells: dict[Names, _Part] = {}
            elements: dict[Names, _Part] = {}
            for path, column in builder.columns.items():
                self._spool_entries(column.entries, cells, path)
                self._spool_entries(column.elements, elements, path)
            self._periods.append(_Period(self._drained, builder.n, cells, elements))
            self._drained = builder.n

    def _spool_entries(self, entries: Entries, parts: dict[Names, _Part], path: Names) -> None:
        if entries.count:
            parts[path] = _Part(self._spool.tell(), entries.count)
            for array in (entries.rows, entries.tags, entries.values):
                self._spool.write(array[: entries.count].data)
            entries.clear()

    def _read(self, part: _Part) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]:
        raw = os.pread(self._spool.fileno(), part.count * 13, part.at)
        rows = np.frombuffer(raw, np.int32, part.count)
        tags = np.frombuffer(raw, np.uint8, part.count, 4 * part.count)
        return rows, tags, np.frombuffer(raw, np.int64, part.count, 5 * part.count)

    def _column(self, path: Names) -> ColumnEntry:
        column = self._builder.columns[path]
        ranks, strings = self._strings(column)
        dense = sum(period.cells[path].count for period in self._periods if path in period.cells)
        whole = dense * _DENSE_SHARE >= self._builder.n
        cells = self._cells([(p, p.cells.get(path)) for p in self._periods], column.entries.kinds, ranks, whole=whole)
        elements = None
        if column.elements.kinds:
            parts = [(p, p.elements.get(path)) for p in self._periods]
            elements = self._cells(parts, column.elements.kinds, ranks, whole=False)
        return ColumnEntry(path=list(path), cells=cells, elements=elements, strings=strings)

    def _strings(self, column: GrowingColumn) -> tuple[NDArray[np.int64], StringsEntry | None]:
        """(the place of each code among the sorted strings, the strings written)."""
        texts = column.strings.list
        order = sorted(range(len(texts)), key=texts.__getitem__)
        ranks = np.empty(len(texts), np.int64)
        ranks[order] = np.arange(len(texts))
        if not texts:
            return ranks, None
        encoded = [texts[code].encode() for code in order]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(text) for text in encoded], dtype=np.int64)])
        times = times_of([texts[code] for code in order])
        out = self._out
        return ranks, StringsEntry(
            ends=out.write(iter([ends]), "<i8"),
            text=out.write((np.frombuffer(text, np.uint8) for text in _joined(encoded)), "|u1"),
            times=out.write(iter([times]), "<i8") if (times != NO_TIME).any() else None,
        )

    def _cells(
        self, parts: list[tuple[_Period, _Part | None]], kinds: int, ranks: NDArray[np.int64], *, whole: bool
    ) -> CellsEntry:
        """whole: with a cell for each row, MISSING where there is none; otherwise with the rows that have one."""
        if whole and sum(part.count for _, part in parts if part) < self._builder.n:
            kinds |= 1 << Kind.MISSING

        def pieces(which: int) -> Iterator[NDArray[Any]]:
            for period, part in parts:
                if part is None:
                    arrays = np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64)
                else:
                    rows, tags, values = self._read(part)
                    if len(ranks) and kinds >> Kind.STRING & 1:
                        values = values.copy()
                        texts = tags == Kind.STRING
                        values[texts] = ranks[values[texts]]
                    arrays = rows, tags, values
                piece = arrays[which]
                if whole:
                    full = np.zeros(period.last - period.first, piece.dtype)
                    full[arrays[0] - period.first] = piece
                    piece = full
                yield piece

        low = high = 0
        if kinds >> Kind.FLOAT & 1:
            low = -(2**63)
        else:
            for piece in pieces(2):
                low, high = min(low, int(piece.min(initial=0))), max(high, int(piece.max(initial=0)))
        one_kind = kinds & (kinds - 1) == 0
        return CellsEntry(
            kinds=kinds,
            rows=None if whole else self._out.write(pieces(0), "<i4"),
            tags=None if one_kind else self._out.write(pieces(1), "|u1"),
            values=self._out.write(pieces(2), _narrowest(low, high)),
        )


class _Out:
    """The file that is being written: sections one after the other, each with its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._file.write(HEADER.pack(MAGIC, 0, 0, 0, 0, 0, 0))  # version 0: not finished

    @property
    def closed(self) -> bool:
        """True after finish() and abandon()."""
        return self._file.closed

    def write(self, pieces: Iterator[NDArray[Any]], dtype: str) -> Section:
        """One array, given in pieces."""
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        at, length, digest = self._file.tell(), 0, xxhash.xxh3_64()
        for piece in pieces:
            raw = np.ascontiguousarray(piece.astype(dtype, copy=False)).data
            self._file.write(raw)
            digest.update(raw)
            length += len(piece)
        return Section(at, dtype, length, digest.hexdigest())

    def finish(self, directory: bytes, *, n: int) -> None:
        """Write the directory, then the header."""
        at = self._file.tell()
        self._file.write(directory)
        self._file.flush()
        self._file.seek(0)
        digest = xxhash.xxh3_64_intdigest(directory)
        self._file.write(pack_header(n=n, directory_at=at, directory_bytes=len(directory), xxh3=digest))

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()


def _narrowest(low: int, high: int) -> str:
    """The smallest signed dtype that holds both."""
    for bits in (8, 16, 32):
        if -(1 << (bits - 1)) <= low and high < 1 << (bits - 1):
            return "|i1" if bits == 8 else f"<i{bits // 8}"
    return "<i8"


def _joined(encoded: list[bytes]) -> Iterator[bytes]:
    for start in range(0, len(encoded), 65_536):
        yield b"".join(encoded[start : start + 65_536])
