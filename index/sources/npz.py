"""npz: a zip of npy members; one is the vectors, others may be ids and payload columns.

A stored member (numpy.savez) is read where it lies in the archive. A compressed one (savez_compressed) is unpacked as
it is streamed; only if it is also in Fortran order, where a row is scattered over the member, is it unpacked once into
an unnamed file in the system's folder for temporary files (TMPDIR).
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from index.errors import SourceError
from index.sources.members import Member, MemberColumns, choose_vectors
from index.sources.npy import NpyHeader, check_header, read_header, read_rows
from index.sources.shard import Chunk, Columns, read_exactly, reading

_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
_LOCAL_HEADER_BYTES = 30


@dataclass(frozen=True, slots=True)
class NpzShard:
    """The member of an npz file that holds vectors, and the columns beside it."""

    path: Path
    member: str
    headers: dict[str, NpyHeader]
    columns: MemberColumns
    n: int
    dim: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the vectors."""
        return self.headers[self.member].dtype

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` on, with their ids and payload."""
        with reading(self.path, "npz", *_ERRORS), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            names = dict.fromkeys((self.member, *self.columns.named))
            files = {name: _seekable(stack, archive, self.path, name, self.headers[name]) for name in names}
            for first in range(start, self.n, rows):
                stop = min(first + rows, self.n)
                read = {
                    name: read_rows(file, self.headers[name], first, stop, path=self.path, base=base)
                    for name, (file, base) in files.items()
                }
                yield Chunk(read[self.member], *self.columns.rows(stop - first, read.__getitem__))


def open_shard(path: Path, columns: Columns) -> NpzShard:
    """Choose the member and check headers against sizes, of the members that are used."""
    with reading(path, "npz", *_ERRORS), zipfile.ZipFile(path) as archive:
        headers = {}
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                with archive.open(info) as file:
                    where = f"{path}, member {info.filename!r}"
                    headers[info.filename[:-4]] = read_header(cast(BinaryIO, file), where=where, path=path)
        members = {
            name: Member(header.shape, header.dtype, header.dtype.kind in "US") for name, header in headers.items()
        }
        member = choose_vectors(path, "member", columns.vector, members)
        n, dim = check_header(
            headers[member], _member_bytes(archive, path, member), where=f"{path}, member {member!r}", path=path
        )
        beside = MemberColumns.of(path, "member", columns, member, members)
        for name in beside.named:
            _check_column(archive, path, name, headers[name])
    return NpzShard(path=path, member=member, headers=headers, columns=beside, n=n, dim=dim)


def _member_bytes(archive: zipfile.ZipFile, path: Path, name: str) -> int:
    """Bytes of a member when unpacked."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise SourceError(f"{path}, member {name!r}: expected {info.file_size} bytes, found {info.compress_size}.")
    return info.file_size


def _check_column(archive: zipfile.ZipFile, path: Path, name: str, header: NpyHeader) -> None:
    found = _member_bytes(archive, path, name)
    if found != header.file_bytes:
        raise SourceError(f"{path}, member {name!r}: expected {header.file_bytes} bytes, found {found}.")
    if header.fortran and len(header.shape) > 2:
        raise SourceError(
            f"{path}, member {name!r}: {len(header.shape)} dimensions in Fortran order; save it in C order."
        )


def _seekable(
    stack: ExitStack, archive: zipfile.ZipFile, path: Path, name: str, header: NpyHeader
) -> tuple[BinaryIO, int]:
    """(file, byte in it where the member's npy header lies), cheap to read in the order that chunks() reads."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        file = stack.enter_context(path.open("rb", buffering=0))
        return file, _data_offset(file, info, path)
    member = stack.enter_context(archive.open(info))
    if not header.fortran:
        return cast(BinaryIO, member), 0  # seeks forward only, by unpacking
    unpacked = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (the stack closes it)
    shutil.copyfileobj(member, unpacked, 1 << 20)
    return cast(BinaryIO, unpacked), 0


def _data_offset(file: BinaryIO, info: zipfile.ZipInfo, path: Path) -> int:
    """Where a stored member's bytes begin: after a local header whose two last fields are lengths."""
    file.seek(info.header_offset)
    head = read_exactly(file, np.empty(_LOCAL_HEADER_BYTES, np.uint8), path=path).tobytes()
    name_bytes, extra_bytes = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
    return info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
