"""The bytes of payload/columns.bin: a header, arrays, and a directory that says where each array is.

Section, ColumnEntry, Directory    what the directory holds, JSON at the end of the file
pack_header() / read_header()      the 64 bytes before everything

The header binds the directory (xxh3), the directory each array: whoever reads an array first compares it. docs/format.md
describes each byte.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from index.fullview.headers import require_version

FORMAT_VERSION = 1
COLUMNS_NAME = "columns.bin"
ALIGNMENT = 64
HEADER = struct.Struct("<8sIIQQQQ16x")
MAGIC = b"FVCOLUMN"


class Section(msgspec.Struct, frozen=True, array_like=True):
    """An array: where it begins, its NumPy dtype, its length, and the xxh3 (16 hexadecimal digits) of its bytes and the
    zeros up to the next multiple of ALIGNMENT."""

    at: int
    dtype: str
    length: int
    xxh3: str


class CellsEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Arrays of cells. kinds: a bit for each kind that occurs. rows: None where cell i is of row i; tags: None where all
    cells are of one kind."""

    kinds: int
    values: Section
    rows: Section | None = None
    tags: Section | None = None


class StringsEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Distinct strings, ascending: where each begins in `text` and where the last ends; times: None where none is one."""

    ends: Section
    text: Section
    times: Section | None = None


class ColumnEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column. strings: where they are kept; times: where they are hashed, rows and microseconds of those that are
    date-times."""

    path: list[str]
    cells: CellsEntry
    elements: CellsEntry | None = None
    strings: StringsEntry | None = None
    times: CellsEntry | None = None


class Directory(msgspec.Struct, frozen=True, omit_defaults=True):
    """columns: in order of their paths. spilled: rows with keys that have no column."""

    columns: list[ColumnEntry]
    spilled: Section | None = None


def pack_header(*, n: int, directory_at: int, directory_bytes: int, xxh3: int) -> bytes:
    """The header of a finished file."""
    return HEADER.pack(MAGIC, FORMAT_VERSION, 0, n, directory_at, directory_bytes, xxh3)


def read_header(raw: bytes, path: Path, folder: Path) -> tuple[int, int, int, int]:
    """(n, where the directory begins, its bytes, its xxh3). Raises CorruptIndexError, UnsupportedFormatError."""
    magic, version, _, n, directory_at, directory_bytes, xxh3 = HEADER.unpack(raw)
    require_version((magic, version), MAGIC, FORMAT_VERSION, path, folder=folder)
    return n, directory_at, directory_bytes, xxh3
