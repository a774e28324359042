"""What is told of fields: hits of a query in groups, and how many points have each value."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.answers import ok, read_body
from service.facets import facet, parse_facet
from service.grouped import grouped, parse_grouped
from service.routes.context import parts, started, timeout_s

router = APIRouter(prefix="/collections/{collection}")


@router.post("/points/query/groups")
async def query_groups(request: Request, collection: str) -> Response:
    """The best groups of points by the values of a field, each with its best points."""
    own = parts(request)
    asked = parse_grouped(await read_body(request), own.settings)
    begun = time.perf_counter()
    groups, work = await own.engine.read(
        collection, lambda lease: grouped(lease.view, asked), timeout_s=timeout_s(request)
    )
    own.metrics.queries_done(collection, count=1, seconds=time.perf_counter() - begun, work=work)
    return ok({"groups": groups}, started(request))


@router.post("/facet")
async def count_values(request: Request, collection: str) -> Response:
    """The values of a field with the number of points that have each; always exact, an index is not needed."""
    own = parts(request)
    asked = parse_facet(await read_body(request), own.settings)
    hits = await own.engine.read(collection, lambda lease: facet(lease.view, asked), timeout_s=timeout_s(request))
    return ok({"hits": hits}, started(request))
