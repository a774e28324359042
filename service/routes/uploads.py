"""/v1/admin/uploads: files to build from, streamed to the disk."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.answers import plain, require_no_encoding
from service.errors import MalformedError
from service.routes.context import parts
from service.uploads import delete_upload, list_uploads, store_upload

router = APIRouter(prefix="/v1/admin/uploads")


@router.post("")
async def upload(request: Request) -> Response:
    """The body is the file; `name` in the query string says its format by its ending."""
    require_no_encoding(request)
    name = request.query_params.get("name")
    if name is None:
        raise MalformedError("name is missing. Send POST /v1/admin/uploads?name=base.npy with the file as the body.")
    own = parts(request)
    made, size = await store_upload(own.settings.data_dir, name, request.stream())
    return plain({"upload": made, "name": name, "bytes": size}, status=201)


@router.get("")
async def uploads(request: Request) -> Response:
    """All uploads."""
    return plain({"uploads": await asyncio.to_thread(list_uploads, parts(request).settings.data_dir)})


@router.delete("/{upload}")
async def delete(request: Request, upload: str) -> Response:
    """Remove an upload; builds that have read it are not touched."""
    await asyncio.to_thread(delete_upload, parts(request).settings.data_dir, upload)
    return plain({"deleted": True})
