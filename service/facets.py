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

from service.field_values import ValuesReader, having, positions_of
from service.filters import Filter, parse_filter
from service.points.view import PointsView
from service.query import in_range
from service.settings import Settings
from service.slips import OF_LISTS, decode_known

_NULL = Raw(b"null")
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

    value: bool | int | str
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
    """Most points first, then by value; a point counts once for each of its values."""
    counts: Counter[tuple[int, Any]] = Counter()
    for values in asked.reader.at(view, positions_of(view, having(asked.filter, asked.key))):
        # True is 1 to a dict, so the type is part of the key.
        counts.update({(_KINDS.index(type(value)), value) for value in values if type(value) in _KINDS})
    most = heapq.nsmallest(asked.limit, counts.items(), key=lambda item: (-item[1], item[0]))
    return [FacetHit(value, count) for (_, value), count in most]
