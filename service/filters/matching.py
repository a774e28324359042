"""Whether one point passes a filter: the plain evaluation, which masks.py must agree with on every row.

matches()     a filter, a payload, an id -> bool
values_at()   what lies at a path of a payload

Semantics are those of Qdrant's local mode (qdrant-client 1.20), except: an integer and an integral float are equal, range
bounds are compared exactly, words are case-folded. An array's elements are its values, one level deep; null is a value
that equals nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from index.columns.kinds import Scalar
from index.columns.times import parse_time
from service.filters.geometry import is_within
from service.filters.slices import slice_of
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
    Substring,
    TextMatch,
    TimeRange,
    ValuesCount,
    Words,
)
from service.filters.words import has_phrase, words_of
from service.payload_paths import ALL, Path

PointId = int | str


def matches(filter: Filter, payload: dict[str, Any] | None, *, id: PointId | None, has_vector: bool) -> bool:
    """Whether a point passes. payload: decoded JSON; id: None for what is no point (an element of an array)."""

    def holds(condition: Condition) -> bool:
        if isinstance(condition, Field):
            return field_holds(condition, payload or {})
        if isinstance(condition, Filter):
            return matches(condition, payload, id=id, has_vector=has_vector)
        if isinstance(condition, HasId):
            return id in condition.ids
        if isinstance(condition, HasVector):
            return has_vector and condition.name == ""
        if isinstance(condition, Nested):
            inner = condition.filter
            return any(matches(inner, each, id=None, has_vector=False) for each in elements_at(payload, condition.path))
        return id is not None and slice_of(id, condition.total) == condition.index

    if not all(map(holds, filter.must)) or any(map(holds, filter.must_not)):
        return False
    if filter.should and not any(map(holds, filter.should)):
        return False
    return filter.min_should is None or sum(map(holds, filter.min_should)) >= filter.min_count


def field_holds(field: Field, payload: dict[str, Any]) -> bool:
    """Whether a predicate holds of the values at its path."""
    predicate, found = field.predicate, list(values_at(payload, field.path))
    if isinstance(predicate, ValuesCount):
        return any(within(predicate.bounds, count) for count in _counts(found))
    if isinstance(predicate, IsEmpty):
        return all(value is None or value == [] for value in found) == predicate.wanted
    if isinstance(predicate, IsNull):
        return any(value is None or (isinstance(value, list) and None in value) for value in found) == predicate.wanted
    for value in found:
        if isinstance(value, list):
            if any(value_holds(predicate, element) for element in value):
                return True
        elif value_holds(predicate, value):
            return True
    return False


def values_at(payload: Any, path: Path) -> Iterator[Any]:
    """The values a path leads to, arrays as they are: none, one, or several through `[]`."""
    if not path:
        yield payload
        return
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        if isinstance(payload, dict) and step in payload:
            yield from values_at(payload[step], rest)
    elif isinstance(payload, list):
        if step is ALL:
            for element in payload:
                yield from values_at(element, rest)
        elif isinstance(step, int) and step < len(payload):
            yield from values_at(payload[step], rest)


def elements_at(payload: Any, path: Path) -> Iterator[dict[str, Any]]:
    """The objects in arrays at a path."""
    for value in values_at(payload, path):
        if isinstance(value, list):
            yield from (element for element in value if isinstance(element, dict))


def value_holds(predicate: Predicate, value: Any) -> bool:
    """Whether one value, not an array's whole, is what a predicate asks for."""
    if isinstance(predicate, Match):
        return any(same(value, wanted) for wanted in predicate.values)
    if isinstance(predicate, Except):
        return value is not None and not any(same(value, unwanted) for unwanted in predicate.values)
    if isinstance(predicate, Range):
        return _is_number(value) and within(predicate, value)
    if isinstance(predicate, TimeRange):
        moment = parse_time(value) if isinstance(value, str) else None
        return moment is not None and within(predicate, moment)
    if isinstance(predicate, Words | Phrase | Prefix | Substring):
        return isinstance(value, str) and text_holds(predicate, value)
    assert not isinstance(predicate, ValuesCount | IsEmpty | IsNull), "these ask of arrays as a whole"
    return is_within(predicate, value)


def text_holds(predicate: TextMatch, text: str) -> bool:
    """Whether a text has what is asked of texts."""
    if isinstance(predicate, Prefix):
        return text.startswith(predicate.text)
    if isinstance(predicate, Substring):
        return predicate.text in text
    words = words_of(text)
    if isinstance(predicate, Phrase):
        return has_phrase(words, predicate.words)
    if predicate.any:
        return not predicate.words.isdisjoint(words)
    return bool(predicate.words) and predicate.words.issubset(words)


def same(value: Any, wanted: Scalar) -> bool:
    """Equality of JSON scalars: 42 is 42.0, but neither "42" nor true."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, str) or isinstance(wanted, str):
        return isinstance(value, str) and value == wanted
    return isinstance(value, int | float) and value == wanted


def within(bounds: Range | TimeRange, value: float) -> bool:
    """Whether a number keeps all bounds; Python compares integers and floats exactly."""
    return (
        (bounds.gt is None or value > bounds.gt)
        and (bounds.gte is None or value >= bounds.gte)
        and (bounds.lt is None or value < bounds.lt)
        and (bounds.lte is None or value <= bounds.lte)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _counts(found: list[Any]) -> list[int]:
    """How many values each value at a path is; nothing but nulls, and nothing at all, are one 0."""
    if all(value is None for value in found):
        return [0]
    return [0 if value is None else len(value) if isinstance(value, list) else 1 for value in found]
