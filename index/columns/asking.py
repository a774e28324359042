"""What can be asked of cells, each in a few passes over arrays: Cells -> bool mask.

equal_to()       one of some scalars: booleans, integers (or floats that are the same), strings
in_range()       numbers within bounds
in_strings()     strings that a table over the column's strings selects
has_value()      neither null nor nothing
rows_in_times()  rows with a date-time within bounds

Comparisons are exact: a bound is turned into one that the cells' own type holds; no cell is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.columns.column import Cells, Column, Mask, Strings
from index.columns.kinds import Kind, Scalar
from index.columns.times import NO_TIME

Number = int | float
_FEW = 8
"""Up to so many values are compared one after the other; more are looked up in a sorted list."""


def equal_to(cells: Cells, strings: Strings, wanted: Sequence[Scalar]) -> Mask:
    """Cells that are one of these scalars."""
    booleans = [int(value) for value in wanted if isinstance(value, bool)]
    integers = [value for value in wanted if isinstance(value, int) and not isinstance(value, bool)]
    found: Mask | None = None
    if booleans and cells.may_have(Kind.BOOL):
        found = cells.only(Kind.BOOL, _one_of(cells.values, booleans))
    if integers and cells.may_have(Kind.INT):
        found = _or(found, cells.only(Kind.INT, _one_of(cells.values, integers)))
    if integers and cells.may_have(Kind.FLOAT):
        same = [float(value) for value in integers if _is_float(value)]
        found = _or(found, cells.only(Kind.FLOAT, _one_of(cells.floats(), same)))
    if cells.may_have(Kind.STRING):
        codes = [strings.code_of(value) for value in wanted if isinstance(value, str)]
        found = _or(found, cells.only(Kind.STRING, _one_of(cells.values, [code for code in codes if code >= 0])))
    return np.zeros(len(cells), np.bool_) if found is None else found


def in_range(
    cells: Cells,
    *,
    gt: Number | None = None,
    gte: Number | None = None,
    lt: Number | None = None,
    lte: Number | None = None,
) -> Mask:
    """Cells that are numbers within the bounds; no bounds: all numbers."""
    found: Mask | None = None
    if cells.may_have(Kind.INT):
        low, high = integer_bounds(gt, gte, lt, lte)
        found = cells.only(Kind.INT, _between(cells.values, low, high))
    if cells.may_have(Kind.FLOAT):
        found = _or(found, cells.only(Kind.FLOAT, _floats_between(cells.floats(), gt, gte, lt, lte)))
    return np.zeros(len(cells), np.bool_) if found is None else found


def in_strings(cells: Cells, selected: Mask) -> Mask:
    """Cells that are strings which `selected` (strings,) has."""
    chosen = np.flatnonzero(selected)
    if not cells.may_have(Kind.STRING) or not len(chosen):
        return np.zeros(len(cells), np.bool_)
    if len(chosen) <= _FEW:
        return cells.only(Kind.STRING, _one_of(cells.values, chosen.tolist()))
    codes = cells.values
    if cells.tags is not None:
        codes = np.where(cells.tags == Kind.STRING, codes, 0)
    return cells.only(Kind.STRING, selected[codes])


def rows_in_times(column: Column, low: int, high: int) -> Mask:
    """(n,): rows with a string that is a date-time from low to high, in microseconds since 1970."""
    if column.times is not None:
        rows = np.zeros(column.n, np.bool_)
        values = column.times.values
        rows[column.times.rows[(values >= low) & (values <= high)]] = True
        return rows
    times = column.strings.times()
    selected = (times != NO_TIME) & (times >= low) & (times <= high)
    return column.where(lambda cells: in_strings(cells, selected))


def has_value(cells: Cells) -> Mask:
    """Cells with a value of their own: no null, no list (its elements are asked), nothing that is read from the JSON."""
    found = np.ones(len(cells), np.bool_)
    for kind in (Kind.MISSING, Kind.NULL, Kind.LIST, Kind.OTHER):
        if cells.may_have(kind):
            found &= ~cells.of(kind)
    return found


def integer_bounds(gt: Number | None, gte: Number | None, lt: Number | None, lte: Number | None) -> tuple[int, int]:
    """The least and the greatest integer of 64 bits within bounds; least above greatest where there is none."""
    low, high = -(2**63), 2**63 - 1
    if gt is not None:
        low = max(low, _whole(gt, math.floor) + 1)
    if gte is not None:
        low = max(low, _whole(gte, math.ceil))
    if lt is not None:
        high = min(high, _whole(lt, math.ceil) - 1)
    if lte is not None:
        high = min(high, _whole(lte, math.floor))
    return low, high


# --- inside -----------------------------------------------------------------------------------------------------


def _whole(bound: Number, rounding: Callable[[float], int]) -> int:
    if isinstance(bound, int):
        return bound
    return rounding(bound)


def _one_of(values: NDArray[Any], wanted: Sequence[int] | Sequence[float]) -> Mask:
    """Values that are among these; integers that the values' type does not hold are none of them."""
    if values.dtype.kind == "i":
        limits = np.iinfo(values.dtype)
        wanted = [value for value in wanted if limits.min <= value <= limits.max]
    if not wanted:
        return np.zeros(len(values), np.bool_)
    if len(wanted) > _FEW:
        return np.isin(values, np.array(wanted, values.dtype))
    found: Mask = values == values.dtype.type(wanted[0])
    for value in wanted[1:]:
        found |= values == values.dtype.type(value)
    return found


def _between(values: NDArray[Any], low: int, high: int) -> Mask:
    """Integers from low to high."""
    limits = np.iinfo(values.dtype)
    if low > high or low > limits.max or high < limits.min:
        return np.zeros(len(values), np.bool_)
    found: Mask | None = None
    if low > limits.min:
        found = values >= values.dtype.type(low)
    if high < limits.max:
        below = values <= values.dtype.type(high)
        found = below if found is None else found & below
    return np.ones(len(values), np.bool_) if found is None else found


def _floats_between(
    values: NDArray[np.float64], gt: Number | None, gte: Number | None, lt: Number | None, lte: Number | None
) -> Mask:
    found = np.ones(len(values), np.bool_)
    for bound, inclusive, above in ((gt, False, True), (gte, True, True), (lt, False, False), (lte, True, False)):
        if bound is None:
            continue
        limit, with_limit = _float_bound(bound, inclusive=inclusive, above=above)
        if above:
            found &= values >= limit if with_limit else values > limit
        else:
            found &= values <= limit if with_limit else values < limit
    return found


def _float_bound(bound: Number, *, inclusive: bool, above: bool) -> tuple[np.float64, bool]:
    """(limit, whether the limit itself is within): for floats the same bound. above: it bounds from below.

    An integer that no float is lies between two floats. It is rounded to one of them, which is within exactly where it
    lies on the inner side.
    """
    try:
        limit = float(bound)
    except OverflowError:
        limit = math.inf if bound > 0 else -math.inf
    if limit != bound:
        inclusive = limit > bound if above else limit < bound
    return np.float64(limit), inclusive


def _is_float(value: int) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def _or(one: Mask | None, other: Mask) -> Mask:
    return other if one is None else one | other
