"""Writing payload/columns.bin from payloads in disk order, in bounded memory.

ColumnsWriter   append() payloads, close()

Cells wait in a nameless file; close() puts them together column by column. What stays in memory are the distinct strings,
up to a bound: where there are more, the column with most of them has its strings hashed from then on, which still compares
them, but cannot look into them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from index.columns.column import hash_of
from index.columns.growing import ColumnBuilder, Entries, GrowingColumn, HashingStrings, times_of
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

TEXT_BYTES = 64_000_000
"""What distinct strings may take in memory: 270,000 of 40 characters."""
CELL_BYTES = 16_000_000
_ROWS_AT_ONCE = 1024
_TEXTS_AT_ONCE = 65_536
_DENSE_SHARE = 2
"""A column that every second row has is written with a cell for each row: a mask over rows is then one pass."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Cells of one column that were spooled together: how many, where."""

    at: int
    count: int


@dataclass(frozen=True, slots=True)
class _Period:
    """Rows first to last - 1, which were spooled together: the parts of each column's cells, elements and times."""

    first: int
    last: int
    cells: dict[Names, _Part] = field(default_factory=dict)
    elements: dict[Names, _Part] = field(default_factory=dict)
    times: dict[Names, _Part] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Recoding:
    """How the codes of strings in the spool become those in the file: `codes` says what each becomes, in the first
    `periods` periods; later ones are right already. times: of each code, where the strings are hashed."""

    periods: int
    codes: NDArray[np.int64]
    times: NDArray[np.int64] | None = None


_Piece = tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]


class ColumnsWriter:
    """Writes payload/columns.bin of the generation in `folder`, where payload/ exists. A context manager; left by an
    exception it abandons the file. text_bytes: what distinct strings may take in memory."""

    def __init__(self, folder: Path | str, *, text_bytes: int = TEXT_BYTES, cell_bytes: int = CELL_BYTES) -> None:
        place = Path(folder) / "payload"
        self._builder = ColumnBuilder()
        self._text_bytes, self._cell_bytes = text_bytes, cell_bytes
        self._hashed: dict[Names, _Recoding] = {}
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
            self._spool.flush()
            columns = [self._column(path) for path in sorted(self._builder.columns)]
            spilled = np.array(self._builder.spilled, np.int32)
            written = self._out.write([spilled], "<i4") if len(spilled) else None
            directory = Directory(columns=columns, spilled=written)
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

    # --- inside: rows come --------------------------------------------------------------------------------------

    def _take(self, payloads: list[dict[str, Any] | None]) -> None:
        builder = self._builder
        builder.append(payloads)
        if builder.text_bytes > self._text_bytes or builder.cell_bytes > self._cell_bytes:
            self._drain()
        while builder.text_bytes > self._text_bytes:
            dearest = max(builder.columns.values(), key=lambda column: column.strings.text_bytes)
            texts = dearest.strings.list
            codes = np.fromiter(map(hash_of, texts), np.int64, len(texts))
            self._hashed[dearest.path] = _Recoding(len(self._periods), codes, times_of(texts))
            builder.hash_strings(dearest.path)

    def _drain(self) -> None:
        """Move all cells to the spool."""
        builder = self._builder
        if builder.n == self._drained:
            return
        period = _Period(self._drained, builder.n)
        for path, column in builder.columns.items():
            self._spool_entries(column.entries, period.cells, path)
            self._spool_entries(column.elements, period.elements, path)
            if isinstance(column.strings, HashingStrings):
                self._spool_entries(column.strings.time_entries, period.times, path)
        self._periods.append(period)
        self._drained = builder.n

    def _spool_entries(self, entries: Entries, parts: dict[Names, _Part], path: Names) -> None:
        if entries.count:
            parts[path] = _Part(self._spool.tell(), entries.count)
            for array in (entries.rows, entries.tags, entries.values):
                self._spool.write(array[: entries.count].data)
            entries.clear()

    # --- inside: columns are put together -----------------------------------------------------------------------

    def _column(self, path: Names) -> ColumnEntry:
        column = self._builder.columns[path]
        hashed, strings = self._hashed.get(path), None
        recoding = hashed
        if recoding is None:
            recoding, strings = self._strings(column)
        count = sum(period.cells[path].count for period in self._periods if path in period.cells)
        whole = count * _DENSE_SHARE >= self._builder.n
        kinds = column.entries.kinds | (1 << Kind.MISSING if whole and count < self._builder.n else 0)
        cells = self._cells(lambda: self._pieces(path, recoding, "cells"), kinds, whole=whole)
        elements = times = None
        if column.elements.kinds:
            elements = self._cells(lambda: self._pieces(path, recoding, "elements"), column.elements.kinds, whole=False)
        if hashed is not None:
            times = self._cells(lambda: self._times(path, hashed), 1 << Kind.INT, whole=False)
        return ColumnEntry(path=list(path), cells=cells, elements=elements, strings=strings, times=times)

    def _strings(self, column: GrowingColumn) -> tuple[_Recoding, StringsEntry | None]:
        """Write the distinct strings, ascending."""
        texts = column.strings.list
        order = sorted(range(len(texts)), key=texts.__getitem__)
        ranks = np.empty(len(texts), np.int64)
        ranks[order] = np.arange(len(texts))
        recoding = _Recoding(len(self._periods), ranks)
        if not texts:
            return recoding, None
        lengths = (len(texts[code].encode()) for code in order)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.fromiter(lengths, np.int64, len(order)))])
        times = times_of([texts[code] for code in order])
        blocks = (order[start : start + _TEXTS_AT_ONCE] for start in range(0, len(order), _TEXTS_AT_ONCE))
        raw = (np.frombuffer("".join(texts[code] for code in block).encode(), np.uint8) for block in blocks)
        out = self._out
        return recoding, StringsEntry(
            ends=out.write([ends], "<i8"),
            text=out.write(raw, "|u1"),
            times=out.write([times], "<i8") if (times != NO_TIME).any() else None,
        )

    def _pieces(self, path: Names, recoding: _Recoding, what: Literal["cells", "elements"]) -> Iterator[_Piece]:
        """Cells of each period, with the codes that strings have in the file."""
        for number, period in enumerate(self._periods):
            rows, tags, values = self._read((period.cells if what == "cells" else period.elements).get(path))
            if number < recoding.periods and len(recoding.codes):
                values = values.copy()
                texts = tags == Kind.STRING
                values[texts] = recoding.codes[values[texts]]
            yield rows, tags, values

    def _times(self, path: Names, recoding: _Recoding) -> Iterator[_Piece]:
        """Date-times of hashed strings: of those from before they were hashed by their codes."""
        assert recoding.times is not None, "hashed strings have times"
        for number, period in enumerate(self._periods):
            if number >= recoding.periods:
                yield self._read(period.times.get(path))
                continue
            found_rows, found_times = [], []
            for parts in (period.cells, period.elements):
                rows, tags, values = self._read(parts.get(path))
                texts = tags == Kind.STRING
                times = recoding.times[values[texts]]
                found_rows.append(rows[texts][times != NO_TIME])
                found_times.append(times[times != NO_TIME])
            all_rows, all_times = np.concatenate(found_rows), np.concatenate(found_times)
            order = np.argsort(all_rows, kind="stable")
            yield all_rows[order], np.full(len(order), Kind.INT, np.uint8), all_times[order]

    def _read(self, part: _Part | None) -> _Piece:
        if part is None:
            return np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64)
        raw = os.pread(self._spool.fileno(), part.count * 13, part.at)
        rows = np.frombuffer(raw, np.int32, part.count)
        tags = np.frombuffer(raw, np.uint8, part.count, 4 * part.count)
        return rows, tags, np.frombuffer(raw, np.int64, part.count, 5 * part.count)

    def _cells(self, pieces: Callable[[], Iterator[_Piece]], kinds: int, *, whole: bool) -> CellsEntry:
        """Write cells, array after array, each a pass over the pieces. whole: with a cell for each row, MISSING where
        there is none; otherwise with the rows that have one."""

        def array(which: int) -> Iterator[NDArray[Any]]:
            for period, piece in zip(self._periods, pieces(), strict=True):
                if whole:
                    full = np.zeros(period.last - period.first, piece[which].dtype)
                    full[piece[0] - period.first] = piece[which]
                    yield full
                else:
                    yield piece[which]

        low = high = 0
        if kinds >> Kind.FLOAT & 1:
            low = -(2**63)  # the bits of floats take all 64
        else:
            for values in array(2):
                low, high = min(low, int(values.min(initial=0))), max(high, int(values.max(initial=0)))
        one_kind = kinds & (kinds - 1) == 0
        return CellsEntry(
            kinds=kinds,
            rows=None if whole else self._out.write(array(0), "<i4"),
            tags=None if one_kind else self._out.write(array(1), "|u1"),
            values=self._out.write(array(2), _narrowest(low, high)),
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

    def write(self, pieces: Iterable[NDArray[Any]], dtype: str) -> Section:
        """One array, given in pieces, and zeros up to the next multiple of ALIGNMENT."""
        at, length, digest = self._file.tell(), 0, xxhash.xxh3_64()
        for piece in pieces:
            raw = np.ascontiguousarray(piece.astype(dtype, copy=False)).data
            self._file.write(raw)
            digest.update(raw)
            length += len(piece)
        padding = bytes(-self._file.tell() % ALIGNMENT)
        self._file.write(padding)
        digest.update(padding)
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
