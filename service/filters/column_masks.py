"""A condition on a field over all rows of columns: the rows that hold, and those that columns cannot decide.

field_masks()    (holds (n,), undecided (n,) or None)
nested_doubt()   rows that may have an array of objects at a path
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from index.columns import Cells, Column, Kind, PayloadColumns
from index.columns.asking import equal_to, has_value, in_range, in_strings, integer_bounds, rows_in_times
from service.filters.geo_masks import may_lie_within
from service.filters.matching import field_holds, text_holds
from service.filters.tree import (
    Except,
    Field,
    Geo,
    GeoBox,
    GeoPolygon,
    GeoRadius,
    IsEmpty,
    IsNull,
    Match,
    Phrase,
    Predicate,
    Prefix,
    Range,
    Substring,
    TextMatch,
    TimeRange,
    ValuesCount,
    Words,
)
from service.payload_paths import Path

Mask = NDArray[np.bool_]
Test = Callable[[Cells], Mask]


def field_masks(field: Field, columns: PayloadColumns) -> tuple[Mask, Mask | None]:
    """Rows that hold, and rows to be read as JSON (None: none); where both are set the row is to be read."""
    names = tuple(step for step in field.path if isinstance(step, str))
    if_missing = field_holds(field, {})
    if len(names) < len(field.path):
        return _into_arrays(field.path, columns, if_missing=if_missing)
    column = columns.column(names)
    if column is None:
        return _decided(np.full(columns.n, if_missing), columns.uncolumned(names))
    if isinstance(field.predicate, GeoBox | GeoRadius | GeoPolygon):
        return np.zeros(columns.n, np.bool_), _geo_doubt(field.predicate, names, column, columns)
    return _decided(*_column_masks(field.predicate, column))


def nested_doubt(path: Path, columns: PayloadColumns) -> Mask | None:
    """Rows that may have an array of objects at a path; None: no row has."""
    names = tuple(step for step in path if isinstance(step, str))
    if len(names) < len(path):
        return _into_arrays(path, columns, if_missing=False)[1]
    column = columns.column(names)
    return columns.uncolumned(names) if column is None else _some(column.of(Kind.OTHER))


def _into_arrays(path: Path, columns: PayloadColumns, *, if_missing: bool) -> tuple[Mask, Mask | None]:
    """A path with `[]` or `[0]` leads nowhere but from an array."""
    to_array: list[str] = []
    for step in path:
        if not isinstance(step, str):
            break
        to_array.append(step)
    names = tuple(to_array)
    column = columns.column(names)
    doubt = columns.uncolumned(names) if column is None else column.of(Kind.LIST) | column.of(Kind.OTHER)
    return _decided(np.full(columns.n, if_missing), doubt)


def _geo_doubt(geo: Geo, names: tuple[str, ...], column: Column, columns: PayloadColumns) -> Mask | None:
    """Objects that may lie within, and arrays that may hold such."""
    objects = column.of(Kind.OBJECT)
    near = may_lie_within(geo, names, columns)
    if near is not None:
        objects &= near
    return _some(objects | column.of(Kind.OTHER))


def _column_masks(predicate: Predicate, column: Column) -> tuple[Mask, Mask | None]:
    doubt = column.of(Kind.OTHER) if column.cells.may_have(Kind.OTHER) else None
    if isinstance(predicate, ValuesCount):
        return _values_count(predicate.bounds, column), doubt
    if isinstance(predicate, IsEmpty | IsNull):
        yes = _is_empty(column) if isinstance(predicate, IsEmpty) else _is_null(column)
        return (yes if predicate.wanted else ~yes), doubt
    if isinstance(predicate, TimeRange):
        low, high = integer_bounds(predicate.gt, predicate.gte, predicate.lt, predicate.lte)
        return rows_in_times(column, low, high), doubt
    if isinstance(predicate, Words | Phrase | Prefix | Substring):
        if not column.lists_strings:
            strings = column.where(lambda cells: cells.of(Kind.STRING))
            return np.zeros(column.n, np.bool_), strings if doubt is None else strings | doubt
        holds = _text_test(predicate)
        selected = np.fromiter(map(holds, column.strings.texts()), np.bool_, len(column.strings))
        return column.where(lambda cells: in_strings(cells, selected)), doubt
    assert isinstance(predicate, Match | Except | Range), "places are asked elsewhere"
    return column.where(_test(predicate, column)), doubt


def _test(predicate: Match | Except | Range, column: Column) -> Test:
    strings = column.strings
    if isinstance(predicate, Match):
        wanted = predicate.values
        return lambda cells: equal_to(cells, strings, wanted)
    if isinstance(predicate, Except):
        unwanted = predicate.values
        return lambda cells: has_value(cells) & ~equal_to(cells, strings, unwanted)
    bounds = predicate
    return lambda cells: in_range(cells, gt=bounds.gt, gte=bounds.gte, lt=bounds.lt, lte=bounds.lte)


def _text_test(predicate: TextMatch) -> Callable[[str], bool]:
    """text_holds(), where most texts are ruled out before their words are taken apart: a word is part of a folded text."""
    if isinstance(predicate, Prefix | Substring):
        return lambda text: text_holds(predicate, text)
    parts = tuple(predicate.words)
    enough = any if isinstance(predicate, Words) and predicate.any else all

    def test(text: str) -> bool:
        folded = text.casefold()
        return enough(part in folded for part in parts) and text_holds(predicate, text)

    return test


def _values_count(bounds: Range, column: Column) -> Mask:
    low, high = integer_bounds(bounds.gt, bounds.gte, bounds.lt, bounds.lte)
    cells = column.cells
    found = np.full(len(cells), low <= 1 <= high)
    if cells.may_have(Kind.NULL):
        found[cells.of(Kind.NULL)] = low <= 0 <= high
    if cells.may_have(Kind.LIST):
        lists = cells.of(Kind.LIST)
        lengths = cells.values[lists]
        found[lists] = (lengths >= low) & (lengths <= high)
    return _with_missing(column, found, if_missing=low <= 0 <= high)


def _is_empty(column: Column) -> Mask:
    cells = column.cells
    found = cells.of(Kind.NULL)
    if cells.may_have(Kind.LIST):
        found = found | (cells.of(Kind.LIST) & (cells.values == 0))
    return _with_missing(column, found, if_missing=True)


def _is_null(column: Column) -> Mask:
    rows = column.of(Kind.NULL)
    if column.elements.may_have(Kind.NULL):
        rows[column.element_rows[column.elements.of(Kind.NULL)]] = True
    return rows


def _with_missing(column: Column, found: Mask, *, if_missing: bool) -> Mask:
    if not if_missing and column.cells.may_have(Kind.MISSING):
        found &= ~column.cells.of(Kind.MISSING)
    return column.spread(found, missing=if_missing)


def _decided(yes: Mask, doubt: Mask | None) -> tuple[Mask, Mask | None]:
    """The same with nothing set in both."""
    doubt = None if doubt is None else _some(doubt)
    return (yes, None) if doubt is None else (yes & ~doubt, doubt)


def _some(mask: Mask) -> Mask | None:
    return mask if mask.any() else None
