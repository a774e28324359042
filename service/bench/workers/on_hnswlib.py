"""hnswlib: a graph over float32 vectors, all in memory. Knob: ef."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np
from numpy.typing import NDArray

from service.bench.workers.searcher import Found, Job, Searcher, Setting, Tell

SWEEP = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 450, 640)
BLOCK = 10_000


class HnswlibSearcher(Searcher):
    """parameters: m, ef_construction."""

    def versions(self) -> dict[str, str]:
        """The distribution's version."""
        return {"hnswlib": version("hnswlib"), "numpy": np.__version__}

    def build(self, job: Job, tell: Tell) -> dict[str, Any]:
        """Insert in blocks, to show how far it is."""
        base = np.load(job.base, mmap_mode="r")
        index = hnswlib.Index(space=_space(job), dim=base.shape[1])
        m, ef = int(job.parameters.get("m", 16)), int(job.parameters.get("ef_construction", 200))
        index.init_index(max_elements=len(base), M=m, ef_construction=ef, random_seed=1)
        for start in range(0, len(base), BLOCK):
            stop = min(start + BLOCK, len(base))
            index.add_items(base[start:stop], np.arange(start, stop), num_threads=job.threads)
            tell("build", stop, len(base))
        path = Path(job.folder) / "index.bin"
        index.save_index(str(path))
        return {"notes": [f"M {m}, ef_construction {ef}"], "disk_bytes": path.stat().st_size}

    def open(self, job: Job) -> dict[str, Any]:
        """Load the file into memory."""
        shape = np.load(job.base, mmap_mode="r").shape
        self._index = hnswlib.Index(space=_space(job), dim=shape[1])
        self._index.load_index(str(Path(job.folder) / "index.bin"), max_elements=shape[0])
        return {"parts": {"vectors": shape[0] * shape[1] * 4}}

    def settings(self) -> list[Setting]:
        """Values of ef."""
        return [{"ef": ef} for ef in SWEEP]

    def search(self, queries: NDArray[Any], k: int, setting: Setting, threads: int) -> Found:
        """Its own batch search."""
        self._index.set_ef(int(setting["ef"]))
        labels, _ = self._index.knn_query(queries, k=k, num_threads=threads)
        return Found(labels.astype(np.int64))


def searcher() -> Searcher:
    """What this module measures."""
    return HnswlibSearcher()


def _space(job: Job) -> str:
    """Vectors come with unit length under cosine."""
    return "l2" if job.metric == "l2" else "ip"
