"""What every contender can do, and what it is told to do it with.

Job        the vectors, the folder, the metric, the memory that may be used
Found      rows of the nearest vectors, and the work that was counted
Searcher   build, open, settings, search
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Setting = dict[str, float]
"""One value of each knob of a search: what is swept."""

Tell = Callable[[str, int, int], None]
"""Progress: (phase, done, total)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One contender's task. Paths are strings, as they travel as JSON.

    folder: where the index goes. base, queries: npy files (n, dim) and (m, dim), float32, of unit length under cosine;
    base_given, queries_given: the same as int8 or uint8 where the set is given so, else None. source, vector: the
    set's own file and column. sample_queries: npy file, or None. parameters: of the build, the contender's own.
    """

    folder: str
    base: str
    queries: str
    metric: str
    threads: int
    budget_bytes: int
    budget: str
    base_given: str | None = None
    queries_given: str | None = None
    source: str = ""
    vector: str | None = None
    sample_queries: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """rows int64 (m, k), -1 where there are fewer; work: means a query of what the contender counts itself."""

    rows: NDArray[np.int64]
    work: dict[str, float] = field(default_factory=dict)


class Searcher:
    """One contender in this process. build() and open() are called in different processes."""

    takes_given = False
    """Whether it is handed base_given and queries_given where there are some."""

    def versions(self) -> dict[str, str]:
        """Name -> version of what is measured."""
        raise NotImplementedError

    def prepare(self, job: Job) -> None:
        """What comes before the clock of a build starts: other forms of the input, compiled code."""

    def build(self, job: Job, tell: Tell) -> dict[str, Any]:
        """Build in job.folder; returns what there is to say of it ("notes": sentences)."""
        raise NotImplementedError

    def finish(self, job: Job, said: dict[str, Any]) -> None:
        """What comes after the clock has stopped. said: what build() returned."""

    def warm(self, job: Job) -> None:
        """Load what is not the index (compiled code), so that memory can be told apart."""

    def open(self, job: Job) -> dict[str, Any]:
        """Get ready to search; returns what there is to say of it ("parts": bytes by part)."""
        raise NotImplementedError

    def settings(self) -> list[Setting]:
        """The sweep: least effort first."""
        raise NotImplementedError

    def search(self, queries: NDArray[Any], k: int, setting: Setting, threads: int) -> Found:
        """The k nearest rows of all queries, with so many threads."""
        raise NotImplementedError

    def search_one(self, query: NDArray[Any], k: int, setting: Setting) -> None:
        """One query (dim,), on this thread."""
        self.search(query[None], k, setting, 1)

    def exact(self, queries: NDArray[Any], k: int, threads: int) -> Found:
        """The true k nearest rows; only the oracle can."""
        raise NotImplementedError


def base_of(job: Job, searcher: Searcher) -> str:
    """The npy file of vectors that this contender is built from."""
    return job.base_given if searcher.takes_given and job.base_given else job.base


def queries_of(job: Job, searcher: Searcher) -> NDArray[Any]:
    """The queries in the dtype that this contender takes: (m, dim)."""
    path = job.queries_given if searcher.takes_given and job.queries_given else job.queries
    loaded: NDArray[Any] = np.load(path)
    return loaded
