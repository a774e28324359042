"""A collection as one file: everything that serves it, with a checksum of each part, and the way back.

write_snapshot()    generation folder and points.db -> one archive (tar), its description last
read_snapshot()     archive -> the same files in a folder, every one verified; nothing outside of it is ever touched
snapshot_path()     where a snapshot of a name lies

docs/format.md describes the file. Invariant: a snapshot under its name is complete; what was cut off is `.part`.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec
import xxhash

from service.errors import MalformedError, NotFoundError
from service.names import check_name

FORMAT_VERSION = 1
DESCRIPTION_NAME = "snapshot.json"
GENERATION_FOLDER = "generation"
STORE_NAME = "points.db"
SUFFIX = ".snapshot"
PART_SUFFIX = ".part"

_BLOCK_BYTES = 1 << 20
_DESCRIPTION_BYTES_MAX = 64 << 20
_NUMBER_MAX = 2**53
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}"
_INSIDE = re.compile(rf"({re.escape(STORE_NAME)}|{GENERATION_FOLDER}/({_NAME}/)?{_NAME})")

Check = Callable[[int, int], None]
"""Called with (bytes done, in all); may raise to stop."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a snapshot. xxh3: of its bytes."""

    size: int
    xxh3: str


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """snapshot.json: what the collection was."""

    format_version: int
    collection: str
    size: int
    distance: str
    config: msgspec.Raw
    generation: bool
    """False where nothing was built yet."""
    generation_number: int
    folded: int
    given_up: int
    sequence: int
    """Of the last write that is in it."""
    created_at: float
    files: dict[str, Part]


def snapshot_path(folder: Path, name: str) -> Path:
    """The complete snapshot of that name. Raises BadNameError, NotFoundError."""
    check_name(name, "snapshot")
    path = folder / name
    if not name.endswith(SUFFIX) or not path.is_file() or path.is_symlink():
        raise NotFoundError(f"Snapshot {name!r} does not exist. GET .../snapshots lists those that do.")
    return path


def write_snapshot(
    out: Path,
    *,
    generation: Path | None,
    store: Path | None,
    describe: Callable[[dict[str, Part]], Description],
    check: Check,
) -> None:
    """Write the archive to `out`, and synchronise it. check is called several times a second."""
    sources: dict[str, Path] = {}
    if generation is not None:
        files = sorted(file for file in generation.rglob("*") if file.is_file())
        sources = {f"{GENERATION_FOLDER}/{file.relative_to(generation).as_posix()}": file for file in files}
    if store is not None:
        sources[STORE_NAME] = store
    total = sum(file.stat().st_size for file in sources.values())
    done = 0
    parts: dict[str, Part] = {}
    with out.open("wb") as raw:
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, file in sources.items():
                size = file.stat().st_size
                digest = xxhash.xxh3_64()

                def note(count: int, digest: xxhash.xxh3_64 = digest) -> None:
                    nonlocal done
                    done += count
                    check(done, total)

                with file.open("rb") as content:
                    member = tarfile.TarInfo(name)
                    member.size = size
                    archive.addfile(member, _Hashed(content, digest, note))
                parts[name] = Part(size, digest.hexdigest())
            described = msgspec.json.encode(describe(parts))
            member = tarfile.TarInfo(DESCRIPTION_NAME)
            member.size = len(described)
            archive.addfile(member, io.BytesIO(described))
        raw.flush()
        os.fsync(raw.fileno())


def read_snapshot(path: Path, out: Path, *, check: Check) -> Description:
    """Unpack an archive into the folder `out`, which is made. Raises MalformedError naming what is wrong with it."""
    total, done, end = path.stat().st_size, 0, 0
    found: dict[str, Part] = {}
    described: bytes | None = None
    out.mkdir()
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                name = member.name
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if not _fits(member):
                    raise _bad(path, f"it holds {name!r}, which is no file of a snapshot")
                if name in found or described is not None:
                    raise _bad(path, f"{name!r} comes where nothing may come")
                content = archive.extractfile(member)
                assert content is not None, "a regular file has content"
                if name == DESCRIPTION_NAME:
                    if member.size > _DESCRIPTION_BYTES_MAX:
                        raise _bad(path, f"{name} has {member.size} bytes")
                    described = content.read()
                    continue
                target = out / PurePosixPath(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                digest = xxhash.xxh3_64()
                with target.open("xb") as file:
                    while block := content.read(_BLOCK_BYTES):
                        digest.update(block)
                        file.write(block)
                        done += len(block)
                        if done > total:
                            raise _bad(path, f"{name} holds more than the whole file")
                        check(min(done, total), total)
                    file.flush()
                    os.fsync(file.fileno())
                found[name] = Part(member.size, digest.hexdigest())
    except (tarfile.TarError, OverflowError, EOFError, UnicodeDecodeError, ValueError) as error:
        raise _bad(path, f"it is no tar archive, or was cut off ({error})") from None
    needed = -(-(end + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    if described is not None and total != needed:
        raise _bad(path, f"it has {total:,} bytes, {needed:,} are needed: it was cut off, or something was added")
    return _verified(path, described, found)


def sha256_of(path: Path) -> str:
    """What Qdrant calls the checksum of a snapshot."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def keep_upload(content: IO[bytes], out: Path) -> None:
    """Write an uploaded file to the disk."""
    with out.open("xb") as file:
        shutil.copyfileobj(content, file, _BLOCK_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _fits(member: tarfile.TarInfo) -> bool:
    """A plain file of a name that snapshots have. A sparse one would unpack to more than the archive holds."""
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    return plain and (member.name == DESCRIPTION_NAME or _INSIDE.fullmatch(member.name) is not None)


def _verified(path: Path, described: bytes | None, found: dict[str, Part]) -> Description:
    if described is None:
        raise _bad(path, f"it has no {DESCRIPTION_NAME} at its end: it was cut off")
    try:
        version = msgspec.json.decode(described, type=_Version).format_version
        if version > FORMAT_VERSION:
            raise _bad(path, f"it has format version {version}, this program reads up to {FORMAT_VERSION}")
        description = msgspec.json.decode(described, type=Description)
    except msgspec.DecodeError as error:
        raise _bad(path, f"{DESCRIPTION_NAME} cannot be read: {error}") from None
    for number in ("generation_number", "folded", "given_up", "sequence"):
        if not 0 <= getattr(description, number) <= _NUMBER_MAX:
            raise _bad(
                path, f"{number} in {DESCRIPTION_NAME} is {getattr(description, number)}, needed 0 to {_NUMBER_MAX}"
            )
    if max(description.folded, description.given_up) > description.sequence:
        raise _bad(path, f"{DESCRIPTION_NAME} says that more was folded or given up than was written")
    for name, part in description.files.items():
        if found.get(name) != part:
            have = found.get(name)
            raise _bad(path, f"{name} has {have.size if have else 'no'} bytes and checksum {have.xxh3 if have else '-'}, "
                             f"{part.size} bytes and {part.xxh3} are needed")  # fmt: skip
    extra = found.keys() - description.files.keys()
    if extra:
        raise _bad(path, f"it holds {min(extra)!r}, which its description does not name")
    return description


class _Version(msgspec.Struct):
    format_version: int


class _Hashed(io.RawIOBase):
    """A file whose bytes are hashed as they are read."""

    def __init__(self, content: IO[bytes], digest: xxhash.xxh3_64, note: Callable[[int], None]) -> None:
        self._content, self._digest, self._note = content, digest, note

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        block = self._content.read(min(size, _BLOCK_BYTES) if size >= 0 else -1)
        if size > len(block):
            block += self._content.read(size - len(block))
        self._digest.update(block)
        self._note(len(block))
        return block


def _bad(path: Path, why: str) -> MalformedError:
    return MalformedError(f"{path.name} cannot be restored: {why}. Nothing was changed; transfer the file again.")
