"""Queries to points: runs in a thread of the CPU pool, over one lease.

answer_queries()  a batch of queries -> points as JSON; queries that ask for the same share one call of the index
answer_raw()      the octet-stream form: arrays in, arrays out; encode_raw() makes the body of its parts
search_points() search_raw()   the same of an index that no collection serves yet
retrieve() scroll() count()

Invariant: every score that leaves was looked at: not finite is an error of ours, never null in an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from index.options import SearchOptions
from service.answers import encode
from service.errors import MalformedError, NotFoundError, UnsupportedError
from service.generation import SearchableIndex
from service.names import PointId
from service.profile import COUNTERS, profile_of
from service.query import Query
from service.selection import PayloadSelection

if TYPE_CHECKING:  # the engine warms an index with this module's searches before it has leases of it
    from service.engine import Lease

Numbers = list[float] | list[int]


class ScoredPoint(msgspec.Struct, frozen=True):
    """A hit."""

    id: PointId
    score: float
    version: int = 0
    payload: Raw | UnsetType = UNSET
    vector: Numbers | UnsetType = UNSET


class Record(msgspec.Struct, frozen=True):
    """A stored point."""

    id: PointId
    payload: Raw | UnsetType = UNSET
    vector: Numbers | UnsetType = UNSET


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


def answer_queries(lease: Lease, queries: Sequence[Query]) -> Answers:
    """Points of each query. Raises NotFoundError for an unknown id, MalformedError for another dimension."""
    for query in queries:
        if query.vector is not None:
            require_dim(lease, query.vector.shape[0])
    if lease.index is None:
        _require_no_ids(queries)
        return Answers([[] for _ in queries], [None for _ in queries], WorkDone())
    return search_points(lease.index, queries)


def search_points(index: SearchableIndex, queries: Sequence[Query]) -> Answers:
    """Points of each query of the index's dimension. Raises NotFoundError for an unknown id."""
    answers = Answers([[] for _ in queries], [None for _ in queries], WorkDone())
    groups: dict[tuple[int, SearchOptions], list[int]] = {}
    for position, query in enumerate(queries):
        if query.vector is None and query.by_id is None:
            answers.points[position] = _in_id_order(index, query)
            continue
        # A query by id finds that id first; one more row makes up for it.
        k = min(query.offset + query.limit + (query.by_id is not None), index.n)
        groups.setdefault((k, query.options), []).append(position)
    for (k, options), positions in groups.items():
        vectors = np.stack([_vector_of(index, queries[position]) for position in positions])
        hits = index.search(vectors, k=k, options=options)
        for place, position in enumerate(positions):
            answers.points[position] = _points(index, hits, place, queries[position])
            if queries[position].profile:
                answers.profiles[position] = profile_of(index, hits.work, place, k=k, options=options)
        _add_work(answers.work, hits.work)
    return answers


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """ids uint64 [m, k], scores float32 [m, k], counts int64 [m] of some raw queries; entries past a count are 0."""

    ids: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    work: WorkDone


def answer_raw(lease: Lease, vectors: np.ndarray, *, k: int, offset: int, options: SearchOptions) -> RawAnswer:
    """Hits of queries float32 [m, dim] without an object for each number. Raises UnsupportedError for string ids."""
    if lease.index is None:
        none = np.zeros((len(vectors), 0))
        return RawAnswer(none.astype("<u8"), none.astype("<f4"), np.zeros(len(vectors), dtype=np.int64), WorkDone())
    return search_raw(lease.index, vectors, k=k, offset=offset, options=options)


def search_raw(
    index: SearchableIndex, vectors: np.ndarray, *, k: int, offset: int, options: SearchOptions
) -> RawAnswer:
    """The same of an index."""
    work = WorkDone()
    hits = index.search(vectors, k=min(offset + k, index.n), options=options)
    if hits.ids.dtype == object:
        raise UnsupportedError("octet-stream answers of a collection with string ids", "Send the query as JSON.")
    ids, scores = hits.ids[:, offset:], hits.scores[:, offset:]
    counts = np.clip(hits.counts - offset, 0, ids.shape[1])
    past = np.arange(ids.shape[1]) >= counts[:, None]
    if past.any():
        ids, scores = np.where(past, np.uint64(0), ids), np.where(past, np.float32(0), scores)
    _require_finite(scores)
    _add_work(work, hits.work)
    return RawAnswer(ids.astype("<u8", copy=False), scores.astype("<f4", copy=False), counts, work)


def encode_raw(parts: Sequence[RawAnswer]) -> tuple[bytes, WorkDone]:
    """The body: header line, ids u64 [n, k], scores f32 [n, k]; and the work of all parts."""
    counts = [count for part in parts for count in part.counts.tolist()]
    shape = [len(counts), parts[0].ids.shape[1]]
    header = encode({"shape": shape, "dtypes": {"ids": "<u8", "scores": "<f4"}, "counts": counts})
    # Blanks before the newline align the ids to 8 bytes, so that clients read both arrays in place.
    header += b" " * (-(len(header) + 1) % 8) + b"\n"
    work = WorkDone()
    for part in parts:
        _add_work(work, part.work)
    arrays = [*(part.ids.tobytes() for part in parts), *(part.scores.tobytes() for part in parts)]
    return b"".join([header, *arrays]), work


def retrieve(lease: Lease, ids: Sequence[PointId], selection: PayloadSelection, *, with_vector: bool) -> list[Record]:
    """Stored points in the order of ids; unknown ids are left out, repeated ones come once."""
    index = lease.index
    if index is None or not ids:
        return []
    unique = list(dict.fromkeys(ids))
    rows = np.asarray(index.ids.rows_of(unique), dtype=np.int64)
    found = rows >= 0
    known = [id_ for id_, there in zip(unique, found.tolist(), strict=True) if there]
    return _records(index, known, rows[found], selection, with_vector=with_vector)


def scroll(
    lease: Lease, *, start: PointId | None, limit: int, selection: PayloadSelection, with_vector: bool
) -> tuple[list[Record], PointId | None]:
    """Points ascending by id from start on, and the id that the next page starts with (None: that was all)."""
    index = lease.index
    if index is None:
        return [], None
    ids, rows = ids_in_order(index, start, limit + 1)
    following = ids[limit] if len(ids) > limit else None
    return _records(index, ids[:limit], rows[:limit], selection, with_vector=with_vector), following


def sample_rows(index: SearchableIndex, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Up to `size` rows int64, the same ones at each call, and their vectors as float32; zero vectors are no queries."""
    rows = np.sort(np.random.default_rng(0).choice(index.n, size=min(size, index.n), replace=False))
    vectors = index.vectors(rows).astype(np.float32)
    given = np.any(vectors != 0, axis=1)
    return rows[given], vectors[given]


def count(lease: Lease) -> int:
    """Points of the collection."""
    return lease.index.n if lease.index is not None else 0


def ids_in_order(index: SearchableIndex, start: PointId | None, limit: int) -> tuple[list[PointId], np.ndarray]:
    """Ids ascending from start (included) as Python integers and strings, and their rows."""
    ids, rows = index.ids.in_order(start, limit)
    return (ids.tolist() if isinstance(ids, np.ndarray) else list(ids)), np.asarray(rows, dtype=np.int64)


def require_dim(lease: Lease, dim: int) -> None:
    """Raises MalformedError for a vector of another dimension."""
    if dim != lease.record.size:
        raise MalformedError(
            f"Vector dimension error: expected dim: {lease.record.size}, got {dim} (collection {lease.record.name!r}). "
            "Was it made by another encoder?"
        )


def _vector_of(index: SearchableIndex, query: Query) -> np.ndarray:
    if query.vector is not None:
        return query.vector
    rows = index.ids.rows_of([query.by_id])
    if rows[0] < 0:
        raise NotFoundError(f"No point with id {query.by_id} found. Query by an id that is stored, or by a vector.")
    vector: np.ndarray = index.vectors(rows)[0].astype(np.float32)
    return vector


def _require_no_ids(queries: Sequence[Query]) -> None:
    for query in queries:
        if query.by_id is not None:
            raise NotFoundError(f"No point with id {query.by_id} found: the collection is empty.")


def _points(index: SearchableIndex, hits: Any, place: int, query: Query) -> list[ScoredPoint]:
    found = int(hits.counts[place])
    ids, scores, rows = hits.ids[place, :found], hits.scores[place, :found], hits.rows[place, :found]
    _require_finite(scores)
    if query.by_id is not None:
        others = np.array([id_ != query.by_id for id_ in ids.tolist()], dtype=bool)
        ids, scores, rows = ids[others], scores[others], rows[others]
    window = slice(query.offset, query.offset + query.limit)
    ids, scores, rows = ids[window], scores[window], rows[window]
    payloads, vectors = _parts(index, rows, query.payload, with_vector=query.with_vector)
    if payloads is None and vectors is None:
        return [ScoredPoint(id_, score) for id_, score in zip(ids.tolist(), scores.tolist(), strict=True)]
    return [
        ScoredPoint(id_, score, 0, payloads[i] if payloads is not None else UNSET, vectors[i] if vectors else UNSET)
        for i, (id_, score) in enumerate(zip(ids.tolist(), scores.tolist(), strict=True))
    ]


def _in_id_order(index: SearchableIndex, query: Query) -> list[ScoredPoint]:
    ids, rows = ids_in_order(index, None, query.offset + query.limit)
    records = _records(index, ids[query.offset :], rows[query.offset :], query.payload, with_vector=query.with_vector)
    return [ScoredPoint(record.id, 1.0, 0, record.payload, record.vector) for record in records]


def _records(
    index: SearchableIndex, ids: Sequence[PointId], rows: np.ndarray, selection: PayloadSelection, *, with_vector: bool
) -> list[Record]:
    payloads, vectors = _parts(index, rows, selection, with_vector=with_vector)
    return [
        Record(id_, payloads[i] if payloads is not None else UNSET, vectors[i] if vectors else UNSET)
        for i, id_ in enumerate(ids)
    ]


def _parts(
    index: SearchableIndex, rows: np.ndarray, selection: PayloadSelection, *, with_vector: bool
) -> tuple[list[Raw] | None, list[Numbers] | None]:
    payloads: list[Raw] | None = None
    vectors: list[Numbers] | None = None
    if selection.wanted and len(rows):
        stored = index.payload.get(rows) if index.payload is not None else [None] * len(rows)
        payloads = [selection.of(payload) for payload in stored]
    if with_vector and len(rows):
        vectors = index.vectors(rows).tolist()
    return payloads, vectors


def _require_finite(scores: np.ndarray) -> None:
    if not np.isfinite(scores).all():
        raise RuntimeError("the index returned a score that is not finite")


def _add_work(total: WorkDone, work: Any) -> None:
    for name in COUNTERS:
        counted = getattr(work, name, None)
        if counted is not None:
            setattr(total, name, getattr(total, name) + int(np.sum(counted)))
    for stage, micros in (getattr(work, "microseconds", None) or {}).items():
        total.microseconds[stage] = total.microseconds.get(stage, 0.0) + float(np.sum(micros))
