"""faiss, all in memory: IVF lists of product-quantised codes refined by full vectors (nprobe, k_factor), and HNSW (ef)."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from service.bench.workers.searcher import Found, Job, Searcher, Setting, Tell

BLOCK = 50_000
EF_SWEEP = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 450, 640)
NPROBES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
K_FACTORS = (4, 10)


class FaissSearcher(Searcher):
    """What both indexes share: building in blocks, one file, one number of threads for a call."""

    def versions(self) -> dict[str, str]:
        """The wheel's version."""
        return {"faiss-cpu": version("faiss-cpu"), "numpy": np.__version__}

    def build(self, job: Job, tell: Tell) -> dict[str, Any]:
        """Train, then add in blocks."""
        faiss.omp_set_num_threads(job.threads)
        base = np.load(job.base, mmap_mode="r")
        index, note = self._made(job, base)
        for start in range(0, len(base), BLOCK):
            index.add(np.ascontiguousarray(base[start : start + BLOCK]))
            tell("build", min(start + BLOCK, len(base)), len(base))
        path = Path(job.folder) / "index.faiss"
        faiss.write_index(index, str(path))
        return {"notes": [note], "disk_bytes": path.stat().st_size}

    def open(self, job: Job) -> dict[str, Any]:
        """Load the file into memory."""
        self._index = faiss.read_index(str(Path(job.folder) / "index.faiss"))
        self._nprobes = [p for p in NPROBES if p <= self._lists(job)]
        return {"parts": {"vectors": int(self._index.ntotal) * int(self._index.d) * 4}}

    def search(self, queries: NDArray[Any], k: int, setting: Setting, threads: int) -> Found:
        """Its own batch search."""
        faiss.omp_set_num_threads(threads)
        text = ",".join(f"{name}={int(value)}" for name, value in setting.items())
        space: Any = faiss.ParameterSpace()
        space.set_index_parameters(self._index, text)
        _, rows = self._index.search(queries, k)
        return Found(rows.astype(np.int64))

    def _made(self, job: Job, base: NDArray[Any]) -> tuple[Any, str]:
        raise NotImplementedError

    def _lists(self, job: Job) -> int:
        return int(2 ** round(math.log2(4 * math.sqrt(len(np.load(job.base, mmap_mode="r"))))))


class FaissIvfpq(FaissSearcher):
    """IVF, PQ and a flat refine: full vectors stay in memory beside the codes."""

    def settings(self) -> list[Setting]:
        """nprobe times k_factor."""
        return [{"nprobe": p, "k_factor_rf": f} for p in self._nprobes for f in K_FACTORS]

    def _made(self, job: Job, base: NDArray[Any]) -> tuple[Any, str]:
        n, dim = base.shape
        paid = max(1, min(dim // 2, job.budget_bytes // n - 8))
        parts = max(m for m in range(1, paid + 1) if dim % m == 0)
        text = f"IVF{self._lists(job)},PQ{parts}x8,RFlat"
        index = faiss.index_factory(dim, text, _metric(job))
        few = np.random.default_rng(0).choice(n, min(n, 64 * max(256, self._lists(job))), replace=False)
        index.train(np.ascontiguousarray(base[np.sort(few)]))
        return index, f"{text}; full float32 vectors stay in memory for the refine"


class FaissHnsw(FaissSearcher):
    """IndexHNSWFlat. parameters: m, ef_construction."""

    def settings(self) -> list[Setting]:
        """Values of efSearch."""
        return [{"efSearch": ef} for ef in EF_SWEEP]

    def _made(self, job: Job, base: NDArray[Any]) -> tuple[Any, str]:
        m, ef = int(job.parameters.get("m", 16)), int(job.parameters.get("ef_construction", 200))
        index = faiss.IndexHNSWFlat(base.shape[1], m, _metric(job))
        index.hnsw.efConstruction = ef
        return index, f"M {m}, efConstruction {ef}"


def _metric(job: Job) -> int:
    """Vectors come with unit length under cosine."""
    return int(faiss.METRIC_L2 if job.metric == "l2" else faiss.METRIC_INNER_PRODUCT)
