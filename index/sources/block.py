"""A block: consecutive rows of one file, ready to be used, and what is wrong with them.

Block          vectors in the dtype an index stores, with ids and payload where columns were named
find_bad_rows  the rows that must not enter an index; one pass over the vectors when there are none

What a conversion or a format notices (a float64 beyond float32, a null, a ragged list) cannot be seen in the vectors
any more, so it travels with the block as `flaws`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ids = npt.NDArray[Any] | list[int | str]


class BadRow(NamedTuple):
    """row: inside the block; column: the first component that is wrong; reason: in words."""

    row: int
    column: int
    reason: str


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one file. The arrays are the caller's: nothing else refers to them."""

    start: int
    """Row of the whole source that the first row of this block is."""
    vectors: Array
    """[m, dim], C order, native byte order, of the source's dtype. Components of bad rows mean nothing."""
    file: str
    file_start: int
    """Row of `file` that the first row of this block is."""
    ids: Ids | None = None
    """[m] int64 or uint64 array, or a list where strings occur; None: no id column was named."""
    payload: Sequence[dict[str, Any] | bytes | None] | None = None
    """[m] JSON-able objects, or JSON as bytes; None: no payload columns were named."""
    flaws: tuple[BadRow, ...] = ()
    """What conversion noticed and the vectors no longer show. find_bad_rows() merges them in."""

    def __len__(self) -> int:
        return int(self.vectors.shape[0])


def find_bad_rows(block: Block) -> list[BadRow]:
    """Rows with NaN, infinity or a value that float32 cannot hold, null and ragged ones. Ascending, one entry a row."""
    worst = {row: BadRow(row, column, reason) for row, column, reason in _non_finite(block.vectors)}
    for flaw in block.flaws:
        known = worst.get(flaw.row)
        # At the same column the flaw wins: it knows that the infinity seen there was 1e300 in the file.
        if known is None or flaw.column <= known.column:
            worst[flaw.row] = flaw
    return [worst[row] for row in sorted(worst)]


def _non_finite(vectors: Array) -> Sequence[BadRow]:
    """The first NaN or infinity of each row that has one."""
    if vectors.dtype.kind != "f" or vectors.size == 0:
        return []
    if vectors.dtype == np.float16:
        # numpy's isfinite takes 8 times as long on float16 as this test of the exponent's bits.
        bits = vectors.view(np.uint16) & np.uint16(0x7FFF)
        if int(bits.max()) < 0x7C00:
            return []
        finite = bits < np.uint16(0x7C00)
    else:
        finite = np.isfinite(vectors)
        if finite.all():
            return []
    rows = np.flatnonzero(~finite.all(axis=1))
    columns = np.argmin(finite[rows], axis=1)
    values = vectors[rows, columns]
    return [
        BadRow(int(row), int(column), "NaN" if np.isnan(value) else "infinity" if value > 0 else "-infinity")
        for row, column, value in zip(rows, columns, values)
    ]
