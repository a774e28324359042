"""What is in a generation's folder.

Manifest                               the contents of manifest.json
write_manifest() / read_manifest()     written last; read first, and believed only when every file is there in full size

Not here: how a folder comes to its place (publication.py), the contents of files (check.py).
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from index.descriptor import KINDS, NotAFileError, open_regular
from index.errors import CorruptIndexError, CorruptReason, ReadFailedError, UnknownIndexError, UnsupportedFormatError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
MARKER_NAME = ".fullview-building"
"""An empty file in a folder under construction, and in one that is being replaced; elsewhere it means nothing."""
READ_IN_PARTS = ("vectors.bin", "payload/data.bin", "payload/columns.bin")
"""Files that opening does not read whole: searches read and verify parts of them."""
HEAD_BYTES = 64
"""Of those files opening compares the first bytes, where their headers are."""

_HASH_BLOCK_BYTES = 1 << 20


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of the folder: its bytes and their xxh3 (64 bits, 16 hex digits). head: xxh3 of its first HEAD_BYTES, only
    of READ_IN_PARTS."""

    size: int
    xxh3: str
    head: str | None = None


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
            name: _entry(path, head=name in READ_IN_PARTS)
            for path in files_of(folder)
            if (name := path.relative_to(folder).as_posix()) not in (MANIFEST_NAME, MARKER_NAME)
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
    manifest = _decode(_read(folder), folder / MANIFEST_NAME)
    for name, entry in manifest.files.items() if sizes else ():
        file = folder / name
        try:
            found = file.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise _corrupt(file, CorruptReason.MISSING, f"a file of {entry.size} bytes", "nothing", folder) from None
        except OSError as error:
            raise ReadFailedError(path=file, offset_bytes=0, error_number=error.errno or 0) from error
        if not stat.S_ISREG(found.st_mode):
            raise _corrupt(file, CorruptReason.HEADER, "a file", KINDS[stat.S_IFMT(found.st_mode)], folder)
        if found.st_size != entry.size:
            raise _corrupt(file, CorruptReason.SIZE, entry.size, found.st_size, folder)
    return manifest


def files_of(folder: Path) -> Iterator[Path]:
    """All files in a folder and its folders, in order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path


# --- inside -----------------------------------------------------------------------------------------------------


def _not_an_index(place: Path) -> UnknownIndexError:
    made = "an index is a folder that `fullview build SOURCE OUT` made"
    with contextlib.suppress(OSError):  # a name too long for any file
        if place.is_dir():
            return UnknownIndexError(f"{place} is not an index but a folder without {MANIFEST_NAME}; {made}.")
        if place.exists():
            return UnknownIndexError(f"{place} is not an index but a file; {made}.")
    return UnknownIndexError(f"{place} is not an index: nothing is there. `fullview build SOURCE {place}` makes one.")


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


def _read(folder: Path) -> bytes:
    """The bytes of manifest.json."""
    path = folder / MANIFEST_NAME
    try:
        with open(open_regular(path), "rb", buffering=0) as file:  # noqa: PTH123 (a descriptor)
            return file.readall()
    except NotAFileError as error:
        raise _corrupt(path, CorruptReason.HEADER, "a file", str(error), folder) from None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the path
        pass
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise ReadFailedError(path=path, offset_bytes=0, error_number=error.errno or 0) from error
            raise UnknownIndexError(
                f"{path} cannot be read by this user ({error.strerror}). Let them read the folder and all in it."
            ) from None
    raise _not_an_index(folder)


def _entry(path: Path, *, head: bool) -> FileEntry:
    digest, first = xxhash.xxh3_64(), None
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
            first = first or _hex(block[:HEAD_BYTES])
    return FileEntry(size=path.stat().st_size, xxh3=digest.hexdigest(), head=first if head else None)


def _hex(raw: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(raw)


def _corrupt(
    path: Path, reason: CorruptReason, expected: int | str, found: int | str, folder: Path
) -> CorruptIndexError:
    return CorruptIndexError(path=path, offset_bytes=0, reason=reason, expected=expected, found=found, folder=folder)
