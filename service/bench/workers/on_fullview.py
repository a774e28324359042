"""fullview itself, and the oracle. Operating points are asked for as users do: by the recall that they promise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index import BuildOptions, BuildProgress, OpenIndex, SearchOptions, build, open_index
from index.sources import open_source
from service.bench.workers.searcher import Found, Job, Searcher, Setting, Tell

K = 10
WARM_ROWS = 3000
MOST_SETTINGS = 12
ROUND_RECALLS = (0.9, 0.95, 0.98, 0.99)
"""Asked for as they are, so that the report shows whether promises are kept; other points by their own recall."""


class FullviewSearcher(Searcher):
    """Builds with index.build and searches with index.OpenIndex, batches cut into one share a thread."""

    def __init__(self) -> None:
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._index: OpenIndex

    def versions(self) -> dict[str, str]:
        """The distribution's version."""
        return {"fullview": version("fullview"), "numpy": np.__version__, "numba": version("numba")}

    def prepare(self, job: Job) -> None:
        """A small index of the first rows: it compiles what a build needs."""
        self._build_small(job, BuildOptions(metric=job.metric, preview="graph", bits=4))

    def finish(self, job: Job, said: dict[str, Any]) -> None:
        """A small index like the real one, for warm() to search."""
        report = said["report"]
        options = BuildOptions(metric=job.metric, preview=report["preview"], bits=report["bits"])
        self._build_small(job, options)

    def _build_small(self, job: Job, options: BuildOptions) -> None:
        rows = next(iter(open_source(job.source, vector=job.vector).blocks(WARM_ROWS))).vectors[:WARM_ROWS]
        build(rows, _small(job), options=options, replace=_small(job).exists())

    def build(self, job: Job, tell: Tell) -> dict[str, Any]:
        """The whole build, from the set's own file."""

        def on_progress(event: BuildProgress) -> None:
            tell(event.phase, event.done, event.total)

        options = BuildOptions(metric=job.metric, memory_budget=job.budget, threads=job.threads, **job.parameters)
        report = build(
            job.source,
            Path(job.folder) / "index",
            options=options,
            vector=job.vector,
            queries=job.sample_queries,
            on_progress=on_progress,
        )
        plain = report.to_dict()
        return {
            "notes": [*plain["choices"], *plain["warnings"], f"The promise covers {plain['promise_covers']}."],
            "report": plain,
            "disk_bytes": plain["disk_bytes"],
        }

    def warm(self, job: Job) -> None:
        """Load compiled code by searching the small index."""
        with open_index(_small(job)) as small:
            few = np.load(job.queries, mmap_mode="r")[:32].astype(np.float32)
            small.search(few, K)
            small.search(few[:1], K)

    def open(self, job: Job) -> dict[str, Any]:
        """Open what build() made."""
        self._index = open_index(Path(job.folder) / "index")
        stats = self._index.stats()
        return {
            "parts": stats["resident_bytes"],
            "notes": [
                f"{stats['preview']} preview, {stats['bits']} bits a dimension, degree {stats['degree']}; "
                f"pages read by {stats['io_mode']}" + (f" ({stats['io_reason']})" if stats["io_reason"] else "")
            ],
        }

    def settings(self) -> list[Setting]:
        """Every operating point that a recall can choose; MOST_SETTINGS of them where there are more."""
        points = [p for p in self._index.generation.points if p.k == K]
        chosen: dict[tuple[int, float], Setting] = {}
        for asked in [*ROUND_RECALLS, *sorted(p.low for p in points if p.low > 0.0)]:
            point = self._index.point(K, asked)
            if point.low >= asked:
                depth = point.to_dict()["z"]
                chosen.setdefault((point.effort, depth), {"recall": asked, "beam": point.effort, "z": depth})
        ordered = sorted(chosen.values(), key=lambda s: s["recall"])
        round_ones = [s for s in ordered if s["recall"] in ROUND_RECALLS]
        others = [s for s in ordered if s not in round_ones]
        few = max(0, MOST_SETTINGS - len(round_ones))
        if len(others) > few:
            others = [others[i] for i in np.linspace(0, len(others) - 1, few).astype(int)]
        return sorted(round_ones + others, key=lambda s: s["recall"])

    def search(self, queries: NDArray[Any], k: int, setting: Setting, threads: int) -> Found:
        """One batch call a thread."""
        return self._shared(queries, k, SearchOptions(recall=setting["recall"]), threads)

    def search_one(self, query: NDArray[Any], k: int, setting: Setting) -> None:
        """One call of one query."""
        self._index.search(query, k, SearchOptions(recall=setting["recall"]))

    def exact(self, queries: NDArray[Any], k: int, threads: int) -> Found:
        """The oracle."""
        return self._shared(queries, k, SearchOptions(exact=True), threads)

    def _shared(self, queries: NDArray[Any], k: int, options: SearchOptions, threads: int) -> Found:
        shares = np.array_split(queries, min(threads, len(queries)))
        if len(shares) == 1:
            parts = [self._index.search(queries, k, options)]
        else:
            pool = self._pools.setdefault(threads, ThreadPoolExecutor(threads))
            parts = list(pool.map(lambda share: self._index.search(share, k, options), shares))
        rows = np.full((len(queries), k), -1, np.int64)
        start = 0
        for hits in parts:
            kept = np.arange(hits.ids.shape[1]) < hits.counts[:, None]
            rows[start : start + len(hits), : hits.ids.shape[1]] = np.where(kept, hits.ids.astype(np.int64), -1)
            start += len(hits)
        counted = ("rows_scored", "pages_read", "bytes_read", "candidates", "rows_reranked", "hops")
        work = {name: float(np.concatenate([getattr(h.work, name) for h in parts]).mean()) for name in counted}
        return Found(rows, work)


def searcher() -> Searcher:
    """What this module measures."""
    return FullviewSearcher()


def _small(job: Job) -> Path:
    return Path(job.folder) / "small"
