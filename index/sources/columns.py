"""Arrow columns of a record batch as vectors, ids and payload; shared by Parquet and Arrow IPC files.

choose    which columns of a schema are meant, checked before a row is read
dim_of    the dimension: the list size of the type, or what most of the first rows have
to_chunk  a batch -> Chunk. A null, a null component and a list of another length become flaws of their rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.errors import SourceError
from index.sources.block import Array, BadRow, Ids
from index.sources.dtypes import stored_dtype
from index.sources.payload_values import ArrowArray, ArrowType, check_json_type, json_values
from index.sources.shard import Chunk, Columns, check_columns_exist, check_dim


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """Names that exist, with types that can be read."""

    path: Path
    vector: str
    dtype: np.dtype[Any]
    fixed_dim: int | None
    """The list size of a fixed-size list."""
    ids: str | None
    payload: tuple[str, ...] | None

    @property
    def names(self) -> list[str]:
        """Each column that is read, once."""
        return list(dict.fromkeys(n for n in (self.vector, self.ids, *(self.payload or ())) if n is not None))


def choose(path: Path, schema: pa.Schema, columns: Columns) -> ChosenColumns:
    """Resolve names against a schema; refuses what does not exist or cannot be what it is named for."""
    vector = columns.vector if columns.vector is not None else _only_list_of_numbers(path, schema)
    named = [vector, *([] if columns.ids is None else [columns.ids])]
    payload = columns.payload
    if payload == "*":
        payload = tuple(name for name in schema.names if name not in named)
    check_columns_exist(path, "column", [*named, *(payload or ())], schema.names)
    for name in (*named, *(payload or ())):
        if schema.names.count(name) > 1:
            raise SourceError(f"{path}: {schema.names.count(name)} columns are named {name!r}; rename all but one.")
    kind = _storage(schema.field(vector).type)
    where = f"{path}, column {vector!r}"
    if not _is_list(kind):
        raise SourceError(f"{where}: type is {kind}, needed a list of numbers. Lists here: {_lists(schema) or 'none'}.")
    dtype = _numpy_dtype(kind.value_type, where)
    stored_dtype(dtype, where=where)
    if columns.ids is not None:
        _check_id_type(schema.field(columns.ids).type, f"{path}, id column {columns.ids!r}")
    for name in payload or ():
        check_json_type(schema.field(name).type, f"{path}, payload column {name!r}")
    fixed = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    if fixed is not None:
        check_dim(where, fixed)
    return ChosenColumns(path, vector, dtype, fixed, columns.ids, payload)


def dim_of(chosen: ChosenColumns, first_vectors: Iterable[ArrowArray]) -> int:
    """The dimension; first_vectors: the vector column in pieces, read until one holds a row that is not null.

    The length that most rows of that piece have, so that one odd row at the top does not make all others odd.
    """
    if chosen.fixed_dim is not None:
        return chosen.fixed_dim
    for piece in first_vectors:
        lengths = pc.list_value_length(_plain(piece)).drop_null().to_numpy(zero_copy_only=False)
        counts = Counter(lengths[lengths > 0].tolist())
        if counts:
            dim = int(counts.most_common(1)[0][0])
            check_dim(f"{chosen.path}, column {chosen.vector!r}", dim)
            return dim
    raise SourceError(f"{chosen.path}, column {chosen.vector!r}: every row is null or an empty list.")


def to_chunk(chosen: ChosenColumns, dim: int, batch: pa.RecordBatch, first_row: int) -> Chunk:
    """first_row: row of the file that the batch begins with, for errors. The batch was validated."""
    vectors, flaws = _vectors(_plain(batch.column(chosen.vector)), dim, chosen.dtype)
    ids = None
    if chosen.ids is not None:
        where = f"{chosen.path}, id column {chosen.ids!r}"
        ids = _ids(_plain(batch.column(chosen.ids)), first_row, where)
    payload = None
    if chosen.payload is not None:
        where = f"{chosen.path}, payload column"
        values = [json_values(batch.column(name), f"{where} {name!r}") for name in chosen.payload]
        payload = [dict(zip(chosen.payload, row)) for row in zip(*values)] if values else [{} for _ in vectors]
    return Chunk(vectors, ids, payload, flaws)


def _vectors(column: ArrowArray, dim: int, dtype: np.dtype[Any]) -> tuple[Array, list[BadRow]]:
    """List column -> [m, dim] and flaws. Rows that are not a list of dim numbers stay zero."""
    m = len(column)
    if pa.types.is_fixed_size_list(column.type):
        starts = (np.arange(m, dtype=np.int64) + column.offset) * column.type.list_size
        lengths = np.full(m, column.type.list_size)
    else:
        offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        starts, lengths = offsets[:-1], np.diff(offsets)
    null = column.is_null().to_numpy(zero_copy_only=False)
    fits = ~null & (lengths == dim)
    # Only the values of these rows: a slice of a large batch shares all values of the batch.
    low = int(starts[0]) if m else 0
    span = int(starts[-1] + lengths[-1]) - low if m else 0
    values, null_values = _numbers(column.values.slice(low, span), dtype)
    starts = starts - low
    flaws: list[BadRow] = []
    if fits.all() and m:
        out = values.reshape(m, dim)
    else:
        out = np.zeros((m, dim), dtype)
        out[fits] = values[starts[fits][:, None] + np.arange(dim)]
        odd = np.flatnonzero(~fits).tolist()
        flaws += [_shape_flaw(row, None if null[row] else int(lengths[row]), dim) for row in odd]
    if null_values is not None:
        at = starts[fits][:, None] + np.arange(dim)
        missing = null_values[at]
        rows = np.flatnonzero(fits)
        bad = np.flatnonzero(missing.any(axis=1)).tolist()
        flaws += [BadRow(int(rows[each]), int(np.argmax(missing[each])), "null") for each in bad]
    return out, flaws


def _shape_flaw(row: int, length: int | None, dim: int) -> BadRow:
    """length: of the list in the vector's place; None: there is a null."""
    if length is None:
        return BadRow(row, 0, "null in place of a vector")
    return BadRow(row, min(length, dim), f"a list of {length} values, needed {dim}")


def _numbers(values: ArrowArray, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
    """(all values of a list column without copying, which of them are null or None where none is)."""
    # The buffer itself: to_numpy() turns integers with nulls into floats.
    data = values.buffers()[1]
    if data is None or len(values) == 0:
        return np.zeros(0, dtype), None
    numbers = np.frombuffer(memoryview(data), dtype, count=len(values), offset=values.offset * dtype.itemsize)
    return numbers, values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None


def _ids(column: ArrowArray, first_row: int, where: str) -> Ids:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise SourceError(f"{where}: row {first_row + row} is null, needed an integer or a string in each row.")
    if pa.types.is_integer(column.type):
        wide = np.uint64 if pa.types.is_unsigned_integer(column.type) else np.int64
        numbers: Array = column.to_numpy(zero_copy_only=False).astype(wide)
        return numbers
    return list(json_values(column, where))


def _check_id_type(given: ArrowType, where: str) -> None:
    kind = given.value_type if pa.types.is_dictionary(given) else given
    is_uuid = isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"
    types = pa.types
    if not (is_uuid or types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)
            or types.is_string_view(kind)):  # fmt: skip
        raise SourceError(f"{where}: type is {given}, needed integers or strings.")


def _numpy_dtype(kind: ArrowType, where: str) -> np.dtype[Any]:
    """dtype of a list's values; types that numpy has no number for are refused by name."""
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    raise SourceError(
        f"{where}: dtype is {kind}, needed float16, float32, float64 or an integer type. Cast the column first."
    )


def _only_list_of_numbers(path: Path, schema: pa.Schema) -> str:
    names = _lists(schema)
    if len(names) == 1:
        return names[0]
    if not names:
        there = ", ".join(f"{field.name!r} ({field.type})" for field in schema) or "none"
        raise SourceError(f"{path}: no column is a list of numbers; the columns are {there}.")
    raise SourceError(
        f"{path}: which column holds the vectors? Lists of numbers: {', '.join(map(repr, names))}. "
        "Name it with vector=..."
    )


def _lists(schema: pa.Schema) -> list[str]:
    kinds = {field.name: _storage(field.type) for field in schema}
    return [
        name
        for name, kind in kinds.items()
        if _is_list(kind) and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))
    ]


def _is_list(kind: ArrowType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _storage(kind: ArrowType) -> ArrowType:
    """An extension type (a tensor, for example) is read as what it is stored as; UUIDs keep their meaning."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _plain(column: ArrowArray) -> ArrowArray:
    if isinstance(column, pa.ExtensionArray) and column.type.extension_name != "arrow.uuid":
        column = column.storage
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
