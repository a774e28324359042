"""Qdrant's filter grammar: JSON -> a tree (tree.py), or what is wrong and where.

parse_filter()    a member of a body -> Filter, None where nothing restricts
parse_decoded()   the same of decoded JSON; an empty filter is a Filter too

Invariant: a misspelt filter is never taken for an empty one. Every error names the path of the wrong member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw

from index.columns.kinds import Scalar
from index.columns.times import parse_time
from service.answers import decode_any
from service.errors import MalformedError, OutOfRangeError
from service.filters.geo_grammar import GEO_PREDICATES
from service.filters.members import integer, object_of, string
from service.filters.tree import (
    Condition,
    Except,
    Field,
    Filter,
    HasId,
    HasVector,
    IsEmpty,
    IsNull,
    Match,
    Nested,
    Phrase,
    Predicate,
    Prefix,
    Range,
    Slice,
    Substring,
    TimeRange,
    ValuesCount,
    Words,
)
from service.filters.words import words_of
from service.names import point_id
from service.payload_paths import ALL, Path, parse_path

DEPTH_MAX = 32
"""Filters within filters: more than anyone writes, and far less than what ends a recursion."""
CONDITIONS_MAX = 10_000

_CLAUSES = ("must", "should", "must_not")
_BOUNDS = ("gt", "gte", "lt", "lte")
_encoder = msgspec.json.Encoder(order="sorted")


def parse_filter(raw: Raw | None, *, path: str) -> Filter | None:
    """A filter as it came; None where it is absent, null or restricts nothing.

    path: where it stood in the body. Raises MalformedError (400), OutOfRangeError (422).
    """
    if raw is None or bytes(raw)[:1] in (b"n", b""):
        return None
    parsed = parse_decoded(decode_any(raw, path=path), path)
    return parsed if parsed.restricts else None


def parse_decoded(value: Any, path: str, *, depth: int = 0) -> Filter:
    """Decoded JSON as a filter. depth: how many filters this one is inside of. Raises as parse_filter()."""
    members = object_of(value, path, (*_CLAUSES, "min_should"))
    if depth > DEPTH_MAX:
        raise MalformedError(f"{path} is a filter inside {DEPTH_MAX} others. Write it flat.")
    clauses = {
        clause: _conditions(members[clause], f"{path}.{clause}", depth)
        for clause in _CLAUSES
        if members.get(clause) is not None
    }
    min_should, min_count = None, 1
    if members.get("min_should") is not None:
        where = f"{path}.min_should"
        inner = object_of(members["min_should"], where, ("conditions", "min_count"))
        min_count = integer(inner.get("min_count"), f"{where}.min_count")
        if min_count < 1:
            error = MalformedError if min_count < 0 else OutOfRangeError
            raise error(f"{where}.min_count is {min_count}; it must be at least 1.")
        given = inner.get("conditions")
        min_should = _conditions([] if given is None else given, f"{where}.conditions", depth)
    return Filter(_encoder.encode(value), **clauses, min_should=min_should, min_count=min_count)


def _conditions(value: Any, path: str, depth: int) -> tuple[Condition, ...]:
    if not isinstance(value, list):
        return (_condition(value, path, depth),)
    if len(value) > CONDITIONS_MAX:
        raise MalformedError(
            f"{path} has {len(value):,} conditions, {CONDITIONS_MAX:,} are allowed. One `any` or `has_id` holds many values."
        )
    return tuple(_condition(each, f"{path}[{at}]", depth) for at, each in enumerate(value))


def _condition(value: Any, path: str, depth: int) -> Condition:
    members = object_of(value, path, None)
    if "key" in members:
        return _field(members, path)
    for name, parse in _CONDITIONS.items():
        if name in members:
            object_of(value, path, (name,))
            return parse(members[name], f"{path}.{name}")
    if "nested" in members:
        object_of(value, path, ("nested",))
        inner = object_of(members["nested"], f"{path}.nested", ("key", "filter"))
        key = _path(inner.get("key"), f"{path}.nested.key")
        # `a` and `a[]` are the same array.
        key = key[:-1] if key[-1] is ALL else key
        return Nested(key, parse_decoded(inner.get("filter"), f"{path}.nested.filter", depth=depth + 1))
    if not members:
        raise MalformedError(f"{path} is an empty condition. A condition has a key and a predicate, such as match.")
    return parse_decoded(members, path, depth=depth + 1)


def _path(value: Any, path: str) -> Path:
    return parse_path(string(value, path), path=path)


# --- conditions on a field --------------------------------------------------------------------------------------


def _field(members: dict[str, Any], path: str) -> Field:
    object_of(members, path, ("key", *_PREDICATES))
    key = _path(members["key"], f"{path}.key")
    given = [name for name in members if name != "key" and members[name] is not None]
    if not given:
        raise MalformedError(f"{path} has a key and no predicate. Add match, range, values_count, is_empty or is_null.")
    if len(given) > 1:
        raise MalformedError(
            f"{path} has {' and '.join(given)}; a condition has one predicate. Make a condition of each."
        )
    (name,) = given
    return Field(key, _PREDICATES[name](members[name], f"{path}.{name}"))


def _match(value: Any, path: str) -> Predicate:
    members = object_of(value, path, tuple(_MATCHES))
    given = [name for name in members if members[name] is not None]
    if len(given) != 1:
        raise MalformedError(f"{path} needs exactly one of {', '.join(sorted(_MATCHES))}.")
    (name,) = given
    return _MATCHES[name](members[name], f"{path}.{name}")


def _scalar(value: Any, path: str) -> Scalar:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool | int | str):
        return value
    advice = " For other numbers use range." if isinstance(value, float) else ""
    raise MalformedError(f"{path} is {value!r}; it must be a string, an integer or a boolean.{advice}")


def _scalars(value: Any, path: str) -> tuple[Scalar, ...]:
    if not isinstance(value, list):
        raise MalformedError(f"{path} is {value!r}; it must be a list of strings or integers.")
    return tuple(_scalar(each, f"{path}[{at}]") for at, each in enumerate(value))


def _range(value: Any, path: str) -> Predicate:
    members = object_of(value, path, _BOUNDS)
    given = {name: bound for name, bound in members.items() if bound is not None}
    texts = [name for name, bound in given.items() if isinstance(bound, str)]
    if texts:
        times = {name: _time(bound, f"{path}.{name}") for name, bound in given.items()}
        return TimeRange(**times)
    return Range(**{name: _number(bound, f"{path}.{name}") for name, bound in given.items()})


def _time(value: Any, path: str) -> int:
    if not isinstance(value, str):
        raise MalformedError(f"{path} is {value!r} beside a date-time. Give all bounds of a range as date-times.")
    moment = parse_time(value)
    if moment is None:
        raise MalformedError(
            f"{path} is {value!r}, which is no date-time. Write 2023-12-31, 2023-12-31T23:59:59 or 2023-12-31T23:59:59+01:00."
        )
    return moment


def _number(value: Any, path: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedError(f"{path} is {value!r}; it must be a number or a date-time.")
    return value


def _values_count(value: Any, path: str) -> Predicate:
    members = object_of(value, path, _BOUNDS)
    given = {name: integer(bound, f"{path}.{name}") for name, bound in members.items() if bound is not None}
    return ValuesCount(Range(**given))


def _flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise MalformedError(f"{path} is {value!r}; it must be true or false.")
    return value


_MATCHES: dict[str, Callable[[Any, str], Predicate]] = {
    "value": lambda value, path: Match((_scalar(value, path),)),
    "any": lambda value, path: Match(_scalars(value, path)),
    "except": lambda value, path: Except(_scalars(value, path)),
    "text": lambda value, path: Words(frozenset(words_of(string(value, path))), any=False),
    "text_any": lambda value, path: Words(frozenset(words_of(string(value, path))), any=True),
    "phrase": lambda value, path: Phrase(tuple(words_of(string(value, path)))),
    "prefix": lambda value, path: Prefix(string(value, path)),
    "substring": lambda value, path: Substring(string(value, path)),
}
_PREDICATES: dict[str, Callable[[Any, str], Predicate]] = {
    "match": _match,
    "range": _range,
    "values_count": _values_count,
    "is_empty": lambda value, path: IsEmpty(_flag(value, path)),
    "is_null": lambda value, path: IsNull(_flag(value, path)),
    **GEO_PREDICATES,
}

# --- conditions on the point ------------------------------------------------------------------------------------


def _has_id(value: Any, path: str) -> Condition:
    if not isinstance(value, list):
        raise MalformedError(f"{path} is no list of ids.")
    return HasId(frozenset(_ids(value, path)))


def _ids(values: list[Any], path: str) -> Iterable[int | str]:
    for at, value in enumerate(values):
        try:
            yield point_id(value)
        except MalformedError as error:
            raise MalformedError(f"{path}[{at}]: {error}") from None


def _key_of(value: Any, path: str) -> Path:
    return _path(object_of(value, path, ("key",)).get("key"), f"{path}.key")


def _slice(value: Any, path: str) -> Condition:
    members = object_of(value, path, ("total", "index"))
    total = integer(members.get("total"), f"{path}.total")
    index = integer(members.get("index"), f"{path}.index")
    if total < 1 or not 0 <= index < total:
        error = MalformedError if min(total, index) < 0 else OutOfRangeError
        raise error(f"{path} has total {total} and index {index}; index goes from 0 to total - 1.")
    return Slice(total, index)


_CONDITIONS: dict[str, Callable[[Any, str], Condition]] = {
    "has_id": _has_id,
    "has_vector": lambda value, path: HasVector(string(value, path)),
    "is_empty": lambda value, path: Field(_key_of(value, path), IsEmpty(True)),  # noqa: FBT003
    "is_null": lambda value, path: Field(_key_of(value, path), IsNull(True)),  # noqa: FBT003
    "slice": _slice,
}
