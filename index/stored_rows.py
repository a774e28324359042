"""The rows of a generation, streamed in the order of its disk: what a fold starts from.

stored_blocks   every row, a few MB at a time, each page verified
KeptRows        the rows that stay, as a file of a source: what a rebuild starts from
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.folder import Generation
from index.fullview import aligned_pages
from index.sources.shard import Chunk

BLOCK_PAGES = 1024

Payloads = Callable[[NDArray[np.int64]], list[bytes | None]]


def stored_blocks(
    generation: Generation, *, first: int = 0, last: int | None = None
) -> Iterator[tuple[int, NDArray[Any]]]:
    """(first row, vectors [m, dim] as stored) of consecutive blocks; rows before `first` and from `last` on are left out."""
    layout = generation.layout
    each, page_rows = layout.pages_per_vector, layout.vectors_per_page
    last = layout.n if last is None else last
    reader = generation.vectors.reader()
    step = max(1, BLOCK_PAGES // each)
    for start in range(first // page_rows, -(-last // page_rows), step):
        count = min(step, -(-last // page_rows) - start)
        buffer = aligned_pages(count * each)
        reader.sequential(1 + start * each, count * each, buffer)
        groups = buffer.reshape(count, layout.group_bytes)[:, : page_rows * layout.vector_bytes]
        vectors = np.ascontiguousarray(groups).view(layout.dtype).reshape(-1, layout.dim)
        begin, end = max(first, start * page_rows), min(last, (start + count) * page_rows)
        yield begin, vectors[begin - start * page_rows : end - start * page_rows]


class KeptRows:
    """Some rows of a generation and then new ones, in that order, as a shard of a source.

    rows int64 (k,), ascending; new [m, dim] of `dtype`; payloads: of numbers 0..k+m-1, or None.
    """

    def __init__(
        self,
        generation: Generation,
        rows: NDArray[np.int64],
        new: NDArray[Any],
        payloads: Payloads | None,
    ) -> None:
        self._generation, self._rows, self._new, self._payloads = generation, rows, new, payloads
        self.path: Path = generation.path / "vectors.bin"
        self.n, self.dim, self.dtype = len(rows) + len(new), generation.dim, new.dtype

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` on, `rows` at a time."""
        for first in range(start, self.n, rows):
            numbers = np.arange(first, min(first + rows, self.n), dtype=np.int64)
            mine = self._rows[first : first + rows]
            late = self._new[max(0, first - len(self._rows)) : max(0, first + rows - len(self._rows))]
            vectors = np.concatenate([self._stored(mine), late]) if len(mine) else late.copy()
            yield Chunk(vectors, payload=None if self._payloads is None else self._payloads(numbers))

    def _stored(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty((len(rows), self.dim), self.dtype)
        for begin, vectors in stored_blocks(self._generation, first=int(rows[0]), last=int(rows[-1]) + 1):
            a, b = np.searchsorted(rows, (begin, begin + len(vectors)))
            out[a:b] = vectors[rows[a:b] - begin]
        return out
