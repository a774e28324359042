"""/, /healthz, /livez, /readyz, /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from service.answers import plain
from service.collection_info import points_count
from service.decoder_info import decoder_bytes
from service.jobs.store import STATES
from service.routes.context import AppParts, parts

QDRANT_VERSION = "1.20.0"
"""The REST version that collection routes follow. Clients warn where it is far from their own."""

# The pool answers its heartbeat within milliseconds, unless every thread is in a long search.
_STALLED_S = 8.0

router = APIRouter()


@router.get("/")
async def root() -> Response:
    """Who answers, and which REST version is followed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("fullview")
    except PackageNotFoundError:  # run from a folder, not installed
        own = "0.0.0"
    return plain({"title": "fullview", "version": QDRANT_VERSION, "fullview_version": own})


@router.get("/healthz")
@router.get("/livez")
async def alive() -> Response:
    """200 while the process lives."""
    return PlainTextResponse("alive\n")


@router.get("/readyz")
async def ready(request: Request) -> Response:
    """200 when every collection and decoder is loaded or known to be damaged and the pool answers, else 503 and why."""
    own = parts(request)
    collections, decoders = own.engine.all(), own.decoders.all()
    loaded = sum(not collection.loading for collection in collections)
    decoders_loaded = sum(not decoder.loading for decoder in decoders)
    missing = []
    if own.draining:
        missing.append("the server is shutting down")
    if loaded < len(collections):
        missing.append(f"{loaded}/{len(collections)} collections loaded")
    if decoders_loaded < len(decoders):
        missing.append(f"{decoders_loaded}/{len(decoders)} decoders loaded")
    stalled = own.engine.pool.stalled_s()
    if stalled > _STALLED_S:
        missing.append(f"the worker pool has not answered for {stalled:.0f} s")
    body = {
        "ready": not missing,
        "missing": missing,
        "collections_loaded": loaded,
        "collections_total": len(collections),
        "damaged": {c.record.name: c.damage for c in collections if c.damage is not None},
        "decoders_loaded": decoders_loaded,
        "decoders_total": len(decoders),
        "decoders_damaged": {d.record.name: d.damage for d in decoders if d.damage is not None},
    }
    answer = plain(body, status=503 if missing else 200)
    if missing:
        answer.headers["retry-after"] = "1"
    return answer


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus."""
    return Response(parts(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


def collect(own: AppParts) -> None:
    """Before a scrape: gauges from the engine, the decoders and the jobs."""
    collections = own.engine.all()
    points, resident = {}, {"total": 0}
    for collection in collections:
        points[collection.record.name] = points_count(collection)
        resident["delta"] = resident.get("delta", 0) + collection.written.resident_bytes
        resident["total"] += collection.written.resident_bytes
        generation = collection.generation
        if generation is None or not generation.acquire():
            continue
        try:
            parts_of_index = generation.index.stats().get("resident_bytes", {})
        finally:
            generation.release()
        for part, size in parts_of_index.items():
            if part != "total":
                resident[part] = resident.get(part, 0) + int(size)
                resident["total"] += int(size)
    for state in own.decoders.all():
        for part, size in decoder_bytes(state).items():
            resident[f"decoder_{part}"] = resident.get(f"decoder_{part}", 0) + size
            resident["total"] += size
    own.metrics.collections(points, resident, damaged=sum(c.damage is not None for c in collections))
    own.metrics.decoders(damaged=sum(d.damage is not None for d in own.decoders.all()))
    jobs = own.runner.store.all()
    states = dict.fromkeys(STATES, 0)
    for job in jobs:
        states[job.state] += 1
    progress = {job.job: job.done / job.total for job in jobs if job.state == "running" and job.total}
    own.metrics.builds(states, progress)
