"""Queries to points: runs in a thread of the CPU pool, over one view of a collection's points.

answer_queries()  a batch of queries -> points as JSON; queries that ask for the same share one search
answer_raw()      the octet-stream form: arrays in, arrays out; encode_raw() makes the body of its parts
retrieve() scroll() records()

Invariant: every score that leaves was looked at: not finite is an error of ours, never null in an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from index.options import SearchOptions
from service.answers import encode
from service.diverse import diverse
from service.errors import MalformedError, NotFoundError, UnsupportedError
from service.filters import Filter
from service.names import PointId
from service.points.merge import Found
from service.points.view import PointsView
from service.profile import COUNTERS, profile_of
from service.query import Query
from service.selection import PayloadSelection

Numbers = list[float] | list[int]
Nothing = dict[str, float]
"""What stands in the place of a vector that a point does not have: {}."""


class ScoredPoint(msgspec.Struct, frozen=True):
    """A hit."""

    id: PointId
    score: float
    version: int = 0
    payload: Raw | UnsetType = UNSET
    vector: Numbers | Nothing | UnsetType = UNSET


class Record(msgspec.Struct, frozen=True):
    """A stored point. order_value: what a scroll by values puts it in its place for."""

    id: PointId
    payload: Raw | UnsetType = UNSET
    vector: Numbers | Nothing | UnsetType = UNSET
    order_value: int | float | UnsetType = UNSET


@dataclass(slots=True)
class WorkDone:
    """What a search did, summed over its queries; microseconds by stage."""

    rows_scored: int = 0
    hops: int = 0
    candidates: int = 0
    rows_reranked: int = 0
    pages_read: int = 0
    bytes_read: int = 0
    microseconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Answers:
    """points[i] answers query i; profiles[i] where it asked for one."""

    points: list[list[ScoredPoint]]
    profiles: list[dict[str, Any] | None]
    work: WorkDone


def answer_queries(view: PointsView, queries: Sequence[Query]) -> Answers:
    """Points of each query. Raises NotFoundError for an unknown id, MalformedError for another dimension."""
    answers = Answers([[] for _ in queries], [None for _ in queries], WorkDone())
    groups: dict[tuple[int, SearchOptions, Filter | None], list[int]] = {}
    for position, query in enumerate(queries):
        if query.vector is not None:
            require_dim(view, query.vector.shape[0])
        if query.vector is None and query.by_id is None:
            answers.points[position] = _in_id_order(view, query)
            continue
        groups.setdefault((_hits_needed(query), query.options, query.filter), []).append(position)
    for (k, options, wanted), positions in groups.items():
        vectors = np.stack([vector_of(view, queries[position]) for position in positions])
        hits = view.search(vectors, k, options, wanted)
        for place, position in enumerate(positions):
            answers.points[position] = _points(view, hits, place, queries[position], vectors[place])
            if queries[position].profile:
                answers.profiles[position] = profile_of(view, hits.work, place, k=k, options=options)
        add_work(answers.work, hits.work)
    return answers


def _hits_needed(query: Query) -> int:
    """How many hits a query's answer is made of."""
    if query.mmr is not None:
        return query.mmr.candidates + (query.by_id is not None)
    # A query by id finds that id first; one more row makes up for it.
    return query.offset + query.limit + (query.by_id is not None)


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """ids uint64 [m, k], scores float32 [m, k], counts int64 [m] of some raw queries; entries past a count are 0."""

    ids: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    work: WorkDone


def answer_raw(view: PointsView, vectors: np.ndarray, *, k: int, offset: int, options: SearchOptions) -> RawAnswer:
    """Hits of queries float32 [m, dim] without an object for each number. Raises UnsupportedError for string ids."""
    work = WorkDone()
    hits = view.search(vectors, offset + k, options)
    if hits.ids.dtype == object:
        raise UnsupportedError("octet-stream answers of a collection with string ids", "Send the query as JSON.")
    ids, scores = hits.ids[:, offset:], hits.scores[:, offset:]
    counts = np.clip(hits.counts - offset, 0, ids.shape[1])
    past = np.arange(ids.shape[1]) >= counts[:, None]
    if past.any():
        ids, scores = np.where(past, np.uint64(0), ids), np.where(past, np.float32(0), scores)
    require_finite(scores)
    add_work(work, hits.work)
    return RawAnswer(ids.astype("<u8", copy=False), scores.astype("<f4", copy=False), counts, work)


def encode_raw(parts: Sequence[RawAnswer]) -> tuple[bytes, WorkDone]:
    """The body: header line, ids u64 [n, k], scores f32 [n, k]; and the work of all parts."""
    counts = [count for part in parts for count in part.counts.tolist()]
    # Parts of one request may have found different numbers of hits.
    width = max(part.ids.shape[1] for part in parts)
    parts = [
        part
        if part.ids.shape[1] == width
        else replace(part, ids=_widened(part.ids, width), scores=_widened(part.scores, width))
        for part in parts
    ]
    shape = [len(counts), width]
    header = encode({"shape": shape, "dtypes": {"ids": "<u8", "scores": "<f4"}, "counts": counts})
    # Blanks before the newline align the ids to 8 bytes, so that clients read both arrays in place.
    header += b" " * (-(len(header) + 1) % 8) + b"\n"
    work = WorkDone()
    for part in parts:
        add_work(work, part.work)
    arrays = [*(part.ids.tobytes() for part in parts), *(part.scores.tobytes() for part in parts)]
    return b"".join([header, *arrays]), work


def _widened(array: np.ndarray, width: int) -> np.ndarray:
    wide = np.zeros((len(array), width), array.dtype)
    wide[:, : array.shape[1]] = array
    return wide


def retrieve(
    view: PointsView, ids: Sequence[PointId], selection: PayloadSelection, *, with_vector: bool
) -> list[Record]:
    """Stored points in the order of ids; unknown ids are left out, repeated ones come once."""
    unique = list(dict.fromkeys(ids))
    positions = view.positions_of(unique)
    found = positions >= 0
    known = [id_ for id_, there in zip(unique, found.tolist(), strict=True) if there]
    return records(view, known, positions[found], selection, with_vector=with_vector)


def scroll(
    view: PointsView,
    *,
    start: PointId | None,
    limit: int,
    selection: PayloadSelection,
    with_vector: bool,
    wanted: Filter | None = None,
) -> tuple[list[Record], PointId | None]:
    """Points that match, ascending by id from start on, and the id that the next page starts with (None: that was all)."""
    ids, positions = ids_in_order(view, start, limit + 1, wanted)
    following = ids[limit] if len(ids) > limit else None
    return records(view, ids[:limit], positions[:limit], selection, with_vector=with_vector), following


def ids_in_order(
    view: PointsView, start: PointId | None, limit: int, wanted: Filter | None = None
) -> tuple[list[PointId], np.ndarray]:
    """The first `limit` ids that match, ascending from start (included), and their positions."""
    ids: list[PointId] = []
    positions: list[np.ndarray] = [np.zeros(0, np.int64)]
    for some, at in view.in_order(wanted, start=start, most=limit):
        ids += some
        positions.append(at)
        if len(ids) >= limit:
            break
    return ids[:limit], np.concatenate(positions)[:limit]


def require_dim(view: PointsView, dim: int) -> None:
    """Raises MalformedError for a vector of another dimension."""
    if dim != view.dim:
        raise MalformedError(
            f"Vector dimension error: expected dim: {view.dim}, got {dim}. Was it made by another encoder?"
        )


def vector_of(view: PointsView, query: Query) -> np.ndarray:
    """Float32 [dim] to search with. Raises NotFoundError, MalformedError for a point that has none."""
    if query.vector is not None:
        return query.vector
    assert query.by_id is not None, "in id order needs no vector"
    position = view.positions_of([query.by_id])
    if position[0] < 0:
        raise NotFoundError(f"No point with id {query.by_id} found. Query by an id that is stored, or by a vector.")
    (vector,) = view.vectors_of(position)
    if vector is None:
        raise MalformedError(f"Point {query.by_id} has no vector to search with. Query by another id, or by a vector.")
    return vector.astype(np.float32)


def _points(view: PointsView, hits: Found, place: int, query: Query, vector: np.ndarray) -> list[ScoredPoint]:
    found = int(hits.counts[place])
    ids, scores, positions = hits.ids[place, :found], hits.scores[place, :found], hits.positions[place, :found]
    require_finite(scores)
    if query.by_id is not None:
        others = np.array([id_ != query.by_id for id_ in ids.tolist()], dtype=bool)
        ids, scores, positions = ids[others], scores[others], positions[others]
    if query.mmr is not None:
        chosen = diverse(view, positions[: query.mmr.candidates], vector, query.mmr, most=query.offset + query.limit)
        ids, scores, positions = ids[chosen], scores[chosen], positions[chosen]
    window = slice(query.offset, query.offset + query.limit)
    ids, scores, positions = ids[window], scores[window], positions[window]
    payloads, vectors = _parts(view, positions, query.payload, with_vector=query.with_vector)
    if payloads is None and vectors is None:
        return [ScoredPoint(id_, score) for id_, score in zip(ids.tolist(), scores.tolist(), strict=True)]
    return [
        ScoredPoint(id_, score, 0, payloads[i] if payloads is not None else UNSET, vectors[i] if vectors else UNSET)
        for i, (id_, score) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True))
    ]


def _in_id_order(view: PointsView, query: Query) -> list[ScoredPoint]:
    ids, positions = ids_in_order(view, None, query.offset + query.limit, query.filter)
    some = records(view, ids[query.offset :], positions[query.offset :], query.payload, with_vector=query.with_vector)
    return [ScoredPoint(record.id, 1.0, 0, record.payload, record.vector) for record in some]


def records(
    view: PointsView,
    ids: Sequence[PointId],
    positions: np.ndarray,
    selection: PayloadSelection,
    *,
    with_vector: bool,
) -> list[Record]:
    """Points at positions, with what was selected of them."""
    payloads, vectors = _parts(view, positions, selection, with_vector=with_vector)
    return [
        Record(id_, payloads[i] if payloads is not None else UNSET, vectors[i] if vectors else UNSET)
        for i, id_ in enumerate(ids)
    ]


def _parts(
    view: PointsView, positions: np.ndarray, selection: PayloadSelection, *, with_vector: bool
) -> tuple[list[Raw] | None, list[Numbers | Nothing] | None]:
    payloads: list[Raw] | None = None
    vectors: list[Numbers | Nothing] | None = None
    if selection.wanted and len(positions):
        payloads = [selection.of(payload) for payload in view.payloads_of(positions)]
    if with_vector and len(positions):
        vectors = [{} if vector is None else vector.tolist() for vector in view.vectors_of(positions)]
    return payloads, vectors


def require_finite(scores: np.ndarray) -> None:
    """Raises RuntimeError: no such score may leave."""
    if not np.isfinite(scores).all():
        raise RuntimeError("the index returned a score that is not finite")


def add_work(total: WorkDone, work: Any) -> None:
    """Sum up what a search did."""
    for name in COUNTERS:
        counted = getattr(work, name, None)
        if counted is not None:
            setattr(total, name, getattr(total, name) + int(np.sum(counted)))
    for stage, micros in (getattr(work, "microseconds", None) or {}).items():
        total.microseconds[stage] = total.microseconds.get(stage, 0.0) + float(np.sum(micros))
