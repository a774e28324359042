"""/collections/{c}/points: upsert, delete, vectors, payloads, batches of these; payload indexes.

A request is all or nothing: it is answered when what it asked for is on the disk and seen by every later request, whatever
`wait` and `ordering` say; an error means that nothing was changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.answers import ok, read_body
from service.catalogue import CollectionRecord
from service.points import operations
from service.points.operations import Operation
from service.routes.context import flag, parts, started
from service.served import METRIC_OF_DISTANCE

router = APIRouter(prefix="/collections/{collection}")


@router.put("/points")
async def upsert(request: Request, collection: str) -> Response:
    """Points put in, in place of those of their ids. Of an id that comes twice the last counts."""
    return await _write(request, collection, operations.parse_upsert, needs_vectors=True)


@router.post("/points/delete")
async def delete(request: Request, collection: str) -> Response:
    """Points taken out, by ids or by a filter. Ids that are not there are no error."""
    return await _write(request, collection, operations.parse_delete)


@router.put("/points/vectors")
async def update_vectors(request: Request, collection: str) -> Response:
    """Other vectors for points that are there."""
    return await _write(request, collection, operations.parse_vectors, needs_vectors=True)


@router.post("/points/vectors/delete")
async def delete_vectors(request: Request, collection: str) -> Response:
    """Points that stay without their vectors."""
    return await _write(request, collection, operations.parse_delete_vectors)


@router.post("/points/payload")
async def set_payload(request: Request, collection: str) -> Response:
    """Members merged into the payloads of points."""
    return await _write(request, collection, partial(operations.parse_payload, overwrite=False))


@router.put("/points/payload")
async def overwrite_payload(request: Request, collection: str) -> Response:
    """Payloads in place of those that points have."""
    return await _write(request, collection, partial(operations.parse_payload, overwrite=True))


@router.post("/points/payload/delete")
async def delete_payload(request: Request, collection: str) -> Response:
    """Members taken out of the payloads of points."""
    return await _write(request, collection, operations.parse_delete_payload)


@router.post("/points/payload/clear")
async def clear_payload(request: Request, collection: str) -> Response:
    """Payloads emptied."""
    return await _write(request, collection, operations.parse_clear_payload)


@router.post("/points/batch")
async def batch(request: Request, collection: str) -> Response:
    """Several operations in their order, all or none; each sees what the ones before it did."""
    raw = await read_body(request)
    _require_flags(request)
    count = 0

    def parse(record: CollectionRecord) -> Sequence[Operation]:
        nonlocal count
        parsed = operations.parse_batch(raw, dim=record.size, metric=METRIC_OF_DISTANCE[record.distance])
        count = len(parsed)
        return parsed

    sequence = await asyncio.to_thread(parts(request).engine.write, collection, parse)
    return ok([_completed(sequence)] * count, started(request))


async def _write(
    request: Request, collection: str, parse: Callable[..., Operation], *, needs_vectors: bool = False
) -> Response:
    raw = await read_body(request)
    _require_flags(request)

    def operations_of(record: CollectionRecord) -> Sequence[Operation]:
        if needs_vectors:
            return [parse(raw, dim=record.size, metric=METRIC_OF_DISTANCE[record.distance])]
        return [parse(raw)]

    sequence = await asyncio.to_thread(parts(request).engine.write, collection, operations_of)
    return ok(_completed(sequence), started(request))


def _completed(sequence: int) -> dict[str, object]:
    return {"operation_id": sequence, "status": "completed"}


def _require_flags(request: Request) -> None:
    """`wait` says nothing here, but what it is has to be a word."""
    flag(request.query_params.get("wait", "true"), "wait")
