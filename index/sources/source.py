"""A source: shards that agree on dim and dtype, streamed as one sequence of rows.

open_source     path, folder, pattern or array -> VectorSource; everything that headers can tell is checked here
VectorSource    n, dim, dtype, and blocks(), which streams the rows as often as it is called
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from index.errors import OptionsError, ShapeMismatchError, SourceError
from index.sources.block import Array, Block
from index.sources.dtypes import common_dtype, convert, describe_conversion, stored_dtype
from index.sources.files import locate
from index.sources.registry import open_shard
from index.sources.shard import Chunk, Columns, Shard, check_dim, reading

BLOCK_BYTES = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSource:
    """Rows 0..n-1 of one or many files, or of an array.

    Threads: any number may stream at once, each from its own blocks(). Nothing is open between calls.
    """

    n: int
    dim: int
    dtype: np.dtype[Any]
    """As an index stores the vectors: float32, float16, int8 or uint8."""
    given_dtype: np.dtype[Any]
    """As the files hold them; the widest where shards differ. Native byte order."""
    format: str
    shards: list[tuple[str, int]]
    """(path, rows) of each file that has rows, in the order of the rows."""
    empty_shards: list[str]
    """Files without rows, which were passed over."""
    conversion: str | None
    """What a report says of the change from given_dtype to dtype, or None."""
    _files: tuple[Shard, ...]

    def blocks(self, max_rows: int | None = None, *, start: int = 0) -> Iterator[Block]:
        """Blocks from row `start` on, of at most max_rows rows and about 8 MB, each of rows of one file.

        Raises SourceError where a file turns out not to hold what its header says.
        """
        if max_rows is not None and max_rows < 1:
            raise OptionsError(f"max_rows is {max_rows}, needed 1 or more.")
        if start < 0:
            raise OptionsError(f"start is {start}, needed a row from 0 to {self.n}.")
        row = 0
        for shard in self._files:
            if start < row + shard.n:
                yield from self._blocks_of(shard, row, max(0, start - row), self._rows_per_block(shard, max_rows))
            row += shard.n

    def _rows_per_block(self, shard: Shard, max_rows: int | None) -> int:
        widest = max(shard.dtype.itemsize, self.dtype.itemsize)
        fitting = max(1, BLOCK_BYTES // (self.dim * widest))
        return fitting if max_rows is None else min(fitting, max_rows)

    def _blocks_of(self, shard: Shard, shard_start: int, first: int, rows: int) -> Iterator[Block]:
        with reading(shard.path, self.format):
            for chunk in shard.chunks(first, rows):
                vectors, flaws = convert(chunk.vectors, self.dtype)
                yield Block(
                    start=shard_start + first,
                    vectors=vectors,
                    file=str(shard.path),
                    file_start=first,
                    ids=chunk.ids,
                    payload=chunk.payload,
                    flaws=(*flaws, *chunk.flaws),
                )
                first += len(vectors)
                del chunk  # it may be a view that keeps a whole unpacked batch alive while the next is unpacked
        if first != shard.n:
            raise SourceError(f"{shard.path}: expected {shard.n} rows, found {first}. Was it changed meanwhile?")


def open_source(
    source: str | os.PathLike[str] | Array | VectorSource,
    *,
    vector: str | None = None,
    ids: str | None = None,
    payload: Sequence[str] | Literal["*"] | None = None,
) -> VectorSource:
    """Open a file, a folder of shards, a pattern ('wiki/*.parquet') or an array [n, dim] for streaming. A source
    is what it is.

    vector, ids, payload: names of columns (Parquet, Arrow), data sets (HDF5) or members (npz). vector=None: the only
    candidate. payload: names, or "*" for every other column.
    Raises SourceError, naming the file, for whatever headers and sizes show to be wrong, and where there is no row;
    ShapeMismatchError for an array that is not two-dimensional.
    """
    if isinstance(source, VectorSource):
        return source
    names = payload if payload is None or payload == "*" else (payload,) if isinstance(payload, str) else tuple(payload)
    columns = Columns(vector=vector, ids=ids, payload=names)
    if isinstance(source, np.ndarray):
        return _of_array(source, columns)
    if not isinstance(source, str | os.PathLike):
        raise SourceError(
            f"the source is a {type(source).__name__}, needed a path or a numpy array. numpy.asarray(...) makes one."
        )
    paths, form = locate(os.fspath(source))
    opened = [open_shard(path, form, columns) for path in paths]
    shards = [shard for shard in opened if shard.n]
    empty = [str(shard.path) for shard in opened if not shard.n]
    if not shards:
        patterns = ", ".join(f"*{suffix}" for suffix in form.suffixes)
        shown = ", ".join(empty[:5]) + (" ..." if len(empty) > 5 else "")
        raise SourceError(
            f"{source}: no row in {len(empty)} files, tried {patterns}: {shown}. At least one vector is needed."
        )
    return _of_shards(shards, empty, form.name)


def _of_shards(shards: list[Shard], empty: list[str], form: str) -> VectorSource:
    first = shards[0]
    for shard in shards[1:]:
        if shard.dim != first.dim:
            raise SourceError(
                f"{shard.path} has dim {shard.dim}, {first.path} has dim {first.dim}; all files of a source "
                "need one dim. Was the embedding model changed between them?"
            )
        if common_dtype([first.dtype, shard.dtype]) is None:
            raise SourceError(
                f"{shard.path} has dtype {shard.dtype.name}, {first.path} has dtype {first.dtype.name}; "
                "only floats mix. Convert one of them."
            )
    dtypes = [shard.dtype for shard in shards]
    common = common_dtype(dtypes)
    assert common is not None, "each pair has a common dtype, so all have"
    return VectorSource(
        n=sum(shard.n for shard in shards),
        dim=first.dim,
        dtype=common[1],
        given_dtype=common[0],
        format=form,
        shards=[(str(shard.path), shard.n) for shard in shards],
        empty_shards=empty,
        conversion=describe_conversion(dtypes, common[1]),
        _files=tuple(shards),
    )


@dataclass(frozen=True, slots=True)
class _ArrayShard:
    """A numpy array or memory map as a shard, sliced when asked."""

    array: Array
    path: Path

    @property
    def n(self) -> int:
        return int(self.array.shape[0])

    @property
    def dim(self) -> int:
        return int(self.array.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        for first in range(start, self.n, rows):
            # A view does not own its data, so convert() copies it: a block never refers to the caller's array.
            yield Chunk(self.array[first : first + rows])


def _of_array(array: Array, columns: Columns) -> VectorSource:
    if columns.any_named:
        raise SourceError("the source is an array, which has no named columns; pass ids and payload as arrays instead.")
    if np.ma.is_masked(array):
        raise SourceError("the source is a masked array with masked values; fill them or leave their rows out.")
    stored_dtype(array.dtype, where="array")
    if array.ndim != 2:
        raise ShapeMismatchError(f"the array has shape {array.shape}, needed two dimensions: (rows, dim).")
    if array.shape[0] == 0:
        raise SourceError(f"the array has shape {array.shape}: no row. At least one vector is needed.")
    check_dim("array", array.shape[1])
    # A memory map is named by its file, so that a bad row can be found there.
    name = getattr(array, "filename", None) if isinstance(array, np.memmap) else None
    plain = np.asarray(array).view(np.ndarray)
    return _of_shards([_ArrayShard(plain, Path(name) if name else Path("array"))], [], "array")
