"""What a search returns: hits, and the work it took.

Invariant: entries of a row past its count mean nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.operating_points import OperatingPoint


@dataclass(frozen=True, slots=True)
class Work:
    """Work of each query, arrays (m,): counters, which repeat from run to run, and microseconds, which do not.

    rows_scored: codes scored by the preview; hops: rows expanded or lists visited; candidates: rows chosen for reading;
    rows_reranked: exact scores computed; pages_read: 4,096-byte pages; bytes_read; microseconds: by stage, the time of a
    group of queries divided among them ("read" is what was left to wait for, not the device's latency).
    """

    rows_scored: NDArray[np.int64]
    hops: NDArray[np.int64]
    candidates: NDArray[np.int64]
    rows_reranked: NDArray[np.int64]
    pages_read: NDArray[np.int64]
    bytes_read: NDArray[np.int64]
    microseconds: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def empty(cls, m: int) -> Work:
        """No work yet, for m queries."""
        counters = [np.zeros(m, np.int64) for _ in range(6)]
        return cls(counters[0], counters[1], counters[2], counters[3], counters[4], counters[5])

    def spend(self, stage: str, part: slice, begun: float) -> None:
        """Divide the time since `begun` (time.perf_counter) among the queries of `part`."""
        spent = self.microseconds.setdefault(stage, np.zeros(len(self.hops)))
        spent[part] += (time.perf_counter() - begun) * 1e6 / max(1, part.stop - part.start)

    def finish(self) -> None:
        """Fill in what follows from the other counters."""
        np.multiply(self.pages_read, 4096, out=self.bytes_read)

    def of(self, query: int) -> dict[str, Any]:
        """One query's work as plain numbers."""
        counters = ("rows_scored", "hops", "candidates", "rows_reranked", "pages_read", "bytes_read")
        plain: dict[str, Any] = {name: int(getattr(self, name)[query]) for name in counters}
        plain["microseconds"] = {stage: round(float(spent[query]), 1) for stage, spent in self.microseconds.items()}
        return plain


@dataclass(frozen=True, slots=True)
class Hits:
    """Nearest stored vectors of m queries, nearest first, ties by ascending id.

    ids uint64 (m, k), or object where strings occur; scores float32 (m, k), exact: cosine and dot larger is nearer, l2 is
    the true distance; counts int64 (m,): how many entries of a row are hits; rows int64 (m, k): rows of the generation.

    point: the operating point that was used; None for exact searches and for a beam, probes or rerank of one's own, of
    which nothing was measured. reached: whether the lower end of the point's measured recall reaches the recall that was
    asked for, or promised where none was; where it is False no point does, and the best one was used. Without a point it
    is True, but for a recall that was asked for together with a rerank of one's own.
    """

    ids: NDArray[Any]
    scores: NDArray[np.float32]
    counts: NDArray[np.int64]
    rows: NDArray[np.int64]
    work: Work
    point: OperatingPoint | None = None
    reached: bool = True

    def __len__(self) -> int:
        return len(self.counts)
