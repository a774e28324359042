"""What a file looks like, whatever its name says: for hints in errors, never for reading.

A format with magic bytes is told by them. The others (fvecs, bvecs, fbin, ...) have none, but their sizes follow from
their first bytes, so a file that fits one of them exactly is very likely one.
"""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = (
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "npz"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow"),
    (b"FEA1", "Feather V1"),
    (b"\x1f\x8b", "gzip (unpack it first)"),
    (b"(\xb5/\xfd", "zstd (unpack it first)"),
    (b"version https://git-lfs", "a Git LFS pointer (run `git lfs pull`)"),
)
_RECORD_WIDTHS = (("fvecs", 4), ("bvecs", 1))
_BIN_WIDTHS = (("fbin", 4), ("u8bin", 1))


def looks_like(path: Path) -> str | None:
    """The format that the file's first bytes and size fit, or None."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(32)
            for magic, name in _MAGIC:
                if head.startswith(magic):
                    return name
            if len(head) < 8:
                return None
            dim = struct.unpack_from("<i", head)[0]
            for name, width in _RECORD_WIDTHS:
                record = 4 + dim * width
                if 1 <= dim <= 65_536 and size % record == 0:
                    file.seek(size - record)
                    if file.read(4) == head[:4]:
                        return name
    except OSError:
        return None
    n, dim = struct.unpack_from("<II", head)
    for name, width in _BIN_WIDTHS:
        if n and dim and size == 8 + n * dim * width:
            return name
    return None


def hint(path: Path, format_name: str) -> str:
    """' It looks like fvecs.' where the file looks like another format than `format_name`, else ''."""
    found = looks_like(path)
    return f" The file looks like {found}." if found and found != format_name else ""
