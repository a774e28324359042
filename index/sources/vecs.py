"""fvecs, bvecs, ivecs: each row is a record of an int32 dim and dim values (float32, uint8, int32), little-endian.

There is no header: the first record's dim gives the size of a record, and the file must be a whole number of them. The
dim of the last record is checked at once, those between as they stream by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.errors import SourceError
from index.sources.shard import DIM_MAX, Chunk, Columns, read_exactly
from index.sources.sniff import hint

_DTYPES = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}


@dataclass(frozen=True, slots=True)
class VecsShard:
    """A file of records."""

    path: Path
    n: int
    dim: int
    dtype: np.dtype[Any]

    @property
    def record_bytes(self) -> int:
        """One row with its dim."""
        return 4 + self.dim * self.dtype.itemsize

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` on; a record of another dim is refused."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(start * self.record_bytes)
            for first in range(start, self.n, rows):
                count = min(rows, self.n - first)
                records = read_exactly(file, np.empty((count, self.record_bytes), np.uint8), path=self.path)
                dims = records[:, :4].copy().view("<i4")[:, 0]
                wrong = np.flatnonzero(dims != self.dim)
                if wrong.size:
                    raise _other_dim(self.path, first + int(wrong[0]), int(dims[wrong[0]]), self.dim)
                # A view past the dim of each record; unaligned values are copied out by the conversion.
                yield Chunk(np.ascontiguousarray(records[:, 4:]).view(self.dtype))


def open_shard(path: Path, columns: Columns) -> VecsShard:
    """Check the first and last dim, and that the file is whole records."""
    suffix = path.suffix.lower()
    dtype = np.dtype(_DTYPES[suffix])
    size = path.stat().st_size
    if size == 0:
        return VecsShard(path=path, n=0, dim=0, dtype=dtype)
    with path.open("rb") as file:
        dim = int.from_bytes(file.read(4), "little", signed=True)
        record = 4 + dim * dtype.itemsize
        looks = hint(path, suffix[1:])
        if not 1 <= dim <= DIM_MAX or size < 4:
            raise SourceError(
                f"{path}: the first record of {suffix[1:]} says dim {dim}, needed 1 to {DIM_MAX}; "
                f"the file has {size} bytes.{looks}"
            )
        n, rest = divmod(size, record)
        if rest:
            raise SourceError(
                f"{path}: records of dim {dim} take {record} bytes, expected {n * record} bytes ({n} rows) or "
                f"{(n + 1) * record} ({n + 1} rows), found {size}.{looks} Was it cut while being copied?"
            )
        file.seek(size - record)
        last = int.from_bytes(file.read(4), "little", signed=True)
    if last != dim:
        raise _other_dim(path, n - 1, last, dim, looks)
    return VecsShard(path=path, n=n, dim=dim, dtype=dtype)


def _other_dim(path: Path, row: int, found: int, dim: int, looks: str = "") -> SourceError:
    return SourceError(f"{path}: row {row} says dim {found}, row 0 says {dim}; all rows need one dim.{looks}")
