"""payload/columns.bin, open: mapped, and compared with its checksums when a column is first asked for.

ColumnsFile.open()   header and directory are read; arrays stay on the disk until they are touched

Nothing that grows with n is resident, and no descriptor stays open. Like every mapped file: cut short in place it ends the
process that has it open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from index.columns.column import Cells, Column, HashedStrings, Mask, PayloadColumns, Times
from index.columns.kinds import Names
from index.columns.layout import (
    ALIGNMENT,
    COLUMNS_NAME,
    HEADER,
    CellsEntry,
    ColumnEntry,
    Directory,
    Section,
    read_header,
)
from index.columns.mapped import map_file
from index.columns.times import NO_TIME
from index.descriptor import NotAFileError, open_regular
from index.errors import CorruptIndexError, CorruptReason, ReadFailedError

_TEXTS_AT_ONCE = 65_536


class MappedStrings:
    """Distinct strings in the file, ascending. ends int64 (strings + 1,); text uint8."""

    def __init__(self, ends: NDArray[np.int64], text: NDArray[np.uint8], times: NDArray[np.int64] | None) -> None:
        self._ends, self._text, self._times = ends, text, times

    def __len__(self) -> int:
        return len(self._ends) - 1

    def code_of(self, text: str) -> int:
        """-1 where no cell is that string."""
        try:
            wanted = text.encode()
        except UnicodeEncodeError:
            return -1
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._raw(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self) and self._raw(low) == wanted else -1

    def texts(self) -> Iterator[str]:
        """All of them, by code."""
        for start in range(0, len(self), _TEXTS_AT_ONCE):
            ends = self._ends[start : start + _TEXTS_AT_ONCE + 1]
            raw = self._text[ends[0] : ends[-1]].tobytes()
            places = (ends - ends[0]).tolist()
            for begin, end in pairwise(places):
                yield raw[begin:end].decode()

    def text(self, code: int) -> str:
        """One of them."""
        return self._raw(code).decode()

    def times(self) -> NDArray[np.int64]:
        """(strings,): microseconds since 1970, NO_TIME for what is no date-time."""
        return np.full(len(self), NO_TIME, np.int64) if self._times is None else self._times

    def _raw(self, code: int) -> bytes:
        return self._text[self._ends[code] : self._ends[code + 1]].tobytes()


class ColumnsFile(PayloadColumns):
    """The columns of one generation. Threads: any number at once."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder = path, folder
        self._made: dict[Names, Column] = {}
        self._map: NDArray[np.uint8] = np.zeros(0, np.uint8)

    @classmethod
    def open(cls, folder: Path | str) -> ColumnsFile:
        """Open payload/columns.bin of a generation's folder.

        Raises CorruptIndexError, UnsupportedFormatError, ReadFailedError.
        """
        file = cls(Path(folder) / "payload" / COLUMNS_NAME, Path(folder))
        file._open()
        return file

    def column(self, path: Names) -> Column | None:
        """The column of a path. Raises CorruptIndexError naming file and offset where it is damaged."""
        made = self._made.get(path)
        if made is None and (entry := self._entries.get(path)) is not None:
            made = self._made[path] = self._column(entry)
        return made

    def uncolumned(self, path: Names) -> Mask | None:
        """Of a path without column: the rows that may have something there all the same; None: no row has."""
        if self._spilled is None:
            return None
        rows = np.zeros(self.n, np.bool_)
        rows[self._array(self._spilled)] = True
        return rows

    def paths(self) -> list[Names]:
        """The paths of all columns, in order."""
        return list(self._entries)

    # --- inside -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            fd = open_regular(self._path)
        except NotAFileError as error:
            raise self._corrupt(CorruptReason.HEADER, "a file", str(error), 0) from None
        except FileNotFoundError:
            raise self._corrupt(CorruptReason.MISSING, "a file", "nothing", 0) from None
        try:
            size = os.fstat(fd).st_size
            raw = os.pread(fd, HEADER.size, 0)
            if len(raw) < HEADER.size:
                raise self._corrupt(CorruptReason.SIZE, HEADER.size, size, 0)
            self.n, at, length, expected = read_header(raw, self._path, self._folder)
            if size != at + length:
                raise self._corrupt(CorruptReason.SIZE, at + length, size, 0)
            directory = os.pread(fd, length, at)
            found = xxhash.xxh3_64_intdigest(directory)
            if found != expected:
                raise self._corrupt(CorruptReason.CHECKSUM, expected, found, at)
            self._map = map_file(fd, size)
        except OSError as error:
            raise ReadFailedError(path=self._path, offset_bytes=0, error_number=error.errno or 0) from error
        finally:
            os.close(fd)
        decoded = msgspec.json.decode(directory, type=Directory)
        self._entries = {tuple(entry.path): entry for entry in decoded.columns}
        self._spilled = decoded.spilled

    def _column(self, entry: ColumnEntry) -> Column:
        rows, cells = self._cells(entry.cells)
        element_rows, elements = np.zeros(0, np.int32), Cells(None, np.zeros(0, np.int8), 0)
        if entry.elements is not None:
            given, elements = self._cells(entry.elements)
            assert given is not None, "elements have rows"
            element_rows = given
        if entry.times is not None:
            rows_of_times, times_cells = self._cells(entry.times)
            assert rows_of_times is not None, "times have rows"
            times_found = Times(rows_of_times, times_cells.values)
            return Column(self.n, rows, cells, element_rows, elements, HashedStrings(), times_found)
        strings = MappedStrings(np.zeros(1, np.int64), np.zeros(0, np.uint8), None)
        if entry.strings is not None:
            times = None if entry.strings.times is None else self._array(entry.strings.times)
            strings = MappedStrings(self._array(entry.strings.ends), self._array(entry.strings.text), times)
        return Column(self.n, rows, cells, element_rows, elements, strings)

    def _cells(self, entry: CellsEntry) -> tuple[NDArray[np.int32] | None, Cells]:
        rows = None if entry.rows is None else self._array(entry.rows)
        tags = None if entry.tags is None else self._array(entry.tags)
        return rows, Cells(tags, self._array(entry.values), entry.kinds)

    def _array(self, section: Section) -> NDArray[Any]:
        """The array of a section, compared with its checksum."""
        dtype = np.dtype(section.dtype)
        size = section.length * dtype.itemsize
        raw = self._map[section.at : section.at + -(-size // ALIGNMENT) * ALIGNMENT]
        found = xxhash.xxh3_64_hexdigest(raw.data)
        if found != section.xxh3:
            raise self._corrupt(CorruptReason.CHECKSUM, section.xxh3, found, section.at)
        return raw[:size].view(dtype)

    def _corrupt(self, reason: CorruptReason, expected: int | str, found: int | str, offset: int) -> CorruptIndexError:
        return CorruptIndexError(
            path=self._path,
            offset_bytes=offset,
            reason=reason,
            expected=expected,
            found=found,
            folder=self._folder,
        )
