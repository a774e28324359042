"""The first bytes of vectors.bin and vectors.sum: what they are, their version, and the layout they were written with.

vector_header() / check_vector_header()   the header page
sum_header() / check_sum_header()         the 32 bytes before the checksums

Written once, compared before anything else is believed. docs/format.md describes each byte.
"""

from __future__ import annotations

import struct
from pathlib import Path

from index.errors import CorruptIndexError, CorruptReason, UnsupportedFormatError
from index.fullview.layout import PAGE_BYTES, PageLayout

FORMAT_VERSION = 1
VECTORS_NAME = "vectors.bin"
SUMS_NAME = "vectors.sum"
SUM_HEADER_BYTES = 32

_VECTOR_MAGIC = b"FVVECTOR"
_SUM_MAGIC = b"FVCHECKS"
_VECTOR_FIELDS = struct.Struct("<8sIIQIIIIIIQ")
_VECTOR_NAMES = (
    "magic", "format version", "page bytes", "n", "dim", "dtype", "vectors per page", "pages per vector",
    "ids in pages", "reserved", "pages",
)  # fmt: skip
_VECTOR_OFFSETS = (0, 8, 12, 16, 24, 28, 32, 36, 40, 44, 48)
_SUM_FIELDS = struct.Struct("<8sIIQQ")


def vector_header(layout: PageLayout) -> bytes:
    """The header page, 4,096 bytes."""
    return _VECTOR_FIELDS.pack(*_vector_values(layout)).ljust(PAGE_BYTES, b"\0")


def check_vector_header(header: bytes, layout: PageLayout, path: Path) -> None:
    """Raises UnsupportedFormatError for another version, CorruptIndexError for what does not fit the layout."""
    found = _VECTOR_FIELDS.unpack_from(header)
    require_version((found[0], found[1]), _VECTOR_MAGIC, FORMAT_VERSION, path)
    for name, offset, expected, value in zip(
        _VECTOR_NAMES, _VECTOR_OFFSETS, _vector_values(layout), found, strict=True
    ):
        if expected != value:
            raise CorruptIndexError(
                path=path,
                offset_bytes=offset,
                reason=CorruptReason.HEADER,
                expected=f"{name} {expected!r}",
                found=f"{name} {value!r}",
            )


def sum_header(*, count: int, xxh3: int) -> bytes:
    """The 32 bytes before `count` checksums whose bytes have this xxh3 (64 bits)."""
    return _SUM_FIELDS.pack(_SUM_MAGIC, FORMAT_VERSION, PAGE_BYTES, count, xxh3)


def check_sum_header(header: bytes, *, count: int, path: Path) -> int:
    """The xxh3 that the checksums must have. Raises as check_vector_header does."""
    magic, version, page_bytes, found_count, xxh3 = _SUM_FIELDS.unpack_from(header)
    require_version((magic, version), _SUM_MAGIC, FORMAT_VERSION, path)
    if (page_bytes, found_count) != (PAGE_BYTES, count):
        raise CorruptIndexError(
            path=path,
            offset_bytes=12,
            reason=CorruptReason.HEADER,
            expected=f"{count} pages of {PAGE_BYTES} bytes",
            found=f"{found_count} pages of {page_bytes} bytes",
        )
    return int(xxh3)


def require_version(
    found: tuple[bytes, int], magic: bytes, supported: int, path: Path, *, folder: Path | None = None
) -> None:
    """The first 12 bytes of a file of ours: its magic and a version that this program reads.

    folder: the index, where it is not the file's parent.
    """
    if found[0] != magic:
        raise CorruptIndexError(
            path=path,
            offset_bytes=0,
            reason=CorruptReason.HEADER,
            expected=f"{magic!r}",
            found=f"{found[0]!r}",
            folder=folder,
        )
    if found[1] != supported:
        raise UnsupportedFormatError(
            f"{path} has format version {found[1]}, this program reads version {supported}. "
            "Nothing was changed. Use the fullview that wrote it, or build the index again."
        )


def _vector_values(layout: PageLayout) -> tuple[bytes | int, ...]:
    return (
        _VECTOR_MAGIC,
        FORMAT_VERSION,
        PAGE_BYTES,
        layout.n,
        layout.dim,
        int(layout.dtype_code),
        layout.vectors_per_page,
        layout.pages_per_vector,
        int(layout.ids_in_pages),
        0,
        layout.n_pages,
    )
