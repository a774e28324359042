"""fbin, u8bin, i8bin: uint32 n, uint32 dim, then n * dim values (float32, uint8, int8), little-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.errors import SourceError
from index.sources.shard import Chunk, Columns, check_dim, read_exactly
from index.sources.sniff import hint

_DTYPES = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}
_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class BinShard:
    """A header and a C-order matrix."""

    path: Path
    n: int
    dim: int
    dtype: np.dtype[Any]

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` on."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(_HEADER_BYTES + start * self.dim * self.dtype.itemsize)
            for first in range(start, self.n, rows):
                out = np.empty((min(rows, self.n - first), self.dim), self.dtype)
                yield Chunk(read_exactly(file, out, path=self.path))


def open_shard(path: Path, columns: Columns) -> BinShard:
    """Check the header against the size of the file."""
    suffix = path.suffix.lower()
    dtype = np.dtype(_DTYPES[suffix])
    size = path.stat().st_size
    looks = hint(path, suffix[1:])
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES:
        raise SourceError(f"{path}: the header of {suffix[1:]} takes {_HEADER_BYTES} bytes, found {size}.{looks}")
    n, dim = struct.unpack("<II", head)
    expected = _HEADER_BYTES + n * dim * dtype.itemsize
    if expected != size:
        raise SourceError(
            f"{path}: header says n={n} d={dim}, expected {expected} bytes, found {size}.{looks} "
            "Was it cut while being copied, or is it another format?"
        )
    if n:
        check_dim(path, dim)
    return BinShard(path=path, n=n, dim=dim, dtype=dtype)
