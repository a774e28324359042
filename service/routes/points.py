"""/collections/{c}/points: retrieve, one point, scroll, count, query, query in batches, recall, raw queries."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from msgspec import Raw
from starlette.datastructures import QueryParams as QueryString
from starlette.responses import Response

from service import hits
from service.answers import ok, read_body, read_json, require_no_encoding
from service.errors import BodyTooLargeError, MalformedError, NotFoundError, OutOfRangeError
from service.filters import parse_filter
from service.names import PointId, path_id, point_id
from service.ordered import parse_order, scroll_by_value
from service.query import BatchBody, Query, QueryParams, in_range, parse_query, search_options
from service.recall import recall_of_points, recall_of_queries
from service.routes.context import AppParts, flag, number, parts, started, timeout_s, whole
from service.selection import PayloadSelection, parse_payload_selection, parse_vector_selection
from service.served import Lease
from service.slips import OF_LISTS, OF_QUERIES, decode_known, refuse_slip
from service.vectors import vectors_from_bytes, vectors_from_json

OCTET_STREAM = "application/octet-stream"

# From so many raw queries on a second thread takes its share: below, its way there and back costs more than it saves.
_RAW_QUERIES_A_THREAD = 16

_RAW_OPTIONS = (
    "limit",
    "offset",
    "score_threshold",
    "exact",
    "recall",
    "beam",
    "hnsw_ef",
    "probes",
    "rerank",
    "timeout",
)

_RECALL_QUERIES_MAX = 10_000

_NULL = Raw(b"null")
_WHOLE = PayloadSelection(wanted=True)

router = APIRouter(prefix="/collections/{collection}")


class RetrieveBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST .../points."""

    ids: list[Any]
    shard_key: Raw = _NULL
    with_payload: Raw = _NULL
    with_vector: Raw = _NULL


class ScrollBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST .../points/scroll."""

    offset: Raw = _NULL
    limit: int | None = None
    filter: Raw = _NULL
    with_payload: Raw = _NULL
    with_vector: Raw = _NULL
    order_by: Raw = _NULL
    shard_key: Raw = _NULL


class CountBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST .../points/count."""

    filter: Raw = _NULL
    exact: bool = True
    shard_key: Raw = _NULL


class RecallBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST .../points/recall."""

    sample: int | None = None
    queries: Raw = _NULL
    limit: int = 10
    params: QueryParams | None = None


@router.post("/points/query")
async def query(request: Request) -> Response:
    """Nearest points of one query as JSON, or of many as raw float32."""
    # Taken from the path here: as a parameter it would be validated by pydantic for each query.
    collection: str = request.path_params["collection"]
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == OCTET_STREAM:
        return await _query_raw(request, collection)
    own = parts(request)
    one = parse_query(await read_body(request), own.settings)
    answers = await _answers(request, collection, [one])
    return ok(_result(answers, 0), started(request))


@router.post("/points")
async def retrieve(request: Request, collection: str) -> Response:
    """Stored points by their ids; unknown ids are left out."""
    body = decode_known(await read_body(request), RetrieveBody, OF_LISTS)
    ids = [point_id(value) for value in body.ids]
    in_range(len(ids), "number of ids", low=0, high=parts(request).settings.query_limit_max)
    selection = parse_payload_selection(body.with_payload, path="$.with_payload", default=True)
    with_vector = parse_vector_selection(body.with_vector, path="$.with_vector")
    records = await parts(request).engine.read(
        collection,
        lambda lease: hits.retrieve(lease.view, ids, selection, with_vector=with_vector),
        timeout_s=timeout_s(request),
    )
    return ok(records, started(request))


@router.post("/points/scroll")
async def scroll(request: Request, collection: str) -> Response:
    """Points ascending by id, a page at a time, or the first by the values of a field."""
    body = decode_known(await read_body(request), ScrollBody, OF_LISTS)
    wanted = parse_filter(body.filter, path="$.filter")
    high = parts(request).settings.query_limit_max
    limit = in_range(10 if body.limit is None else body.limit, "limit", low=1, high=high)
    start: PointId | None = None
    if bytes(body.offset) != b"null":
        start = point_id(msgspec.json.decode(body.offset))
    selection = parse_payload_selection(body.with_payload, path="$.with_payload", default=True)
    with_vector = parse_vector_selection(body.with_vector, path="$.with_vector")
    if bytes(body.order_by) != b"null":
        order = parse_order(body.order_by, path="$.order_by")
        if start is not None:
            raise MalformedError(
                "offset and order_by came together. Go on with order_by.start_from in place of offset."
            )
        by_value = partial(
            scroll_by_value, order=order, limit=limit, selection=selection, with_vector=with_vector, wanted=wanted
        )
        found = await parts(request).engine.read(
            collection, lambda lease: by_value(lease.view), timeout_s=timeout_s(request)
        )
        return ok({"points": found, "next_page_offset": None}, started(request))
    records, following = await parts(request).engine.read(
        collection,
        lambda lease: hits.scroll(
            lease.view, start=start, limit=limit, selection=selection, with_vector=with_vector, wanted=wanted
        ),
        timeout_s=timeout_s(request),
    )
    return ok({"points": records, "next_page_offset": following}, started(request))


@router.post("/points/count")
async def count(request: Request, collection: str) -> Response:
    """Points that match; always exact."""
    body = decode_known(await read_body(request), CountBody, OF_LISTS)
    wanted = parse_filter(body.filter, path="$.filter")
    counted = await parts(request).engine.read(
        collection, lambda lease: lease.view.count(wanted), timeout_s=timeout_s(request)
    )
    return ok({"count": counted}, started(request))


@router.post("/points/query/batch")
async def query_batch(request: Request, collection: str) -> Response:
    """Several queries, each with options of its own."""
    own = parts(request)
    body = await read_json(request, BatchBody)
    _require_batch(len(body.searches), own)
    queries = [
        parse_query(one, own.settings, path=f"$.searches[{position}]") for position, one in enumerate(body.searches)
    ]
    answers = await _answers(request, collection, queries)
    return ok([_result(answers, position) for position in range(len(queries))], started(request))


@router.post("/points/recall")
async def recall(request: Request, collection: str) -> Response:
    """Recall of stored rows or of the client's own queries against the oracle, with its 95 % interval."""
    body = await read_json(request, RecallBody)
    own_queries = bytes(body.queries) != b"null"
    if own_queries and body.sample is not None:
        raise MalformedError("sample and queries were both given. Give sample for stored rows, or queries of your own.")
    sample = in_range(100 if body.sample is None else body.sample, "sample", low=1, high=_RECALL_QUERIES_MAX)
    limit = in_range(body.limit, "limit", low=1, high=1000)
    options = search_options(body.params or QueryParams())

    def measure(lease: Lease) -> dict[str, Any]:
        view = lease.view
        count = view.count()
        if not count:
            raise OutOfRangeError(f"Collection {collection!r} is empty; there is no recall to measure.")
        if not own_queries:
            return recall_of_points(view, sample, k=min(limit, count), options=options)
        vectors = vectors_from_json(body.queries, dim=view.dim, path="$.queries")
        in_range(len(vectors), "number of queries", low=1, high=_RECALL_QUERIES_MAX)
        return recall_of_queries(view, vectors, k=limit, options=options)

    result = await parts(request).engine.read(collection, measure, timeout_s=timeout_s(request))
    return ok(result, started(request))


@router.get("/points/{point:path}")
async def one_point(request: Request, collection: str, point: str) -> Response:
    """One point with payload and vector."""
    id_type = request.query_params.get("id_type", "auto")
    if id_type not in {"auto", "string"}:
        raise MalformedError(f'id_type is {id_type!r}; it may be "string", for an id of digits that is a string.')
    wanted = path_id(point, as_string=id_type == "string")
    records = await parts(request).engine.read(
        collection,
        lambda lease: hits.retrieve(lease.view, [wanted], _WHOLE, with_vector=True),
        timeout_s=timeout_s(request),
    )
    if not records:
        raise NotFoundError(f"Point with id {wanted} does not exist in collection {collection!r}.")
    return ok(records[0], started(request))


async def _answers(request: Request, collection: str, queries: list[Query]) -> hits.Answers:
    own = parts(request)
    begun = time.perf_counter()
    answers = await own.engine.read(
        collection, lambda lease: hits.answer_queries(lease.view, queries), timeout_s=timeout_s(request)
    )
    own.metrics.queries_done(collection, count=len(queries), seconds=time.perf_counter() - begun, work=answers.work)
    return answers


def _result(answers: hits.Answers, position: int) -> dict[str, Any]:
    profile = answers.profiles[position]
    result: dict[str, Any] = {"points": answers.points[position]}
    return result if profile is None else result | {"profile": profile}


def _require_batch(size: int, own: AppParts) -> None:
    if size > own.settings.query_batch_max:
        raise BodyTooLargeError(
            f"{size} queries came in one request, the limit is {own.settings.query_batch_max}. "
            "Send a smaller batch, or raise query_batch_max."
        )


async def _query_raw(request: Request, collection: str) -> Response:
    own = parts(request)
    require_no_encoding(request)
    limit, offset, options = _raw_options(request.query_params, own)
    dim = own.engine.find(collection).record.size
    vectors = vectors_from_bytes(await request.body(), dim=dim)
    _require_batch(len(vectors), own)
    begun = time.perf_counter()

    def work(lease: Lease, some: np.ndarray) -> hits.RawAnswer:
        view = lease.view
        hits.require_dim(view, dim)
        return hits.answer_raw(view, some, k=limit, offset=offset, options=options)

    threads = min(own.settings.search_threads, -(-len(vectors) // _RAW_QUERIES_A_THREAD))
    works = [partial(work, some=some) for some in np.array_split(vectors, threads)]
    body, done = hits.encode_raw(await own.engine.read_parts(collection, works, timeout_s=timeout_s(request)))
    own.metrics.queries_done(collection, count=len(vectors), seconds=time.perf_counter() - begun, work=done)
    return Response(body, media_type=OCTET_STREAM)


def _raw_options(given: QueryString, own: AppParts) -> tuple[int, int, Any]:
    for name in given:
        if name not in _RAW_OPTIONS:
            refuse_slip(name, _RAW_OPTIONS, OF_QUERIES, path="the query string")
            raise MalformedError(f"Unknown option {name!r} of a raw query. Allowed are {', '.join(_RAW_OPTIONS)}.")
    high = own.settings.query_limit_max
    limit = in_range(whole(given.get("limit", "10"), "limit"), "limit", low=1, high=high)
    offset = in_range(whole(given.get("offset", "0"), "offset"), "offset", low=0, high=high)
    in_range(limit + offset, "offset + limit", low=1, high=high)
    params = QueryParams(
        exact=flag(given.get("exact", "false"), "exact"),
        recall=number(given["recall"], "recall", low=0.0, high=1.0) if "recall" in given else None,
        hnsw_ef=_whole_or_none(given, "hnsw_ef"),
        beam=_whole_or_none(given, "beam"),
        probes=_whole_or_none(given, "probes"),
        rerank=_whole_or_none(given, "rerank"),
    )
    threshold = (
        number(given["score_threshold"], "score_threshold", low=-1e38, high=1e38)
        if "score_threshold" in given
        else None
    )
    return limit, offset, search_options(params, score_threshold=threshold)


def _whole_or_none(given: QueryString, name: str) -> int | None:
    return whole(given[name], name) if name in given else None
