"""Facets: how many points have each value of a field.

parse_facet()    JSON body -> Facet
facet()          the most frequent values, always exact
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from index.columns.reads import value_counts
from service.field_values import ValuesReader, as_scalar, having, places_of
from service.filters import Filter, parse_filter
from service.points.view import PointsView
from service.query import in_range
from service.settings import Settings
from service.slips import OF_LISTS, decode_known

_NULL = Raw(b"null")
FacetValue = bool | int | str
_KINDS = (bool, int, str)
"""Types of values that are counted, in the order that they have where counts are equal."""


class _FacetBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    key: str
    limit: int | None = None
    filter: Raw = _NULL
    exact: bool | None = None
    shard_key: Raw = _NULL


class FacetHit(msgspec.Struct, frozen=True):
    """A value and the number of points that have it."""

    value: FacetValue
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """What is asked for."""

    key: str
    reader: ValuesReader
    filter: Filter | None
    limit: int


def parse_facet(raw: bytes, settings: Settings) -> Facet:
    """Raises MalformedError, OutOfRangeError."""
    body = decode_known(raw, _FacetBody, OF_LISTS)
    return Facet(
        key=body.key,
        reader=ValuesReader(body.key, path="$.key"),
        filter=parse_filter(body.filter, path="$.filter"),
        limit=in_range(10 if body.limit is None else body.limit, "limit", low=1, high=settings.query_limit_max),
    )


def facet(view: PointsView, asked: Facet) -> list[FacetHit]:
    """Most points first, then by value; a point counts once for each of its values, and 42.0 is 42."""
    places = places_of(view, asked.reader, having(asked.filter, asked.key))
    counts: Counter[tuple[int, Any]] = Counter()
    for values in asked.reader.at(view, places.positions):
        # True is 1 to a dict, so the type is part of the key.
        counts.update({_tagged(value) for each in values if (value := as_scalar(each)) is not None})
    if places.rows is not None and view.index is not None and asked.reader.names is not None:
        read = asked.reader.of_rows(view)
        for value, count in value_counts(view.index.columns, asked.reader.names, places.rows, read):
            counts[_tagged(value)] += count
    most = heapq.nsmallest(asked.limit, counts.items(), key=lambda item: (-item[1], item[0]))
    return [FacetHit(value, count) for (_, value), count in most]


def _tagged(value: FacetValue) -> tuple[int, Any]:
    return _KINDS.index(type(value)), value
