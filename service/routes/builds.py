"""/v1/admin/builds: jobs that build collections; jobs that build decoders (/v1/admin/decoders) are followed here too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Raw
from starlette.responses import Response, StreamingResponse

from service.answers import encode, plain, read_json
from service.jobs.compaction import CompactBody, compact
from service.jobs.request import BuildBody
from service.jobs.store import ACTIVE, Job, JobKindName
from service.routes.context import AppParts, parts

_EVENTS_EVERY_S = 0.1
_KEEP_ALIVE_S = 15.0

router = APIRouter(prefix="/v1/admin/builds")
compact_router = APIRouter()


@router.post("")
async def submit(request: Request) -> Response:
    """Queue a build after checking what can be checked at once."""
    own = parts(request)
    body = await read_json(request, BuildBody)
    raw = Raw(await request.body())

    kind: JobKindName = "append" if body.mode == "append" else "collection"

    def queue() -> Job:
        foresight = own.runner.foresee(kind, raw)
        return own.runner.submit(
            kind, body.collection, mode=body.mode, alias=body.alias, request=raw, foresight=foresight
        )

    return plain(shown(own, await asyncio.to_thread(queue)), status=202)


@router.get("")
async def jobs(request: Request) -> Response:
    """All jobs, the oldest first."""
    own = parts(request)
    return plain({"builds": [shown(own, job) for job in own.runner.store.all()]})


@router.get("/{job}")
async def job(request: Request, job: str) -> Response:
    """State, progress, report."""
    own = parts(request)
    return plain(shown(own, own.runner.store.get(job)))


@router.get("/{job}/events")
async def events(request: Request, job: str) -> Response:
    """Server-sent events: the job at each change, the last one when it has ended."""
    own = parts(request)
    followed = own.runner.store.get(job)
    return StreamingResponse(
        _events(own, followed), media_type="text/event-stream", headers={"cache-control": "no-store"}
    )


@router.post("/{job}/cancel")
async def cancel(request: Request, job: str) -> Response:
    """The job ends within 5 seconds and leaves nothing behind; until then it is `cancelling`."""
    own = parts(request)
    return plain(shown(own, await asyncio.to_thread(own.runner.cancel, job)))


@router.post("/{job}/restart")
async def restart(request: Request, job: str) -> Response:
    """Queue a job again that did not come to its end."""
    own = parts(request)
    return plain(shown(own, await asyncio.to_thread(own.runner.restart, job)), status=202)


@router.delete("/{job}")
async def delete(request: Request, job: str) -> Response:
    """Forget a job that has ended; what it built stays."""
    await asyncio.to_thread(parts(request).runner.store.delete, job)
    return plain({"deleted": True})


@compact_router.post("/v1/admin/collections/{collection}/compact")
async def start_compaction(request: Request, collection: str) -> Response:
    """Queue a job that folds what was written to the collection into a new generation. The body may be empty."""
    own = parts(request)
    raw = await request.body()
    body = await read_json(request, CompactBody) if raw else CompactBody()
    record = own.engine.find(collection).record
    return plain(shown(own, await asyncio.to_thread(compact, own.runner, record.name, body)), status=202)


def shown(own: AppParts, job: Job) -> dict[str, Any]:
    """A job as clients see it."""
    members: dict[str, Any] = msgspec.structs.asdict(job)
    return members | {"cancelling": job.state == "running" and own.runner.is_stopping(job.job)}


async def _events(own: AppParts, job: Job) -> AsyncIterator[bytes]:
    last, waited = b"", 0.0
    while True:
        now = encode(shown(own, job))
        if now != last:
            last, waited = now, 0.0
            yield b"event: " + job.state.encode() + b"\ndata: " + now + b"\n\n"
        elif waited >= _KEEP_ALIVE_S:
            waited = 0.0
            yield b": still here\n\n"
        if job.state not in ACTIVE or own.draining:
            return
        await asyncio.sleep(_EVENTS_EVERY_S)
        waited += _EVENTS_EVERY_S
