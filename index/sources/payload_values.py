"""Values of Arrow columns as JSON values.

Arrow                             JSON
bool, integers (64 bits exact)    the same
floats                            numbers; NaN and infinities, which JSON cannot hold, become null
strings, dictionaries of them     strings;  UUIDs: hyphenated lower case
timestamps                        "2024-05-01T12:30:00.25Z": RFC 3339, always UTC; one without a zone is taken as UTC
dates, times of day               "2024-05-01", "12:30:00.25"
decimals                          numbers up to 15 digits of precision, which a double holds; strings beyond
lists, structs                    arrays, objects; maps with string keys: objects
nulls                             null
bytes, durations, intervals,      refused, naming the column: there is no JSON form that everybody would expect
unions, other maps

json_values() first casts a column to the Arrow type nearest to its JSON (timestamps to integers, for example), in one
vectorised step, and then changes only what Python objects still need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from index.errors import SourceError
from index.sources.json_scalars import json_clock, json_date, json_float, json_time

Change = Callable[[Any], Any]
# pyarrow's own annotations cannot say what a runtime test of a type has shown, so both stay open here.
ArrowArray = Any
ArrowType = Any

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DOUBLE_DIGITS = 15


def check_json_type(given: ArrowType, where: str) -> None:
    """Refuse a column type that has no JSON form; `where` names file and column."""
    _plan(given, where)


def json_values(column: ArrowArray, where: str) -> list[Any]:
    """One JSON-able value for each entry of an Arrow array."""
    target, change = _plan(column.type, where)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    values: list[Any] = (column if column.type == target else column.cast(target)).to_pylist()
    if change is None:
        return values
    return [None if value is None else change(value) for value in values]


def _plan(given: ArrowType, where: str) -> tuple[ArrowType, Change | None]:
    """(type to cast to, what to do with each Python value then or None) of a column type."""
    types = pa.types
    if isinstance(given, pa.BaseExtensionType):
        if given.extension_name == "arrow.uuid":
            return given.storage_type, _json_uuid
        return _plan(given.storage_type, where)
    if types.is_boolean(given) or types.is_integer(given) or types.is_null(given) or _is_text(given):
        return given, None
    if types.is_floating(given):
        return pa.float64(), json_float
    if types.is_decimal(given):
        return (pa.float64(), json_float) if given.precision <= _DOUBLE_DIGITS else (pa.string(), None)
    if types.is_timestamp(given):
        return pa.int64(), lambda value: json_time(value, _PER_SECOND[given.unit], where)
    if types.is_date32(given):
        return pa.int32(), lambda days: json_date(days, where)
    if types.is_date64(given):
        return pa.int64(), lambda value: json_date(value // 86_400_000, where)
    if types.is_time(given):
        whole = pa.int32() if types.is_time32(given) else pa.int64()
        return whole, lambda value: json_clock(value, _PER_SECOND[given.unit])
    if types.is_dictionary(given):
        return _plan(given.value_type, where)
    return _plan_nested(given, where)


def _plan_nested(given: ArrowType, where: str) -> tuple[ArrowType, Change | None]:
    types = pa.types
    if types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given):
        target, change = _plan(given.value_type, where)
        kept = given.list_size if types.is_fixed_size_list(given) else None
        nested = pa.list_(target, kept) if kept is not None else pa.list_(target)
        if types.is_large_list(given):
            nested = pa.large_list(target)
        return nested, None if change is None else _over_list(change)
    if types.is_struct(given):
        plans = {field.name: _plan(field.type, f"{where}, member {field.name!r}") for field in given}
        if len(plans) != given.num_fields:
            raise SourceError(f"{where} is a struct with two members of one name, which JSON cannot hold.")
        return pa.struct([(name, target) for name, (target, _) in plans.items()]), _over_struct(plans)
    if types.is_map(given) and _is_text(given.key_type):
        target, change = _plan(given.item_type, where)
        return pa.map_(given.key_type, target), _over_map(change)
    raise SourceError(
        f"{where} is {given}, which has no JSON form. Leave the column out, or store it as a string or number."
    )


def _is_text(given: ArrowType) -> bool:
    return bool(pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given))


def _json_uuid(value: bytes) -> str:
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _over_list(change: Change) -> Change:
    return lambda values: [None if value is None else change(value) for value in values]


def _over_struct(plans: dict[str, tuple[ArrowType, Change | None]]) -> Change | None:
    changes = {name: change for name, (_, change) in plans.items() if change is not None}
    if not changes:
        return None

    def changed(value: dict[str, Any]) -> dict[str, Any]:
        for name, change in changes.items():
            if value[name] is not None:
                value[name] = change(value[name])
        return value

    return changed


def _over_map(change: Change | None) -> Change:
    def changed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value if value is None or change is None else change(value) for key, value in pairs}

    return changed
