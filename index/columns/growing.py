"""Columns of payloads that are still coming.

ColumnBuilder.append()   rows at the end
ColumnBuilder.view()     the columns of the rows so far, which never change again

Everything is append-only: what a view of n rows may look at is never written again, so view() copies nothing and needs no
lock. Threads: one appends, any number make and read views.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.columns.column import Cells, Column, Mask, PayloadColumns, hash_of
from index.columns.kinds import COLUMNS_MAX, DEPTH_MAX, Kind, Names
from index.columns.times import NO_TIME, parse_time

# Plain numbers: what an enum costs to look up would be a third of append().
_NULL, _BOOL, _INT, _FLOAT, _STRING, _LIST, _OBJECT, _OTHER = map(
    int, (Kind.NULL, Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.STRING, Kind.LIST, Kind.OBJECT, Kind.OTHER)
)
_FIRST_ROOM = 16
_SCALAR_TYPES = frozenset({str, int, float, bool, type(None)})
_TEXT_BYTES = 200
"""What a distinct string costs in memory beyond its characters: the object, its place in a dictionary, its code."""


class Entries:
    """Cells with their rows, growing at the end: rows int32, tags uint8, values int64. put() before count."""

    __slots__ = ("_floats", "_room", "_rows", "_tags", "_values", "count", "kinds", "rows", "tags", "values")

    def __init__(self) -> None:
        self.count = self.kinds = 0
        self.rows: NDArray[np.int32] = np.zeros(0, np.int32)
        self.tags: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.values: NDArray[np.int64] = np.zeros(0, np.int64)
        self._fit(_FIRST_ROOM)

    def put(self, row: int, kind: int, value: int) -> None:
        """One cell."""
        at = self.count
        if at == self._room:
            self._fit(2 * at)
        self._rows[at], self._tags[at], self._values[at] = row, kind, value
        self.kinds |= 1 << kind
        self.count = at + 1

    def put_float(self, row: int, value: float) -> None:
        """One FLOAT."""
        at = self.count
        if at == self._room:
            self._fit(2 * at)
        self._rows[at], self._tags[at], self._floats[at] = row, _FLOAT, value
        self.kinds |= 1 << _FLOAT
        self.count = at + 1

    def before(self, n: int) -> tuple[NDArray[np.int32], Cells]:
        """The cells of rows below n."""
        # In this order: count is written last, and an array that was read later holds no less.
        count = self.count
        rows, tags, values, kinds = self.rows, self.tags, self.values, self.kinds
        # In the array's own type: for another one it would be copied whole.
        count = int(np.searchsorted(rows[:count], np.int32(n)))
        one_kind = kinds & (kinds - 1) == 0
        return rows[:count], Cells(None if one_kind else tags[:count], values[:count], kinds)

    def clear(self) -> None:
        """Forget all cells; of a builder that has no views."""
        self.count = 0
        if self._room > 1024:
            self._fit(_FIRST_ROOM)

    @property
    def nbytes(self) -> int:
        """Bytes of the cells that are there."""
        return self.count * 13

    def _fit(self, room: int) -> None:
        """Make room for that many cells. The old arrays stay as they are: views look at them."""
        keep = self.count
        rows, tags, values = np.zeros(room, np.int32), np.zeros(room, np.uint8), np.zeros(room, np.int64)
        if keep:
            rows[:keep], tags[:keep], values[:keep] = self.rows[:keep], self.tags[:keep], self.values[:keep]
        # Setting one number through a memoryview takes half of the time that it takes in the array.
        self._rows: Any = rows.data
        self._tags: Any = tags.data
        self._values: Any = values.data
        self._floats: Any = values.view(np.float64).data
        self.rows, self.tags, self.values, self._room = rows, tags, values, room


class GrowingStrings:
    """Distinct strings by code, append-only."""

    __slots__ = ("_lock", "_times", "codes", "list", "text_bytes")

    def __init__(self) -> None:
        self.text_bytes = 0
        self.codes: dict[str, int] = {}
        self.list: list[str] = []
        self._times = np.zeros(0, np.int64)
        self._lock = threading.Lock()

    def add(self, text: str) -> int:
        """The code of a string that is not there yet."""
        code = len(self.list)
        self.list.append(text)
        self.codes[text] = code
        self.text_bytes += _TEXT_BYTES + len(text)
        return code

    def times(self, size: int) -> NDArray[np.int64]:
        """Date-times of the first `size` strings; each is parsed once."""
        with self._lock:
            done = len(self._times)
            if done < size:
                self._times = np.concatenate([self._times, times_of(self.list[done:size])])
            return self._times[:size]


class HashingStrings(GrowingStrings):
    """Strings that are hashed and not kept; of those that are date-times row and time are."""

    __slots__ = ("_builder", "time_entries")

    def __init__(self, builder: ColumnBuilder) -> None:
        super().__init__()
        self.codes = _Hashes(self)
        self.time_entries = Entries()
        self._builder = builder

    def code(self, text: str) -> int:
        """The hash of one string of the row that is being added."""
        time = parse_time(text)
        if time is not None:
            self.time_entries.put(self._builder.n, _INT, time)
        return hash_of(text)


class _Hashes(dict[str, int]):
    """Looks like the codes of strings that are all known."""

    def __init__(self, strings: HashingStrings) -> None:
        super().__init__()
        self._strings = strings

    def get(self, text: str, default: Any = None) -> Any:
        """The hash of a string."""
        return self._strings.code(text)


@dataclass(frozen=True, slots=True)
class FirstStrings:
    """The first `size` strings of a growing column."""

    strings: GrowingStrings
    size: int

    def __len__(self) -> int:
        return self.size

    def code_of(self, text: str) -> int:
        """-1 where no cell is that string."""
        code = self.strings.codes.get(text, -1)
        return code if code < self.size else -1

    def texts(self) -> Iterator[str]:
        """All of them, by code."""
        return islice(self.strings.list, self.size)

    def text(self, code: int) -> str:
        """One of them."""
        return self.strings.list[code]

    def times(self) -> NDArray[np.int64]:
        """(strings,): microseconds since 1970, NO_TIME for what is no date-time."""
        return self.strings.times(self.size)


class GrowingColumn:
    """The column of one path, and the columns below it."""

    __slots__ = ("below", "elements", "entries", "path", "strings")

    def __init__(self, path: Names) -> None:
        self.path = path
        self.entries, self.elements = Entries(), Entries()
        self.strings = GrowingStrings()
        self.below: dict[str, GrowingColumn] = {}

    def before(self, n: int) -> Column:
        """The column of the first n rows."""
        rows, cells = self.entries.before(n)
        element_rows, elements = self.elements.before(n)
        whole = None if len(rows) == n else rows
        return Column(n, whole, cells, element_rows, elements, FirstStrings(self.strings, len(self.strings.list)))


class ColumnBuilder:
    """Columns of payloads, row after row. Below 1 us a scalar value (docs/decisions/0010-filters.md)."""

    def __init__(self) -> None:
        self.n = 0
        self.columns: dict[Names, GrowingColumn] = {}
        self.spilled: list[int] = []
        self.text_bytes = 0
        self._top: dict[str, GrowingColumn] = {}

    def append(self, payloads: Sequence[dict[str, Any] | None]) -> None:
        """Add rows: decoded JSON objects, or None for a row without payload."""
        for payload in payloads:
            if payload:
                self._put_object(self._top, (), payload, self.n)
            self.n += 1

    def view(self) -> PayloadColumns:
        """The columns of the rows so far."""
        return ColumnsView(self, self.n)

    @property
    def cell_bytes(self) -> int:
        """Bytes of all cells and elements."""
        return sum(column.entries.nbytes + column.elements.nbytes for column in self.columns.values())

    def hash_strings(self, path: Names) -> None:
        """Hash the strings of a path from now on, and forget those it has; of a builder that has no views."""
        column = self.columns[path]
        self.text_bytes -= column.strings.text_bytes
        column.strings = HashingStrings(self)

    def _put_object(self, level: dict[str, GrowingColumn], path: Names, payload: dict[str, Any], row: int) -> None:
        for key, value in payload.items():
            column = level.get(key) or self._new_column(level, path, key, row)
            if column is None:
                continue
            kind = type(value)
            if kind is str:
                code = column.strings.codes.get(value)
                column.entries.put(row, _STRING, self._add_text(column, value) if code is None else code)
            elif kind is int and -(2**63) <= value < 2**63:
                column.entries.put(row, _INT, value)
            elif kind is float and math.isfinite(value):
                column.entries.put_float(row, value)
            elif kind is bool:
                column.entries.put(row, _BOOL, value)
            elif kind is dict:
                column.entries.put(row, _OBJECT, 0)
                if value:
                    self._put_object(column.below, column.path, value, row)
            elif kind is list:
                self._put_list(column, value, row)
            else:
                # What is no finite number is null in JSON.
                column.entries.put(row, _NULL if value is None or kind is float else _OTHER, 0)

    def _put_list(self, column: GrowingColumn, values: list[Any], row: int) -> None:
        """A list of scalars is its elements and then its cell; any other is one cell of the kind OTHER."""
        for value in values:
            if type(value) not in _SCALAR_TYPES or (type(value) is int and not -(2**63) <= value < 2**63):
                column.entries.put(row, _OTHER, 0)
                return
        elements = column.elements
        for value in values:
            kind = type(value)
            if kind is str:
                code = column.strings.codes.get(value)
                elements.put(row, _STRING, self._add_text(column, value) if code is None else code)
            elif kind is int:
                elements.put(row, _INT, value)
            elif kind is bool:
                elements.put(row, _BOOL, value)
            elif value is not None and math.isfinite(value):
                elements.put_float(row, value)
            else:
                elements.put(row, _NULL, 0)
        column.entries.put(row, _LIST, len(values))

    def _add_text(self, column: GrowingColumn, text: str) -> int:
        before = column.strings.text_bytes
        code = column.strings.add(text)
        self.text_bytes += column.strings.text_bytes - before
        return code

    def _new_column(self, level: dict[str, GrowingColumn], path: Names, key: str, row: int) -> GrowingColumn | None:
        if len(path) >= DEPTH_MAX or len(self.columns) >= COLUMNS_MAX:
            if not self.spilled or self.spilled[-1] != row:
                self.spilled.append(row)
            return None
        column = level[key] = GrowingColumn((*path, key))
        self.columns[column.path] = column
        return column


class ColumnsView(PayloadColumns):
    """The first n rows of a builder."""

    def __init__(self, builder: ColumnBuilder, n: int) -> None:
        self.n = n
        self._builder = builder
        self._made: dict[Names, Column] = {}

    def column(self, path: Names) -> Column | None:
        """The column of a path."""
        made = self._made.get(path)
        if made is None:
            growing = self._builder.columns.get(path)
            if growing is None:
                return None
            made = self._made[path] = growing.before(self.n)
        return made

    def uncolumned(self, path: Names) -> Mask | None:
        """Of a path without column: the rows that may have something there all the same; None: no row has."""
        spilled = np.array(self._builder.spilled, np.int64)
        spilled = spilled[: np.searchsorted(spilled, self.n)]
        if not len(spilled):
            return None
        rows = np.zeros(self.n, np.bool_)
        rows[spilled] = True
        return rows

    def paths(self) -> list[Names]:
        """The paths of all columns, in order."""
        return sorted(path for path, column in list(self._builder.columns.items()) if len(column.before(self.n).cells))


def times_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """(texts,): microseconds since 1970, NO_TIME for what is no date-time."""
    found = (parse_time(text) for text in texts)
    return np.fromiter((NO_TIME if time is None else time for time in found), np.int64, len(texts))
