"""Filters: their grammar is checked, their evaluation is not there yet.

refuse_filter()   400 for what is no filter, 501 for one that would have to be evaluated, nothing for an empty one

Invariant: a misspelt filter is never taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from service.answers import decode_any
from service.errors import MalformedError, OutOfRangeError, UnsupportedError
from service.names import point_id

_CLAUSES = ("must", "should", "must_not")
_PREDICATES = frozenset(
    {
        "match",
        "range",
        "geo_bounding_box",
        "geo_radius",
        "geo_polygon",
        "values_count",
        "is_empty",
        "is_null",
    }
)
_MATCHES = frozenset({"value", "any", "except", "text", "text_any", "phrase", "prefix", "substring"})
_BOUNDS = frozenset({"lt", "gt", "lte", "gte"})
_GEO = {
    "geo_bounding_box": frozenset({"top_left", "bottom_right"}),
    "geo_radius": frozenset({"center", "radius"}),
    "geo_polygon": frozenset({"exterior", "interiors"}),
}


def refuse_filter(raw: Raw, *, path: str) -> None:
    """Raises MalformedError with the path of what is wrong, OutOfRangeError, or UnsupportedError for a real filter."""
    if bytes(raw)[:1] == b"n":
        return
    if check_filter(decode_any(raw, path=path), path):
        raise UnsupportedError("filters", "Leave the filter out.")


def check_filter(value: Any, path: str) -> bool:
    """True where the filter restricts anything; False for an empty one. Raises MalformedError, OutOfRangeError."""
    members = _object(value, path, {*_CLAUSES, "min_should"})
    restricts = False
    for clause in _CLAUSES:
        conditions = members.get(clause)
        if conditions is None:
            continue
        restricts |= _check_conditions(conditions, f"{path}.{clause}")
    if members.get("min_should") is not None:
        inner = _object(members["min_should"], f"{path}.min_should", {"conditions", "min_count"})
        count = inner.get("min_count")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise MalformedError(f"{path}.min_should.min_count is {count!r}; it must be a positive integer.")
        if count == 0:
            raise OutOfRangeError(f"{path}.min_should.min_count is 0; it must be at least 1.")
        _check_conditions(inner.get("conditions", []), f"{path}.min_should.conditions")
        restricts = True
    return restricts


def _check_conditions(value: Any, path: str) -> bool:
    if isinstance(value, list):
        for position, condition in enumerate(value):
            _check_condition(condition, f"{path}[{position}]")
        return bool(value)
    _check_condition(value, path)
    return True


def _check_condition(value: Any, path: str) -> None:
    members = _object(value, path, None)
    if "key" in members:
        _check_field(members, path)
        return
    for name, check in _CONDITIONS.items():
        if name in members:
            _object(value, path, {name})
            check(members[name], f"{path}.{name}")
            return
    if not members:
        raise MalformedError(f"{path} is an empty condition. A condition has a key and a predicate, such as match.")
    check_filter(members, path)


def _check_field(members: dict[str, Any], path: str) -> None:
    _object(members, path, {"key", *_PREDICATES})
    _string(members["key"], f"{path}.key")
    given = {name: value for name, value in members.items() if name != "key" and value is not None}
    if not given:
        raise MalformedError(f"{path} has a key and no predicate. Add match, range, values_count, is_empty or is_null.")
    for name, value in given.items():
        where = f"{path}.{name}"
        if name == "match":
            if len(_object(value, where, _MATCHES)) != 1:
                raise MalformedError(f"{where} needs exactly one of {', '.join(sorted(_MATCHES))}.")
        elif name in {"range", "values_count"}:
            _object(value, where, _BOUNDS)
        elif name in _GEO:
            _object(value, where, _GEO[name])
        elif not isinstance(value, bool):
            raise MalformedError(f"{where} is {value!r}; it must be true or false.")


def _check_ids(value: Any, path: str) -> None:
    if not isinstance(value, list):
        raise MalformedError(f"{path} is no list of ids.")
    for element in value:
        point_id(element)


def _check_key(value: Any, path: str) -> None:
    _string(_object(value, path, {"key"}).get("key"), f"{path}.key")


def _check_nested(value: Any, path: str) -> None:
    inner = _object(value, path, {"key", "filter"})
    _string(inner.get("key"), f"{path}.key")
    check_filter(inner.get("filter"), f"{path}.filter")


def _check_slice(value: Any, path: str) -> None:
    _object(value, path, {"total", "index"})


def _string(value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise MalformedError(f"{path} is {value!r}; it must be a string.")


_CONDITIONS: dict[str, Callable[[Any, str], None]] = {
    "has_id": _check_ids,
    "has_vector": _string,
    "is_empty": _check_key,
    "is_null": _check_key,
    "nested": _check_nested,
    "slice": _check_slice,
}


def _object(value: Any, path: str, allowed: frozenset[str] | set[str] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedError(f"{path} is {type(value).__name__}, a JSON object is needed there.")
    if allowed is not None:
        for name in value:
            if name not in allowed:
                raise MalformedError(f"Unknown member {name!r} at {path}. Allowed are {', '.join(sorted(allowed))}.")
    return value
