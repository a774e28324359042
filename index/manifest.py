"""What is in a generation's folder, and how a folder appears: whole, or not at all.

Manifest                               the contents of manifest.json
write_manifest() / read_manifest()     written last; read first, and believed only when every file is there in full size
temporary_sibling() / publish()        build beside the final place, then fsync everything and rename
discard() / remove_leftovers()         what a cancelled or killed build leaves

A folder under construction is locked (flock) by the process that builds it, and the lock dies with the process: so a
leftover is a folder that can be locked. Process ids would not do: containers that share a disk reuse them.

Not here: reading the contents of files (check.py does it for all of them).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from index.errors import CorruptIndexError, CorruptReason, IndexExistsError, UnknownIndexError, UnsupportedFormatError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"

_BUILDING = ".building-"
_HASH_BLOCK_BYTES = 1 << 20
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


class FileEntry(msgspec.Struct, frozen=True):
    """A file of the folder: its bytes and their xxh3 (64 bits, 16 hex digits)."""

    size: int
    xxh3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation's folder says about itself.

    preview_parameters, operating_points, promise and extras are JSON of whoever wrote them. files: path with slashes,
    relative to the folder -> FileEntry. created_at: ISO 8601, UTC.
    """

    format_version: int
    n: int
    dim: int
    dtype: str
    metric: str
    preview: str
    preview_parameters: dict[str, Any]
    operating_points: list[dict[str, Any]]
    promise: dict[str, Any]
    files: dict[str, FileEntry]
    created_at: str
    extras: dict[str, Any] = {}


class _Envelope(msgspec.Struct):
    # The version stands outside, so that it can be read when the rest has changed; the rest stays raw, so that its
    # checksum is over the bytes as they are in the file.
    format_version: int
    xxh3: str
    manifest: msgspec.Raw


class _VersionOnly(msgspec.Struct):
    format_version: int


def write_manifest(
    folder: Path | str,
    *,
    n: int,
    dim: int,
    dtype: str,
    metric: str,
    preview: str,
    preview_parameters: Mapping[str, Any],
    operating_points: list[dict[str, Any]],
    promise: Mapping[str, Any],
    extras: Mapping[str, Any] | None = None,
    created_at: str | None = None,
) -> Manifest:
    """Hash every file of the folder and write manifest.json. The last thing before publish()."""
    folder = Path(folder)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        n=n,
        dim=dim,
        dtype=dtype,
        metric=metric,
        preview=preview,
        preview_parameters=dict(preview_parameters),
        operating_points=operating_points,
        promise=dict(promise),
        files={
            path.relative_to(folder).as_posix(): _entry(path)
            for path in _files(folder)
            if path != folder / MANIFEST_NAME
        },
        created_at=created_at or datetime.now(UTC).isoformat(timespec="seconds"),
        extras=dict(extras or {}),
    )
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    envelope = _Envelope(format_version=FORMAT_VERSION, xxh3=_hex(body), manifest=msgspec.Raw(body))
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(envelope) + b"\n")
    return manifest


def read_manifest(folder: Path | str, *, sizes: bool = True) -> Manifest:
    """The manifest of the generation in `folder`, whose files are all there in full size.

    Raises UnknownIndexError where there is none, UnsupportedFormatError for another format version (nothing is
    touched), CorruptIndexError for a damaged manifest and for a missing or truncated file. Contents: check.py.
    sizes: False leaves the files unseen.
    """
    folder = Path(folder)
    path = folder / MANIFEST_NAME
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UnknownIndexError(
            f"{folder} holds no {MANIFEST_NAME}, so it is not an index. `fullview build SOURCE {folder}` makes one."
        ) from None
    manifest = _decode(raw, path)
    for name, entry in manifest.files.items() if sizes else ():
        file = folder / name
        try:
            size = file.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise _corrupt(file, CorruptReason.MISSING, f"a file of {entry.size} bytes", "nothing", folder) from None
        if size != entry.size:
            raise _corrupt(file, CorruptReason.SIZE, entry.size, size, folder)
    return manifest


def temporary_sibling(final: Path | str) -> Path:
    """A new, empty, locked folder beside `final`, for publish() or discard(). Raises OSError where none can be made."""
    final = Path(final).absolute()
    final.parent.mkdir(parents=True, exist_ok=True)
    while True:
        temporary = final.parent / f".{final.name}{_BUILDING}{secrets.token_hex(4)}"
        temporary.mkdir()
        try:
            fd = _lock(temporary)
        except OSError:
            return temporary  # a file system without locks; there remove_leftovers() spares everything
        # Between mkdir and lock another process may have taken it for a leftover: then begin again.
        if fd is not None and temporary.exists():
            _LOCKS[temporary] = fd
            return temporary
        if fd is not None:
            os.close(fd)


def publish(temporary: Path | str, final: Path | str, *, replace: bool = False) -> None:
    """Put the folder at its final place: everything is on the device first, then one rename.

    Raises IndexExistsError where something non-empty is at `final`, unless replace, which exchanges the two in one step
    and removes the old one; who has it open keeps reading it. After an error `temporary` is still there: discard() it.
    """
    temporary, final = Path(temporary).absolute(), Path(final).absolute()
    for path in _files(temporary):
        _fsync(path)
    for path in [*(path for path in temporary.rglob("*") if path.is_dir()), temporary]:
        _fsync(path)
    old = None
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if not replace:
            raise IndexExistsError(
                f"{final} is already there, the index was not put in its place. Remove it, choose another place, or "
                "build with replace=True."
            ) from None
        old = _exchange(temporary, final)
    _fsync(final.parent)
    if old is not None:
        _remove(old)
    _unlock(temporary)


def discard(temporary: Path | str) -> None:
    """Remove a folder of temporary_sibling() that will not be published."""
    temporary = Path(temporary).absolute()
    _remove(temporary)
    _unlock(temporary)


def remove_leftovers(parent: Path | str) -> list[Path]:
    """Remove what killed builds left in a folder, and say what it was. Running builds, of anyone, are spared."""
    removed = []
    for path in sorted(Path(parent).glob(f".*{_BUILDING}*")):
        try:
            fd = _lock(path)
        except OSError:
            continue  # a file system without locks: nobody knows whether it is a leftover
        if fd is not None:
            _remove(path)
            os.close(fd)
            removed.append(path)
    return removed


# --- inside -----------------------------------------------------------------------------------------------------

# Descriptors that hold the locks of this process's temporary folders: a lock lasts as long as its descriptor is open.
_LOCKS: dict[Path, int] = {}


def _decode(raw: bytes, path: Path) -> Manifest:
    try:
        version = msgspec.json.decode(raw, type=_VersionOnly).format_version
        if version != FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"{path} has format version {version}, this program reads version {FORMAT_VERSION}. "
                "Nothing was changed. Use the fullview that wrote it, or build the index again."
            )
        envelope = msgspec.json.decode(raw, type=_Envelope)
        found = _hex(bytes(envelope.manifest))
        if found != envelope.xxh3:
            raise _corrupt(path, CorruptReason.CHECKSUM, envelope.xxh3, found, path.parent)
        return msgspec.json.decode(envelope.manifest, type=Manifest)
    except msgspec.MsgspecError as error:
        raise _corrupt(path, CorruptReason.HEADER, "a manifest", str(error), path.parent) from None


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path


def _entry(path: Path) -> FileEntry:
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return FileEntry(size=path.stat().st_size, xxh3=digest.hexdigest())


def _hex(raw: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(raw)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where it is gone or someone else's. OSError: no locks here."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


def _unlock(folder: Path) -> None:
    fd = _LOCKS.pop(folder, None)
    if fd is not None:
        os.close(fd)


def _exchange(temporary: Path, final: Path) -> Path:
    """Swap the two; returns where the old one is now."""
    if sys.platform == "linux":
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is not None:
            names = os.fsencode(temporary), os.fsencode(final)
            if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
                return temporary
    # Where the system cannot exchange there is a moment without either; a crash in it leaves the old one aside.
    aside = final.parent / f".{final.name}.old-{secrets.token_hex(4)}"
    final.rename(aside)
    temporary.rename(final)
    return aside


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # Twice: another process may be removing it too.
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _corrupt(
    path: Path, reason: CorruptReason, expected: int | str, found: int | str, folder: Path
) -> CorruptIndexError:
    return CorruptIndexError(path=path, offset_bytes=0, reason=reason, expected=expected, found=found, folder=folder)
