"""DiskANN (diskannpy-rust): a graph on the SSD, product-quantised codes in memory. Knob: search complexity.

The memory budget pays for the codes; what codes do not use caches nodes around the entry point.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import diskannpy
import numpy as np
from numpy.typing import NDArray

from service.bench.workers.searcher import Found, Job, Searcher, Setting, Tell, base_of

DEGREE, COMPLEXITY, BEAM_WIDTH = 48, 100, 4
SWEEP = (10, 12, 16, 20, 25, 32, 40, 50, 65, 80, 100, 130, 170, 220, 300, 400)
BUILD_GB = 64.0
"""More than a build here takes, so that it is done in one piece: the fastest and best way."""


class DiskannSearcher(Searcher):
    """build_disk_index and StaticDiskIndex. parameters: pq_share, the share of the budget that codes get."""

    takes_given = True

    def versions(self) -> dict[str, str]:
        """The distribution's version."""
        return {"diskannpy-rust": version("diskannpy-rust"), "numpy": np.__version__}

    def prepare(self, job: Job) -> None:
        """Its own file format: two int32 counts, then the vectors."""
        base = np.load(base_of(job, self), mmap_mode="r")
        with self._input(job).open("wb") as file:
            np.array(base.shape, np.int32).tofile(file)
            for start in range(0, len(base), 100_000):
                np.ascontiguousarray(base[start : start + 100_000]).tofile(file)

    def build(self, job: Job, tell: Tell) -> dict[str, Any]:
        """One call; it tells nothing on its way."""
        base = np.load(base_of(job, self), mmap_mode="r")
        pq_bytes, cached = self._design(job, base)
        folder = self._folder(job)
        folder.mkdir()
        tell("build", 0, 1)
        diskannpy.build_disk_index(
            str(self._input(job)),
            distance_metric="l2",
            index_directory=str(folder),
            complexity=COMPLEXITY,
            graph_degree=DEGREE,
            build_memory_maximum=BUILD_GB,
            num_threads=job.threads,
            num_of_pq_chunks=pq_bytes,
            vector_dtype=base.dtype.type,
        )
        # A searcher opens the disk index, which holds the vectors; this copy serves the builder only.
        (folder / "ann_vectors.bin").unlink(missing_ok=True)
        notes = [f"{pq_bytes}-byte PQ, degree {DEGREE}, complexity {COMPLEXITY}, {cached:,} nodes cached"]
        return {"notes": notes, "disk_bytes": sum(f.stat().st_size for f in folder.iterdir())}

    def finish(self, job: Job, said: dict[str, Any]) -> None:
        """The input file is needed no more."""
        self._input(job).unlink()

    def open(self, job: Job) -> dict[str, Any]:
        """Open for as many threads as will be asked for."""
        base = np.load(base_of(job, self), mmap_mode="r")
        pq_bytes, cached = self._design(job, base)
        self._index = diskannpy.StaticDiskIndex(
            str(self._folder(job)),
            num_threads=job.threads,
            beam_width=BEAM_WIDTH,
            num_nodes_to_cache=cached,
            distance_metric="l2",
            vector_dtype=base.dtype.type,
            dimensions=base.shape[1],
        )
        return {"parts": {"codes": len(base) * pq_bytes, "cached_nodes": cached * _node_bytes(base)}}

    def settings(self) -> list[Setting]:
        """Search complexities."""
        return [{"complexity": c} for c in SWEEP]

    def search(self, queries: NDArray[Any], k: int, setting: Setting, threads: int) -> Found:
        """Its own batch search."""
        answer = self._index.batch_search(queries, k, int(setting["complexity"]), threads)
        stats = answer.search_stats
        return Found(np.asarray(answer.identifiers).astype(np.int64), {"rows_scored": float(stats["mean_comps"])})

    def search_one(self, query: NDArray[Any], k: int, setting: Setting) -> None:
        """Its own single search."""
        self._index.search(query, k, int(setting["complexity"]))

    def _design(self, job: Job, base: NDArray[Any]) -> tuple[int, int]:
        """(bytes of a code, nodes cached) for the budget."""
        n, dim = base.shape
        paid = int(job.budget_bytes / n * float(job.parameters.get("pq_share", 1.0)))
        pq_bytes = max(1, min(dim, paid))
        left = max(0, job.budget_bytes - n * pq_bytes - 256 * dim * 4)
        return pq_bytes, min(n, left // _node_bytes(base))

    def _folder(self, job: Job) -> Path:
        return Path(job.folder) / "index"

    def _input(self, job: Job) -> Path:
        return Path(job.folder) / "base.bin"


def searcher() -> Searcher:
    """What this module measures."""
    return DiskannSearcher()


def _node_bytes(base: NDArray[Any]) -> int:
    """A cached node: vector and links, and about 64 bytes of bookkeeping."""
    return int(base.shape[1]) * base.dtype.itemsize + 4 * (DEGREE + 1) + 64
