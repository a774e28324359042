"""A query as it arrives: JSON body -> Query, with everything checked that needs no index.

parse_query()     one body of POST .../points/query, or one member of a batch
search_options()  params of a query -> index.SearchOptions

Invariant: what is known of Qdrant's grammar but not there is 501 and named; what nobody knows is 400.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
from msgspec import Raw

from index.options import SearchOptions
from service.answers import decode, decode_any
from service.errors import MalformedError, OutOfRangeError, UnsupportedError
from service.filters import Filter, parse_filter
from service.names import PointId, point_id
from service.selection import PayloadSelection, parse_payload_selection, parse_vector_selection
from service.settings import Settings
from service.slips import OF_QUERIES, decode_known
from service.vectors import vector_from_json

_NULL = Raw(b"null")
MMR_CANDIDATES_MAX = 16_384

_LATER_QUERIES = {
    "recommend": "recommend queries",
    "discover": "discover queries",
    "context": "context queries",
    "order_by": "order_by queries",
    "fusion": "fusion",
    "rrf": "fusion",
    "formula": "formula queries",
    "sample": "sample queries",
    "relevance_feedback": "relevance feedback",
    "indices": "sparse vectors",
    "values": "sparse vectors",
    "text": "inference",
    "image": "inference",
    "model": "inference",
}


class QueryParams(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`params` of a query: Qdrant's and ours. Unknown members are refused: each one would change the search."""

    hnsw_ef: int | None = None
    exact: bool = False
    recall: float | None = None
    beam: int | None = None
    probes: int | None = None
    rerank: int | None = None
    profile: bool = False
    # Qdrant's, of no meaning here.
    quantization: Raw = _NULL
    indexed_only: Raw = _NULL
    acorn: Raw = _NULL
    idf: Raw = _NULL


class QueryBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST .../points/query. Read by decode_known(): unknown members are ignored, as Qdrant does, slips refused."""

    query: Raw = _NULL
    shard_key: Raw = _NULL
    prefetch: Raw = _NULL
    filter: Raw = _NULL
    lookup_from: Raw = _NULL
    with_payload: Raw = _NULL
    with_vector: Raw = _NULL
    limit: int | None = None
    offset: int | None = None
    score_threshold: float | None = None
    using: str | None = None
    params: QueryParams | None = None
    profile: bool = False


class BatchBody(msgspec.Struct, kw_only=True):
    """POST .../points/query/batch."""

    searches: list[Raw]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmr:
    """Maximal marginal relevance: near the query, far from each other. diversity: 0 only near, 1 only far."""

    diversity: float = 0.5
    candidates: int
    """Nearest points among which are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query, checked. vector float32 [dim], or by_id: the stored vector of that point, or neither: in id order."""

    vector: np.ndarray | None
    by_id: PointId | None
    mmr: Mmr | None
    filter: Filter | None
    limit: int
    offset: int
    payload: PayloadSelection
    with_vector: bool
    options: SearchOptions
    profile: bool


def parse_query(raw: bytes | Raw, settings: Settings, *, path: str = "$") -> Query:
    """Raises MalformedError, OutOfRangeError, UnsupportedError naming the member."""
    body = decode_known(raw, QueryBody, OF_QUERIES, path=path)
    require_unnamed(body.using)
    if _given(body.prefetch) and bytes(body.prefetch) != b"[]":
        raise UnsupportedError("prefetch")
    if _given(body.lookup_from):
        raise UnsupportedError("lookup_from")
    wanted = parse_filter(body.filter, path=f"{path}.filter")
    limit = in_range(10 if body.limit is None else body.limit, "limit", low=1, high=settings.query_limit_max)
    offset = in_range(0 if body.offset is None else body.offset, "offset", low=0, high=settings.query_limit_max)
    in_range(limit + offset, "offset + limit", low=1, high=settings.query_limit_max)
    target = _parse_target(body.query, path=f"{path}.query", settings=settings, limit=limit)
    vector, by_id = target.vector, target.by_id
    if body.score_threshold is not None and vector is None and by_id is None:
        raise MalformedError("score_threshold came without a query; points in id order have no scores. Leave it out.")
    params = body.params or _NO_PARAMS
    return Query(
        vector=vector,
        by_id=by_id,
        mmr=target.mmr,
        filter=wanted,
        limit=limit,
        offset=offset,
        payload=parse_payload_selection(body.with_payload, path=f"{path}.with_payload", default=False),
        with_vector=parse_vector_selection(body.with_vector, path=f"{path}.with_vector"),
        options=search_options(params, score_threshold=body.score_threshold),
        profile=body.profile or params.profile,
    )


def search_options(params: QueryParams, *, score_threshold: float | None = None) -> SearchOptions:
    """Options of a search. Raises OutOfRangeError."""
    beam = params.beam if params.beam is not None else params.hnsw_ef
    for name, value in (("params.beam", beam), ("params.probes", params.probes), ("params.rerank", params.rerank)):
        if value is not None:
            in_range(value, name, low=1, high=2**31 - 1)
    if params.recall is not None and not 0.0 < params.recall <= 1.0:
        raise OutOfRangeError(f"params.recall is {params.recall}; it must be above 0 and at most 1.")
    if params.exact:
        # The oracle has no other options; Qdrant's clients send hnsw_ef beside exact.
        return SearchOptions(exact=True, score_threshold=score_threshold)
    return SearchOptions(
        recall=params.recall,
        beam=beam,
        probes=params.probes,
        rerank=params.rerank,
        score_threshold=score_threshold,
    )


def require_unnamed(using: str | None) -> None:
    """Raises UnsupportedError for a vector name other than the empty one."""
    if using:
        raise UnsupportedError(f"named vectors ({using!r})", 'A point has one vector; its name is "".')


def in_range(value: int, name: str, *, low: int, high: int) -> int:
    """The value itself. Raises OutOfRangeError."""
    if not low <= value <= high:
        raise OutOfRangeError(f"{name} is {value}; it must be from {low} to {high}.")
    return value


def _given(raw: Raw) -> bool:
    return bytes(raw) != b"null"


@dataclass(frozen=True, slots=True)
class _Target:
    vector: np.ndarray | None = None
    by_id: PointId | None = None
    mmr: Mmr | None = None


class _MmrBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    diversity: float | None = None
    candidates_limit: int | None = None


def _parse_target(raw: Raw, *, path: str, settings: Settings, limit: int) -> _Target:
    first = bytes(raw)[:1]
    if first == b"n":
        return _Target()
    if first == b"[":
        return _Target(vector=vector_from_json(raw, path=path))
    if first != b"{":
        return _Target(by_id=point_id(decode_any(raw, path=path)))
    members = decode(raw, dict[str, Raw], path=path)
    if "base64" in members:
        return _Target(vector=vector_from_json(raw, path=path))
    for name in members:
        if name in _LATER_QUERIES:
            raise UnsupportedError(_LATER_QUERIES[name])
        if name not in {"nearest", "mmr"}:
            raise MalformedError(f'Unknown member {name!r} at {path}. A query is {{"nearest": vector or id}}.')
    if "nearest" not in members:
        raise MalformedError(f'{path} has no member "nearest". A query is {{"nearest": vector or id}}.')
    if bytes(members["nearest"])[:1] == b"n":
        raise MalformedError(f"{path}.nearest is null. Give a vector or an id.")
    target = _parse_target(members["nearest"], path=f"{path}.nearest", settings=settings, limit=limit)
    if not _given(members.get("mmr", _NULL)):
        return target
    return replace(target, mmr=_parse_mmr(members["mmr"], path=f"{path}.mmr", settings=settings, limit=limit))


def _parse_mmr(raw: Raw, *, path: str, settings: Settings, limit: int) -> Mmr:
    body = decode(raw, _MmrBody, path=path)
    diversity = 0.5 if body.diversity is None else body.diversity
    if not 0.0 <= diversity <= 1.0:
        raise OutOfRangeError(f"{path}.diversity is {diversity}; it must be from 0 to 1.")
    candidates = limit if body.candidates_limit is None else body.candidates_limit
    high = min(MMR_CANDIDATES_MAX, settings.query_limit_max)
    return Mmr(diversity=diversity, candidates=in_range(candidates, f"{path}.candidates_limit", low=1, high=high))


_NO_PARAMS = QueryParams()
