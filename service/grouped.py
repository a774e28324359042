"""Queries whose hits are put in groups by a field: the best groups, each with its best hits.

parse_grouped()   JSON body -> Grouped
grouped()         groups by their best hit; complete: as many groups and hits as there are

Each step searches only where something is missing: first among points with a value that is no group yet, until there are
groups enough; then among the members of groups that are not full. So a step costs what a filtered search costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from index.options import Metric
from service.answers import decode, encode
from service.errors import MalformedError, UnsupportedError
from service.field_values import ValuesReader, also, as_scalar, having
from service.filters import Filter
from service.hits import ScoredPoint, WorkDone, add_work, records, require_dim, require_finite, vector_of
from service.names import PointId
from service.points.view import PointsView
from service.query import Query, in_range, parse_query
from service.settings import Settings

GroupId = str | int
HITS_AT_ONCE = 64
"""Hits of one search, at least."""

_OWN = ("group_by", "group_size", "with_lookup")
_MORE = 4
"""So many times more hits, where a search brought no new group."""


class _GroupsBody(msgspec.Struct, kw_only=True):
    group_by: str
    group_size: int | None = None


class PointGroup(msgspec.Struct, frozen=True):
    """A value and the points that have it, best first."""

    id: GroupId
    hits: list[ScoredPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """query.limit groups of up to `size` hits."""

    query: Query
    key: str
    reader: ValuesReader
    size: int


@dataclass(frozen=True, slots=True)
class _Hit:
    id: PointId
    score: float
    position: int


@dataclass(slots=True)
class _Groups:
    """Groups under way; a point comes once."""

    size: int
    hits: dict[GroupId, list[_Hit]] = field(default_factory=dict)

    def take(self, hit: _Hit, ids: list[GroupId]) -> None:
        for id_ in ids:
            there = self.hits.setdefault(id_, [])
            if len(there) < self.size:
                there.append(hit)


def parse_grouped(raw: bytes, settings: Settings, *, path: str = "$") -> Grouped:
    """Raises MalformedError, OutOfRangeError, UnsupportedError naming the member."""
    members = decode(raw, dict[str, Raw], path=path)
    if bytes(members.get("with_lookup", Raw(b"null"))) != b"null":
        raise UnsupportedError("with_lookup", "Retrieve the points of the other collection by the groups' ids.")
    if bytes(members.get("offset", Raw(b"null"))) not in (b"null", b"0"):
        raise MalformedError(f"{path}.offset is not there for groups. Ask for more groups by limit.")
    own = decode(encode({name: members[name] for name in _OWN if name in members}), _GroupsBody, path=path)
    query = parse_query(
        encode({name: value for name, value in members.items() if name not in _OWN}), settings, path=path
    )
    if query.mmr is not None:
        raise UnsupportedError("mmr with groups", "Leave mmr out.")
    size = in_range(3 if own.group_size is None else own.group_size, "group_size", low=1, high=settings.query_limit_max)
    in_range(size * query.limit, "limit x group_size", low=1, high=settings.query_limit_max)
    return Grouped(query=query, key=own.group_by, reader=ValuesReader(own.group_by, path=f"{path}.group_by"), size=size)


def grouped(view: PointsView, asked: Grouped) -> tuple[list[PointGroup], WorkDone]:
    """Raises NotFoundError for an unknown id, MalformedError for another dimension."""
    query, work = asked.query, WorkDone()
    if query.vector is not None:
        require_dim(view, query.vector.shape[0])
    if query.vector is None and query.by_id is None:
        found = _in_id_order(view, asked)
    else:
        found = _nearest(view, asked, vector_of(view, query), work)
    chosen = list(found.items())[: query.limit]
    return _with_parts(view, query, chosen), work


# --- inside -----------------------------------------------------------------------------------------------------


def _group_ids(values: list[Any]) -> list[GroupId]:
    """The groups of a point. As in Qdrant a point with a value that can be no group's is in none; 42.0 is 42."""
    found: dict[GroupId, None] = {}
    for value in map(as_scalar, values):
        if value is None or isinstance(value, bool):
            return []
        found[value] = None
    return list(found)


def _in_id_order(view: PointsView, asked: Grouped) -> dict[GroupId, list[_Hit]]:
    groups = _Groups(asked.size)
    full = 0
    for ids, positions in view.in_order(having(asked.query.filter, asked.key)):
        for id_, position, values in zip(ids, positions.tolist(), asked.reader.at(view, positions), strict=True):
            for group in _group_ids(values):
                if group in groups.hits or len(groups.hits) < asked.query.limit:
                    groups.take(_Hit(id_, 1.0, position), [group])
                    full += len(groups.hits[group]) == asked.size
        # A group that was full before counts again: the sum is exact only when it is asked for.
        if full >= asked.query.limit and all(len(hits) == asked.size for hits in groups.hits.values()):
            break
    return groups.hits


def _nearest(
    view: PointsView, asked: Grouped, vector: NDArray[np.float32], work: WorkDone
) -> dict[GroupId, list[_Hit]]:
    best = _best_groups(view, asked, vector, work)
    unfilled = [id_ for id_, hits in best.items() if len(hits) < asked.size]
    if unfilled:
        members = also(having(asked.query.filter, asked.key), {"key": asked.key, "match": {"any": unfilled}})
        filled = _Groups(asked.size)
        k = max(HITS_AT_ONCE, len(unfilled) * asked.size)
        for hits, is_all in _deeper(view, asked, vector, members, k, work):
            filled = _Groups(asked.size)
            for hit, values in hits:
                filled.take(hit, [id_ for id_ in _group_ids(values) if id_ in best])
            if is_all or all(len(filled.hits.get(id_, ())) == asked.size for id_ in unfilled):
                break
        best |= {id_: filled.hits[id_] for id_ in unfilled if len(filled.hits.get(id_, ())) > len(best[id_])}
    # Of an approximate search a later step may find what an earlier one missed.
    sign = 1 if view.metric == Metric.L2 else -1
    return dict(sorted(best.items(), key=lambda group: sign * group[1][0].score))


def _best_groups(
    view: PointsView, asked: Grouped, vector: NDArray[np.float32], work: WorkDone
) -> dict[GroupId, list[_Hit]]:
    """The groups that are wanted, in their order, each with those of its hits that were seen on the way."""
    groups = _Groups(asked.size)
    wanted = having(asked.query.filter, asked.key)
    k = max(HITS_AT_ONCE, asked.query.limit * asked.size)
    while len(groups.hits) < asked.query.limit:
        rest = wanted
        if groups.hits:
            rest = also(wanted, {"key": asked.key, "match": {"except": list(groups.hits)}})
        before = len(groups.hits)
        is_all = True
        for hits, is_all in _deeper(view, asked, vector, rest, k, work):
            found = _Groups(asked.size)
            for hit, values in hits:
                found.take(hit, [id_ for id_ in _group_ids(values) if id_ not in groups.hits])
            groups.hits |= found.hits
            if is_all or len(groups.hits) > before:
                break
        if is_all:
            break
    return dict(list(groups.hits.items())[: asked.query.limit])


def _deeper(
    view: PointsView,
    asked: Grouped,
    vector: NDArray[np.float32],
    wanted: Filter,
    k: int,
    work: WorkDone,
) -> Iterator[tuple[list[tuple[_Hit, list[Any]]], bool]]:
    """(hits with their values, whether these are all), of ever more hits."""
    count = view.masks(wanted).count
    own = asked.query.by_id is not None
    while True:
        found = view.search(vector[None, :], min(k, count) + own, asked.query.options, wanted) if count else None
        if found is None:
            yield [], True
            return
        add_work(work, found.work)
        counted = int(found.counts[0])
        scores, positions = found.scores[0, :counted], found.positions[0, :counted]
        require_finite(scores)
        values = asked.reader.at(view, positions)
        hits = [
            (_Hit(id_, score, position), some)
            for id_, score, position, some in zip(
                found.ids[0, :counted].tolist(), scores.tolist(), positions.tolist(), values, strict=True
            )
            if not own or id_ != asked.query.by_id
        ]
        is_all = k >= count or counted < k
        yield hits, is_all
        if is_all:
            return
        k *= _MORE


def _with_parts(view: PointsView, query: Query, groups: list[tuple[GroupId, list[_Hit]]]) -> list[PointGroup]:
    flat = [hit for _, hits in groups for hit in hits]
    positions = np.array([hit.position for hit in flat], np.int64)
    some = records(view, [hit.id for hit in flat], positions, query.payload, with_vector=query.with_vector)
    points = iter(
        [
            ScoredPoint(record.id, hit.score, 0, record.payload, record.vector)
            for record, hit in zip(some, flat, strict=True)
        ]
    )
    return [PointGroup(id_, [next(points) for _ in hits]) for id_, hits in groups]
