"""HDF5: one data set is the vectors, others may be ids and payload columns.

Data sets are read by slices of rows. An HDF5 file can point to other files (external links, external storage, virtual
data sets); all three are refused, so that reading a file reads that file and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from index.errors import SourceError
from index.sources.dtypes import stored_dtype
from index.sources.members import Member, MemberColumns, choose_vectors
from index.sources.shard import Chunk, Columns, check_dim, reading

_ERRORS = (RuntimeError, ValueError, KeyError, TypeError)
# Chunks of a data set may hold more rows than a block: without room for one, each would be unpacked once a block.
_CHUNK_CACHE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Hdf5Shard:
    """A two-dimensional data set and the columns beside it."""

    path: Path
    name: str
    columns: MemberColumns
    n: int
    dim: int
    dtype: np.dtype[Any]

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` on, with their ids and payload."""
        with reading(self.path, "HDF5", *_ERRORS), _open(self.path) as file:
            for first in range(start, self.n, rows):
                stop = min(first + rows, self.n)
                read = {name: file[name][first:stop] for name in dict.fromkeys((self.name, *self.columns.named))}
                yield Chunk(read[self.name], *self.columns.rows(stop - first, read.__getitem__))


def open_shard(path: Path, columns: Columns) -> Hdf5Shard:
    """Choose the data sets; check their shapes, dtypes, and that they lie in this file."""
    with reading(path, "HDF5", *_ERRORS), _open(path) as file:
        members = _members(file)
        name = choose_vectors(path, "data set", columns.vector, members)
        shape, dtype, is_text = members[name]
        where = f"{path}, data set {name!r}"
        if is_text:
            raise SourceError(f"{where}: dtype is string, needed float16, float32, float64 or an integer type.")
        stored_dtype(dtype, where=where)
        if shape[:1] != (0,):
            if len(shape) != 2:
                raise SourceError(f"{where}: shape is {shape}, needed two dimensions: (rows, dim).")
            check_dim(where, shape[1])
        n, dim = (0, 0) if shape[:1] == (0,) else shape
        beside = MemberColumns.of(path, "data set", columns, name, members)
        for each in (name, *beside.named):
            _refuse_outside_data(path, each, file[each])
    return Hdf5Shard(path=path, name=name, columns=beside, n=n, dim=dim, dtype=dtype)


def _open(path: Path) -> h5py.File:
    return h5py.File(path, "r", rdcc_nbytes=_CHUNK_CACHE_BYTES)


def _members(file: h5py.File) -> dict[str, Member]:
    """Every data set of the file by its path. visititems() follows no links, so nothing outside is ever opened."""
    members: dict[str, Member] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            is_text = item.dtype.kind == "S" or h5py.check_string_dtype(item.dtype) is not None
            members[name] = Member(item.shape, item.dtype, is_text)

    file.visititems(visit)
    return members


def _refuse_outside_data(path: Path, name: str, dataset: h5py.Dataset) -> None:
    if dataset.external or dataset.is_virtual:
        raise SourceError(
            f"{path}, data set {name!r}: its values lie in other files. Copy them into this one (h5repack does)."
        )
