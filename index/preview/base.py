"""The interface of previews, and the scratch memory that one search borrows."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from index.codes import PreparedQueries
from index.options import PreviewKind
from index.preview.allowed import AllowedNodes


class Candidates(NamedTuple):
    """What a preview proposes for m queries.

    nodes int32 (m, width) and distances float32 (m, width), nearest first, filled to counts[q]; counts, hops, scored
    int64 (m,): hops are rows expanded (graph) or lists visited (ivf), scored the codes scored. horizons float32 (m,), only
    among allowed nodes: as far as this distance nothing is known to be missing; infinity where all nodes were looked at.
    """

    nodes: NDArray[np.int32]
    distances: NDArray[np.float32]
    counts: NDArray[np.int64]
    hops: NDArray[np.int64]
    scored: NDArray[np.int64]
    horizons: NDArray[np.float32] | None = None


class Scratch:
    """Working memory of one search at a time; grows to what was asked for and stays.

    visited: the walk's hash table of visited rows, and the last mark written into it.
    """

    def __init__(self) -> None:
        self.visited: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.mark = 0

    def visited_table(self, slots: int) -> NDArray[np.uint64]:
        """The first `slots` (a power of two) slots of the table; marks stay valid."""
        if len(self.visited) < slots or self.mark > 2**31:
            self.visited = np.zeros(max(slots, len(self.visited)), np.uint64)
            self.mark = 0
        return self.visited[:slots]

    @property
    def resident_bytes(self) -> int:
        """Memory held."""
        return int(self.visited.nbytes)


class Preview(Protocol):
    """Finds candidates among codes. Any number of threads may call candidates(), each with its own scratch."""

    @property
    def kind(self) -> PreviewKind:
        """graph, ivf or flat."""
        ...

    @property
    def nodes(self) -> int:
        """Distinct vectors."""
        ...

    @property
    def bits(self) -> int | str:
        """Bits a dimension of a code, or "pq"."""
        ...

    def candidates(self, queries: PreparedQueries, *, effort: int, width: int, scratch: Scratch) -> Candidates:
        """Up to `width` nearest nodes of each query. effort: beam (graph) or probes (ivf); flat scores all."""
        ...

    def allowed_candidates(
        self, queries: PreparedQueries, *, effort: int, width: int, allowed: AllowedNodes, scratch: Scratch
    ) -> Candidates:
        """The same among allowed nodes: at least min(width, how many there are), and as good as the effort promises."""
        ...

    def allowed_scan(self, queries: PreparedQueries, *, keep: int, allowed: AllowedNodes) -> Candidates:
        """The `keep` nearest allowed nodes, with every one of them scored."""
        ...

    def error_scales(self) -> NDArray[np.float32]:
        """float32 (nodes, 2): column 1 times the query's length times the error scale: the error of an estimate."""
        ...

    def resident_bytes(self) -> dict[str, int]:
        """Memory by part."""
        ...

    def save(self, folder: Path) -> list[str]:
        """Write the files of this preview; returns their names."""
        ...
