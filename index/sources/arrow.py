"""Arrow IPC, which is also Feather V2: files with a footer, and streams (what Hugging Face datasets caches are).

The file is mapped and batches are cut into slices without copying, however large a batch is; after each chunk its
pages are given back, so that a large file does not count as resident memory. A compressed batch is unpacked whole:
writers choose its size (Feather: 65,536 rows).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from index.errors import SourceError
from index.sources.columns import ChosenColumns, choose, dim_of, to_chunk
from index.sources.shard import Chunk, Columns, reading

_ERRORS = (pa.ArrowException, ValueError, IndexError)
_FILE_MAGIC = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True, slots=True)
class ArrowShard:
    """An Arrow file or stream and the columns of it that are read."""

    path: Path
    columns: ChosenColumns
    n: int
    dim: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a component."""
        return self.columns.dtype

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` on, in slices of batches."""
        with reading(self.path, "Arrow", *_ERRORS), _mapped(self.path) as mapped:
            first = 0
            for batch in _batches(mapped, self.columns.names):
                batch.validate(full=True)  # offsets of a damaged file may point anywhere
                for at in range(max(0, start - first), batch.num_rows, rows):
                    yield to_chunk(self.columns, self.dim, batch.slice(at, rows), first + at)
                    mapped.madvise(mmap.MADV_DONTNEED)
                first += batch.num_rows
                del batch  # before the next one is unpacked


def open_shard(path: Path, columns: Columns) -> ArrowShard:
    """Read the schema, count the rows from the batches' headers, and find the dimension."""
    with reading(path, "Arrow", *_ERRORS), _mapped(path) as mapped:
        chosen = choose(path, _schema(mapped), columns)
        # A stream that was cut between two batches reads as a shorter one, but for its end mark.
        if not _has_footer(mapped) and mapped[-len(_STREAM_END) :] != _STREAM_END:
            raise SourceError(f"{path}: the Arrow stream has no end mark: it was cut, or its writer was never closed.")
        n = _row_count(mapped, chosen.vector)
        if n == 0:
            return ArrowShard(path=path, columns=chosen, n=0, dim=0)
        probe = (batch.column(chosen.vector).slice(0, 256) for batch in _batches(mapped, [chosen.vector]))
        return ArrowShard(path=path, columns=chosen, n=n, dim=dim_of(chosen, probe))


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise SourceError(f"{path}: the file has 0 bytes, needed an Arrow file or stream.")
        # Not closed here: batches that a caller still holds refer to it, and it ends with the last of them.
        yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _schema(mapped: mmap.mmap) -> pa.Schema:
    source = pa.BufferReader(pa.py_buffer(mapped))
    return (pa.ipc.open_file(source) if _has_footer(mapped) else pa.ipc.open_stream(source)).schema


def _has_footer(mapped: mmap.mmap) -> bool:
    """True for the file format, False for a stream."""
    return mapped[: len(_FILE_MAGIC)] == _FILE_MAGIC


def _row_count(mapped: mmap.mmap, vector: str) -> int:
    """From the batches' headers where the library offers that (pyarrow 21 does), else from the batches."""
    source = pa.BufferReader(pa.py_buffer(mapped))
    if _has_footer(mapped):
        count_rows = getattr(pa.ipc.open_file(source), "count_rows", None)
        if count_rows is not None:
            return int(count_rows())
    return sum(batch.num_rows for batch in _batches(mapped, [vector]))


def _batches(mapped: mmap.mmap, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Record batches with these columns."""
    source = pa.BufferReader(pa.py_buffer(mapped))
    # IpcReadOptions(included_fields=...) would skip other columns, but copies what it reads: a whole batch in memory.
    if _has_footer(mapped):
        reader = pa.ipc.open_file(source)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index).select(names)
    else:
        for batch in pa.ipc.open_stream(source):
            yield batch.select(names)
            del batch  # before the next one is unpacked
