"""/v1/admin/builds: jobs that build collections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Raw
from starlette.responses import Response, StreamingResponse

from service.answers import encode, plain, read_json
from service.jobs.foresight import Foresight, foresee
from service.jobs.request import BuildBody, to_spec
from service.jobs.store import ACTIVE, Job
from service.routes.context import AppParts, parts

_EVENTS_EVERY_S = 0.1
_KEEP_ALIVE_S = 15.0

router = APIRouter(prefix="/v1/admin/builds")


@router.post("")
async def submit(request: Request) -> Response:
    """Queue a build after checking what can be checked at once."""
    own = parts(request)
    body = await read_json(request, BuildBody)
    foresight = await asyncio.to_thread(_check, own, body)
    job = await asyncio.to_thread(
        own.runner.submit,
        collection=body.collection,
        mode=body.mode,
        alias=body.alias,
        request=Raw(await request.body()),
        passes=foresight.passes,
        warnings=foresight.warnings,
    )
    return plain(_shown(own, job), status=202)


@router.get("")
async def jobs(request: Request) -> Response:
    """All jobs, the oldest first."""
    own = parts(request)
    return plain({"builds": [_shown(own, job) for job in own.runner.store.all()]})


@router.get("/{job}")
async def job(request: Request, job: str) -> Response:
    """State, progress, report."""
    own = parts(request)
    return plain(_shown(own, own.runner.store.get(job)))


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
    return plain(_shown(own, await asyncio.to_thread(own.runner.cancel, job)))


@router.post("/{job}/restart")
async def restart(request: Request, job: str) -> Response:
    """Queue a job again that did not come to its end."""
    own = parts(request)
    body = msgspec.json.decode(own.runner.require_restartable(job).request, type=BuildBody)
    foresight = await asyncio.to_thread(_check, own, body)
    restarted = await asyncio.to_thread(own.runner.restart, job, passes=foresight.passes, warnings=foresight.warnings)
    return plain(_shown(own, restarted), status=202)


@router.delete("/{job}")
async def delete(request: Request, job: str) -> Response:
    """Forget a job that has ended; its collection stays."""
    await asyncio.to_thread(parts(request).runner.store.delete, job)
    return plain({"deleted": True})


def _check(own: AppParts, body: BuildBody) -> Foresight:
    return foresee(to_spec(body, own.engine, own.settings.data_dir))


def _shown(own: AppParts, job: Job) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.structs.asdict(job)
    return shown | {"cancelling": job.state == "running" and own.runner.is_stopping(job.job)}


async def _events(own: AppParts, job: Job) -> AsyncIterator[bytes]:
    last, waited = b"", 0.0
    while True:
        shown = encode(_shown(own, job))
        if shown != last:
            last, waited = shown, 0.0
            yield b"event: " + job.state.encode() + b"\ndata: " + shown + b"\n\n"
        elif waited >= _KEEP_ALIVE_S:
            waited = 0.0
            yield b": still here\n\n"
        if job.state not in ACTIVE or own.draining:
            return
        await asyncio.sleep(_EVENTS_EVERY_S)
        waited += _EVENTS_EVERY_S
