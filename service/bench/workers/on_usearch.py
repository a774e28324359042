"""usearch: a graph over vectors in memory. Knob: expansion_search."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index

from service.bench.workers.searcher import Found, Job, Searcher, Setting, Tell

SWEEP = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 450, 640)
BLOCK = 10_000


class UsearchSearcher(Searcher):
    """parameters: m, ef_construction, dtype ("f32" or "f16")."""

    def versions(self) -> dict[str, str]:
        """The distribution's version."""
        return {"usearch": version("usearch"), "numpy": np.__version__}

    def build(self, job: Job, tell: Tell) -> dict[str, Any]:
        """Insert in blocks, to show how far it is."""
        base = np.load(job.base, mmap_mode="r")
        index = _made(job, base.shape[1])
        for start in range(0, len(base), BLOCK):
            stop = min(start + BLOCK, len(base))
            index.add(np.arange(start, stop), np.ascontiguousarray(base[start:stop]), threads=job.threads)
            tell("build", stop, len(base))
        path = Path(job.folder) / "index.usearch"
        index.save(str(path))
        note = f"connectivity {index.connectivity}, expansion_add {index.expansion_add}, {index.dtype}"
        return {"notes": [note], "disk_bytes": path.stat().st_size}

    def open(self, job: Job) -> dict[str, Any]:
        """Load the file into memory."""
        shape = np.load(job.base, mmap_mode="r").shape
        self._index = _made(job, shape[1])
        self._index.load(str(Path(job.folder) / "index.usearch"))
        return {"parts": {"vectors": shape[0] * shape[1] * (2 if "16" in str(self._index.dtype) else 4)}}

    def settings(self) -> list[Setting]:
        """Values of expansion_search."""
        return [{"expansion_search": e} for e in SWEEP]

    def search(self, queries: NDArray[Any], k: int, setting: Setting, threads: int) -> Found:
        """Its own batch search."""
        self._index.expansion_search = int(setting["expansion_search"])
        keys = np.asarray(self._index.search(queries, k, threads=threads).keys)
        return Found(keys.astype(np.int64).reshape(len(queries), -1))


def searcher() -> Searcher:
    """What this module measures."""
    return UsearchSearcher()


def _made(job: Job, dim: int) -> Any:
    """An empty index. Vectors come with unit length under cosine."""
    return Index(
        ndim=dim,
        metric="l2sq" if job.metric == "l2" else "ip",
        dtype=str(job.parameters.get("dtype", "f32")),
        connectivity=int(job.parameters.get("m", 16)),
        expansion_add=int(job.parameters.get("ef_construction", 200)),
    )
