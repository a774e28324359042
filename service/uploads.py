"""Files that clients send to build from: one folder an upload, a file inside it under the name that was given.

Invariant: a file under its name is complete and on the disk; what was cut off is `.part` and removed, at the latest at
the next start.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from index.sources.registry import FORMATS, format_of
from service.errors import MalformedError, NoRoomError, NotFoundError
from service.names import check_name

UPLOADS_FOLDER = "uploads"
_PART = ".part"
_WRITE_BYTES = 4 << 20
_UPLOAD_ID = re.compile("[0-9a-f]{32}")


async def store_upload(data_dir: Path, name: str, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
    """Write a stream to the disk. Returns the upload's id and size in bytes. Raises MalformedError, NoRoomError."""
    check_name(name, "upload")
    if name.startswith("."):
        raise MalformedError(f"upload name {name!r} starts with a dot. Name it after its format, such as base.npy.")
    if format_of(Path(name)) is None:
        known = ", ".join(suffix for each in FORMATS for suffix in each.suffixes)
        ending = f"the suffix {Path(name).suffix!r}, which no reader knows" if Path(name).suffix else "no suffix"
        raise MalformedError(f"upload name {name!r} has {ending}. Name it after its format, with one of {known}.")
    upload = uuid.uuid4().hex
    folder = data_dir / UPLOADS_FOLDER / upload
    await asyncio.to_thread(folder.mkdir, parents=True)
    part = folder / _PART
    size = 0
    try:
        file = await asyncio.to_thread(os.open, part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            waiting = bytearray()
            async for chunk in chunks:
                waiting += chunk
                size += len(chunk)
                if len(waiting) >= _WRITE_BYTES:
                    await asyncio.to_thread(_write, file, bytes(waiting))
                    waiting.clear()
            await asyncio.to_thread(_write, file, bytes(waiting))
            await asyncio.to_thread(os.fsync, file)
        finally:
            os.close(file)
        await asyncio.to_thread(part.rename, folder / name)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoomError(f"No room for the upload in data_dir after {size:,} bytes. Free some there.") from None
        raise
    return upload, size


def upload_file(data_dir: Path, upload: str) -> Path:
    """The file of an upload. Raises NotFoundError."""
    folder = data_dir / UPLOADS_FOLDER / upload
    # The pattern keeps an id from being a path.
    found = list(folder.iterdir()) if _UPLOAD_ID.fullmatch(upload) and folder.is_dir() else []
    complete = [file for file in found if file.name != _PART]
    if not complete:
        raise NotFoundError(f"Upload {upload!r} does not exist. POST /v1/admin/uploads?name=... makes one.")
    return complete[0]


def list_uploads(data_dir: Path) -> list[dict[str, str | int]]:
    """Id, name and bytes of each complete upload."""
    rows: list[dict[str, str | int]] = []
    for folder in sorted((data_dir / UPLOADS_FOLDER).iterdir()):
        rows += [
            {"upload": folder.name, "name": file.name, "bytes": file.stat().st_size}
            for file in folder.iterdir()
            if file.name != _PART
        ]
    return rows


def delete_upload(data_dir: Path, upload: str) -> None:
    """Remove an upload. Raises NotFoundError."""
    shutil.rmtree(upload_file(data_dir, upload).parent)


def remove_parts(data_dir: Path) -> None:
    """At start: remove uploads that were cut off."""
    root = data_dir / UPLOADS_FOLDER
    root.mkdir(exist_ok=True)
    for folder in root.iterdir():
        if (folder / _PART).exists() or not any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


def _write(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
