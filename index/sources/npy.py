"""npy: one array a file, read by slices.

A header (dtype, shape, memory order) and then nothing but the values, so rows are read where they lie: a slice of a
C-order file is one read, a slice of a Fortran-order file is one read a dimension. Plain reads, no mapping: a mapped
file of any size would count as resident memory as far as it was read. Pickled objects are
refused by their dtype and never loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from index.errors import SourceError
from index.sources.block import Array
from index.sources.dtypes import stored_dtype
from index.sources.shard import Chunk, Columns, check_dim, read_exactly
from index.sources.sniff import hint

_MAGIC = b"\x93NUMPY"
_HEADER_MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """shape, dtype and memory order of an array, and where its values begin."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    data_offset: int

    @property
    def file_bytes(self) -> int:
        """Header and values."""
        return self.data_offset + int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class NpyShard:
    """A two-dimensional npy file."""

    path: Path
    header: NpyHeader
    n: int
    dim: int
    dtype: np.dtype[Any]

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` on, each chunk read when asked for."""
        with self.path.open("rb", buffering=0) as file:
            for first in range(start, self.n, rows):
                yield Chunk(read_rows(file, self.header, first, min(first + rows, self.n), path=self.path))


def open_shard(path: Path, columns: Columns) -> NpyShard:
    """Check dtype, shape and size of an npy file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = read_header(file, where=str(path), path=path)
    n, dim = check_header(header, size, where=str(path), path=path)
    return NpyShard(path=path, header=header, n=n, dim=dim, dtype=header.dtype)


def read_header(file: BinaryIO, *, where: str, path: Path) -> NpyHeader:
    """Parse the header at the file's position 0. Refuses what is not npy, or ends inside the header."""
    start = file.read(12)
    if start[:6] != _MAGIC:
        found = f"{len(start)} bytes" if len(start) < 6 else f"the bytes {start[:6]!r}"
        raise SourceError(f"{where}: an npy file begins with {_MAGIC!r}, found {found}.{hint(path, 'npy')}")
    length_bytes = 2 if start[6:7] == b"\x01" else 4
    if start[6:7] not in (b"\x01", b"\x02", b"\x03") or len(start) < 12:
        raise SourceError(f"{where}: npy version {start[6:8]!r} or a cut header; versions 1, 2 and 3 are read.")
    length = int.from_bytes(start[8 : 8 + length_bytes], "little")
    offset = 8 + length_bytes + length
    text = start[8 + length_bytes :] + file.read(max(0, min(length, _HEADER_MAX_BYTES) - (4 - length_bytes)))
    if len(text) != length:
        raise SourceError(
            f"{where}: the npy header takes {length} bytes, found {len(text)}. The file is cut or damaged."
        )
    try:
        said = ast.literal_eval(text.decode("utf-8" if start[6] == 3 else "latin1").strip())
        dtype = np.lib.format.descr_to_dtype(said["descr"])
        shape = tuple(int(length) for length in said["shape"])
        fortran = bool(said["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise SourceError(f"{where}: the npy header does not parse ({error}). The file is damaged.") from error
    return NpyHeader(shape=shape, dtype=dtype, fortran=fortran, data_offset=offset)


def check_header(header: NpyHeader, size: int, *, where: str, path: Path) -> tuple[int, int]:
    """(n, dim) of an array of vectors; (0, 0) for an empty one. `size`: bytes of the file or member."""
    # The dtype first: objects have no size that could be checked, and a string is refused for what it is.
    stored_dtype(header.dtype, where=where)
    if any(length < 0 for length in header.shape):
        raise SourceError(f"{where}: shape {header.shape} is negative. The header is damaged.")
    if header.file_bytes != size:
        raise SourceError(
            f"{where}: header says shape {header.shape} of {header.dtype.name}, expected {header.file_bytes} bytes, "
            f"found {size}.{hint(path, 'npy')} Was it cut while being copied?"
        )
    if header.shape[:1] == (0,):
        return 0, 0
    if len(header.shape) != 2:
        raise SourceError(f"{where}: shape is {header.shape}, needed two dimensions: (rows, dim).")
    n, dim = header.shape
    check_dim(where, dim)
    return n, dim


def read_rows(file: BinaryIO, header: NpyHeader, start: int, stop: int, *, path: Path, base: int = 0) -> Array:
    """Entries start..stop along the first axis of an array whose npy header lies at byte `base` of the file.

    Fortran order: of one- and two-dimensional arrays only.
    """
    n, row_shape = header.shape[0], header.shape[1:]
    data, width = base + header.data_offset, header.dtype.itemsize
    if not header.fortran or not row_shape:
        out = np.empty((stop - start, *row_shape), header.dtype)
        file.seek(data + start * int(np.prod(row_shape, dtype=np.int64)) * width)
        return read_exactly(file, out, path=path)
    (dim,) = row_shape
    turned = np.empty((dim, stop - start), header.dtype)
    for column in range(dim):
        file.seek(data + (column * n + start) * width)
        read_exactly(file, turned[column], path=path)
    return turned.T
