"""/collections/{c}/snapshots: make, list, download and delete snapshots; recover a collection from one, or from an upload.

Making and recovering are jobs (GET /v1/admin/builds); with wait=true, the default, the answer comes when they have ended.
"""

from __future__ import annotations

import asyncio
import datetime
import secrets
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse, Response

from service.answers import DONE, encode, ok, plain, read_body
from service.engine import SNAPSHOTS_FOLDER
from service.errors import (
    ConflictError,
    DamagedError,
    MalformedError,
    NoRoomError,
    NotFoundError,
    NotReadyError,
    ServiceError,
    UnsupportedError,
)
from service.jobs.snapshot_jobs import RestoreBody, SnapshotBody, uploaded_snapshot
from service.jobs.store import ACTIVE, Job
from service.names import check_name
from service.routes.context import AppParts, flag, parts, started
from service.slips import decode_known
from service.snapshots import SUFFIX, keep_upload, sha256_of, snapshot_path

_LOOK_EVERY_S = 0.05
_OF_RECOVER = {"path": "location", "url": "location", "file": "location", "snapshot": "location", "sha256": "checksum"}

router = APIRouter(prefix="/collections/{collection}/snapshots")


class RecoverBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """PUT .../snapshots/recover."""

    location: str
    priority: str | None = None
    checksum: str | None = None
    api_key: str | None = None


@router.post("")
async def make(request: Request, collection: str) -> Response:
    """A snapshot of the collection as it is now; reads and writes go on meanwhile."""
    own = parts(request)
    record = own.engine.find(collection).record
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d-%H-%M-%S")
    name = f"{stamp}-{secrets.token_hex(4)}{SUFFIX}"
    job = await _submit(own, "snapshot", record.name, SnapshotBody(name=name))
    if not _waits(request):
        return _accepted(request)
    await _wait(own, job)
    return ok(await asyncio.to_thread(_described, _folder(own, collection) / name), started(request))


@router.get("")
async def list_snapshots(request: Request, collection: str) -> Response:
    """Snapshots of the collection, the oldest first."""
    folder = _folder(parts(request), collection)

    def every() -> list[dict[str, Any]]:
        return [_described(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]

    return ok(await asyncio.to_thread(every), started(request))


@router.get("/{name}")
async def download(request: Request, collection: str, name: str) -> Response:
    """The file of a snapshot."""
    path = snapshot_path(_folder(parts(request), collection), name)
    return FileResponse(path, media_type="application/x-tar", filename=name)


@router.delete("/{name}")
async def delete(request: Request, collection: str, name: str) -> Response:
    """Remove a snapshot."""
    path = snapshot_path(_folder(parts(request), collection), name)
    await asyncio.to_thread(path.unlink)
    return ok(DONE, started(request))


@router.put("/recover")
async def recover(request: Request, collection: str) -> Response:
    """Put the content of a snapshot in place of the collection, or make it: location is file:///collection/name."""
    own = parts(request)
    check_name(collection, "collection")
    body = decode_known(await read_body(request), RecoverBody, _OF_RECOVER)
    source, name = _located(own, body.location)
    return await _restore(request, collection, RestoreBody(collection=source, snapshot=name, checksum=body.checksum))


@router.post("/upload")
async def upload(request: Request, collection: str) -> Response:
    """The same from a file, the member `snapshot` of a multipart/form-data body."""
    own = parts(request)
    check_name(collection, "collection")
    async with request.form(max_files=1, max_fields=10) as form:
        content = form.get("snapshot")
        if not isinstance(content, UploadFile):
            raise MalformedError("The body has no file named snapshot. Send multipart/form-data with one.")
        name = uuid.uuid4().hex
        path = uploaded_snapshot(own.engine, name)
        await asyncio.to_thread(path.parent.mkdir, parents=True)
        await asyncio.to_thread(keep_upload, content.file, path)
    checksum = request.query_params.get("checksum")
    try:
        return await _restore(request, collection, RestoreBody(uploaded=name, checksum=checksum))
    except ConflictError:
        await asyncio.to_thread(path.unlink, missing_ok=True)
        raise


async def _restore(request: Request, collection: str, body: RestoreBody) -> Response:
    own = parts(request)
    if own.engine.is_alias(collection):
        raise MalformedError(f"{collection!r} is an alias. Recover under the name of a collection, or under a new one.")
    job = await _submit(own, "restore", collection, body)
    if not _waits(request):
        return _accepted(request)
    await _wait(own, job)
    return ok(DONE, started(request))


async def _submit(own: AppParts, kind: Any, name: str, body: SnapshotBody | RestoreBody) -> Job:
    raw = msgspec.Raw(encode(body))

    def queue() -> Job:
        foresight = own.runner.foresee(kind, raw)
        return own.runner.submit(kind, name, mode=kind, request=raw, foresight=foresight)

    return await asyncio.to_thread(queue)


async def _wait(own: AppParts, job: Job) -> None:
    """Until the job has ended. Raises FailedJobError, ConflictError where it was cancelled."""
    while job.state in ACTIVE and not own.draining:
        await asyncio.sleep(_LOOK_EVERY_S)
    if job.error is not None:
        raise _STATUS.get(job.error.code, ServiceError)(job.error.message)
    if job.state != "done":
        raise ConflictError(f"Job {job.job} is {job.state}. Nothing was changed by it.")


_STATUS: dict[str, type[ServiceError]] = {
    kind.code: kind for kind in (MalformedError, NotFoundError, ConflictError, NotReadyError, DamagedError, NoRoomError)
}
"""By the word that a failed job keeps."""


def _waits(request: Request) -> bool:
    return flag(request.query_params.get("wait", "true"), "wait")


def _accepted(request: Request) -> Response:
    return plain({"status": "accepted", "time": time.perf_counter() - started(request)}, status=202)


def _folder(own: AppParts, collection: str) -> Path:
    return own.engine.folder_of(own.engine.find(collection).record.id) / SNAPSHOTS_FOLDER


def _described(path: Path) -> dict[str, Any]:
    found = path.stat()
    made = datetime.datetime.fromtimestamp(found.st_mtime, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return {"name": path.name, "creation_time": made, "size": found.st_size, "checksum": sha256_of(path)}


def _located(own: AppParts, location: str) -> tuple[str, str]:
    """(collection, snapshot) of a location. Raises MalformedError, NotFoundError, UnsupportedError."""
    scheme, separator, rest = location.partition("://")
    if separator and scheme != "file":
        raise UnsupportedError(f"recovering from {scheme}", "Download the file, and POST it to .../snapshots/upload.")
    source, _, name = (rest if separator else location).strip("/").rpartition("/")
    if not source or "/" in source:
        raise MalformedError(
            f"location is {location!r}; give file:///COLLECTION/SNAPSHOT, a snapshot of a collection of this server."
        )
    if not own.engine.exists(source):
        raise NotFoundError(f"location names collection {source!r}, which does not exist. Upload the file instead.")
    return source, name
