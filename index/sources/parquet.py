"""Parquet: a list column is the vectors; ids and payload are other columns.

Only the columns that are needed are read, a batch of rows at a time. Row groups are commonly a million rows, gigabytes
of vectors, so column data is read through a small buffer (buffer_size) and never a row group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.sources.columns import ChosenColumns, choose, dim_of, to_chunk
from index.sources.shard import Chunk, Columns, reading

_ERRORS = (pa.ArrowException, ValueError, IndexError)
_BUFFER_BYTES = 1 << 20
_PROBE_ROWS = 256


@dataclass(frozen=True, slots=True)
class ParquetShard:
    """A Parquet file and the columns of it that are read."""

    path: Path
    columns: ChosenColumns
    n: int
    dim: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a component."""
        return self.columns.dtype

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` on. Row groups before it are not read."""
        with reading(self.path, "Parquet", *_ERRORS), _open(self.path) as file:
            first, groups = _groups_from(file, start)
            for batch in _batches(file, self.columns.names, groups, rows):
                batch.validate(full=True)  # offsets and text of a damaged file may be anything
                skipped = min(max(0, start - first), batch.num_rows)
                if skipped < batch.num_rows:
                    yield to_chunk(self.columns, self.dim, batch.slice(skipped), first + skipped)
                first += batch.num_rows


def open_shard(path: Path, columns: Columns) -> ParquetShard:
    """Read the footer; of the rows, only as many as tell the dimension."""
    with reading(path, "Parquet", *_ERRORS), _open(path) as file:
        chosen = choose(path, file.schema_arrow, columns)
        n = file.metadata.num_rows
        if n == 0:
            return ParquetShard(path=path, columns=chosen, n=0, dim=0)
        groups = list(range(file.metadata.num_row_groups))
        probe = (batch.column(chosen.vector) for batch in _batches(file, [chosen.vector], groups, _PROBE_ROWS))
        return ParquetShard(path=path, columns=chosen, n=n, dim=dim_of(chosen, probe))


def _open(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)


def _batches(file: pq.ParquetFile, names: list[str], groups: list[int], rows: int) -> Iterator[pa.RecordBatch]:
    yield from file.iter_batches(batch_size=rows, row_groups=groups, columns=names, use_threads=False)


def _groups_from(file: pq.ParquetFile, start: int) -> tuple[int, list[int]]:
    """(row that the first group begins with, groups from the one that holds row `start` on)."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        group_rows = file.metadata.row_group(group).num_rows
        if first + group_rows > start:
            return first, list(range(group, file.metadata.num_row_groups))
        first += group_rows
    return first, []
