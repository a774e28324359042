"""What is read off a column besides masks: how often each value occurs, values to sort rows by, values to group them by.

value_counts()   facets: in how many rows of a mask each boolean, integer and string occurs
order_values()   numbers and date-times with their rows, exact
group_values()   integers and strings of some rows

An array's elements are its values. Where columns say nothing (`unread_rows()`), `read` does: rows -> the values of each at
the path, arrays unwrapped one level. As everywhere, 42.0 counts as 42.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.columns.column import Cells, Column, Mask, PayloadColumns
from index.columns.kinds import Kind, Names, Scalar
from index.columns.times import NO_TIME, parse_time

ReadValues = Callable[[NDArray[np.int64]], Sequence[Sequence[Any]]]
_ORDER = {bool: 0, int: 1, str: 2}


@dataclass(frozen=True, slots=True)
class OrderValues:
    """rows int64 (m,); values (m,): int64, float64, or object where both occur or integers are beyond 64 bits. Each pair of
    row and value once; in no order."""

    rows: NDArray[np.int64]
    values: NDArray[Any]


def unread_rows(columns: PayloadColumns, path: Names, *, strings: bool) -> Mask:
    """(n,): rows of which columns do not say all that they have at a path. strings: whether those themselves are needed."""
    column = columns.column(path)
    if column is None:
        rows = columns.uncolumned(path)
        return np.zeros(columns.n, np.bool_) if rows is None else rows
    rows = column.of(Kind.OTHER)
    if strings and not column.lists_strings:
        rows |= column.where(lambda cells: cells.of(Kind.STRING))
    return rows


def value_counts(columns: PayloadColumns, path: Names, mask: Mask, read: ReadValues) -> list[tuple[Scalar, int]]:
    """(value, rows of the mask that have it), the most frequent first, then booleans, integers, strings, each ascending."""
    unread = unread_rows(columns, path, strings=True)
    counts: Counter[tuple[int, Scalar]] = Counter()
    column = columns.column(path)
    if column is not None:
        wanted = mask & ~unread
        own = wanted if column.rows is None else wanted[column.rows]
        counts.update(_counted(column, column.cells, None, own))
        counts.update(_counted(column, column.elements, column.element_rows, wanted[column.element_rows]))
    for _, values in _read(unread & mask, read):
        counts.update({_tagged(value) for value in map(_as_scalar, values) if value is not None})
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(value, count) for (_, value), count in ranked]


def order_values(columns: PayloadColumns, path: Names, mask: Mask, read: ReadValues) -> OrderValues:
    """Numbers, and date-times in microseconds since 1970, of the rows of a mask; rows without any are left out."""
    unread = unread_rows(columns, path, strings=False)
    pieces: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
    column = columns.column(path)
    if column is not None:
        wanted = mask & ~unread
        own = np.arange(len(column.cells), dtype=np.int64) if column.rows is None else column.rows
        pieces += _numbers(column, column.cells, own, wanted)
        if len(pieces) == 1 and not unread.any() and not len(column.elements) and column.times is None:
            return OrderValues(*pieces[0])  # one value a row: none can stand twice
        pieces += _numbers(column, column.elements, column.element_rows, wanted)
        if column.times is not None:
            there = wanted[column.times.rows]
            pieces.append((column.times.rows[there].astype(np.int64), column.times.values[there]))
    read_values = ((row, order) for row, values in _read(unread & mask, read) for order in map(_as_order, values))
    given = [(row, order) for row, order in read_values if order is not None]
    if given:
        exact = np.empty(len(given), object)
        exact[:] = [order for _, order in given]
        pieces.append((np.array([row for row, _ in given], np.int64), exact))
    return _unique(pieces)


def group_values(
    columns: PayloadColumns, path: Names, rows: NDArray[np.int64], read: ReadValues
) -> list[list[int | str]]:
    """The integers and strings of each of some rows, each once, in their order; none where a row has a value of another kind:
    Qdrant leaves such points out of groups."""
    unread = unread_rows(columns, path, strings=True)[rows]
    column = columns.column(path)
    found: list[list[int | str]] = [[] for _ in range(len(rows))]
    places = np.flatnonzero(unread)
    for place, values in zip(places.tolist(), read(rows[places]) if len(places) else []):
        found[place] = _as_group(values)
    if column is not None:
        for place in np.flatnonzero(~unread).tolist():
            found[place] = _as_group(_values_of(column, int(rows[place])))
    return found


# --- inside -----------------------------------------------------------------------------------------------------


def _read(rows: Mask, read: ReadValues) -> Iterator[tuple[int, Sequence[Any]]]:
    """(row, its values), some thousand rows at a time."""
    positions = np.flatnonzero(rows)
    for start in range(0, len(positions), 4096):
        some = positions[start : start + 4096]
        yield from zip(some.tolist(), read(some), strict=True)


def _counted(column: Column, cells: Cells, owners: NDArray[Any] | None, wanted: Mask) -> dict[tuple[int, Scalar], int]:
    """How many owners have each value. owners: of each cell, ascending, None: each cell's is another; wanted: which cells
    count."""
    counts: dict[tuple[int, Scalar], int] = {}
    for kind in (Kind.BOOL, Kind.INT, Kind.STRING):
        if kind is Kind.INT and cells.may_have(Kind.FLOAT):
            values, chosen = _integers(cells)
        elif cells.may_have(kind):
            values, chosen = cells.values, cells.of(kind)
        else:
            continue
        places = np.flatnonzero(chosen & wanted)
        values = values[places]
        if owners is not None:
            _, values = _pairs(owners[places], values)
        for value, count in zip(*(array.tolist() for array in _occurring(values, few=len(column.strings)))):
            made = column.strings.text(value) if kind is Kind.STRING else bool(value) if kind is Kind.BOOL else value
            counts[_tagged(made)] = count
    return counts


def _occurring(values: NDArray[Any], *, few: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """(distinct values, how often each occurs). few: as many numbers from 0 on are worth a table."""
    if few and len(values) and values.min() >= 0 and values.max() < few:
        table = np.bincount(values)
        occurring = np.flatnonzero(table)
        return occurring, table[occurring]
    return np.unique(values, return_counts=True)


def _integers(cells: Cells) -> tuple[NDArray[np.int64], Mask]:
    """(values as integers, which cells are integers or floats that are the same)."""
    floats = cells.floats()
    with np.errstate(invalid="ignore"):
        whole = cells.of(Kind.FLOAT) & (np.abs(floats) < 2.0**63) & (floats == np.floor(floats))
    values = cells.values.astype(np.int64)
    values[whole] = floats[whole].astype(np.int64)
    return values, whole | cells.of(Kind.INT)


def _numbers(
    column: Column, cells: Cells, owners: NDArray[Any], wanted: Mask
) -> list[tuple[NDArray[np.int64], NDArray[Any]]]:
    """(rows, values) of integers, of floats, of date-times among kept strings."""
    pieces = []
    there = wanted[owners]
    for kind in (Kind.INT, Kind.FLOAT, Kind.STRING):
        if not cells.may_have(kind) or (kind is Kind.STRING and not column.lists_strings):
            continue
        chosen = np.flatnonzero(there & cells.of(kind))
        values: NDArray[Any] = cells.floats() if kind is Kind.FLOAT else cells.values
        values = values[chosen]
        if kind is Kind.STRING:
            values = column.strings.times()[values]
            chosen, values = chosen[values != NO_TIME], values[values != NO_TIME]
        pieces.append((owners[chosen].astype(np.int64), values if kind is Kind.FLOAT else values.astype(np.int64)))
    return pieces


def _unique(pieces: list[tuple[NDArray[np.int64], NDArray[Any]]]) -> OrderValues:
    """All pieces as one, each pair once."""
    pieces = [piece for piece in pieces if len(piece[0])]
    if not pieces:
        return OrderValues(np.zeros(0, np.int64), np.zeros(0, np.int64))
    rows = np.concatenate([rows for rows, _ in pieces])
    if len({values.dtype for _, values in pieces}) == 1 and pieces[0][1].dtype != object:
        return OrderValues(*_pairs(rows, np.concatenate([values for _, values in pieces])))
    # Integers and floats are compared exactly only as Python's own.
    values = [value for _, piece in pieces for value in piece.tolist()]
    pairs = list(dict.fromkeys(zip(rows.tolist(), values)))
    exact = np.empty(len(pairs), object)
    exact[:] = [value for _, value in pairs]
    return OrderValues(np.array([row for row, _ in pairs], np.int64), exact)


def _pairs(owners: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Each pair of owner and value once."""
    order = np.lexsort((values, owners))
    owners, values = owners[order], values[order]
    first = np.ones(len(owners), np.bool_)
    first[1:] = (owners[1:] != owners[:-1]) | (values[1:] != values[:-1])
    return owners[first], values[first]


def _values_of(column: Column, row: int) -> list[Any]:
    """The values of one row that is not to be read; an object is None, as null is: neither groups."""
    at = row if column.rows is None else int(np.searchsorted(column.rows, np.int32(row)))
    if at >= len(column.cells) or (column.rows is not None and column.rows[at] != row):
        return []
    kind = _kind(column.cells, at)
    if kind == Kind.MISSING:
        return []
    if kind != Kind.LIST:
        return [_value(column, column.cells, at)]
    first, last = np.searchsorted(column.element_rows, np.array([row, row + 1], np.int32)).tolist()
    return [_value(column, column.elements, at) for at in range(first, last)]


def _value(column: Column, cells: Cells, at: int) -> Any:
    kind, value = _kind(cells, at), int(cells.values[at])
    if kind == Kind.STRING:
        return column.strings.text(value)
    if kind == Kind.FLOAT:
        return float(cells.floats()[at])
    if kind == Kind.BOOL:
        return bool(value)
    return value if kind == Kind.INT else None


def _kind(cells: Cells, at: int) -> int:
    return cells.kinds.bit_length() - 1 if cells.tags is None else int(cells.tags[at])


def _tagged(value: Scalar) -> tuple[int, Scalar]:
    """True and 1 are equal in Python, and no boolean is less than a string."""
    return _ORDER[type(value)], value


def _as_scalar(value: Any) -> Scalar | None:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2.0**63:
        return int(value)
    return value if isinstance(value, bool | int | str) else None


def _as_order(value: Any) -> int | float | None:
    if isinstance(value, str):
        return parse_time(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_group(values: Sequence[Any]) -> list[int | str]:
    made: list[int | str] = []
    for value in map(_as_scalar, values):
        if value is None or isinstance(value, bool):
            return []
        if value not in made:
            made.append(value)
    return made
