"""From a query to its nearest lists: all centroids compared while they are few, hnswlib over them beyond.

Centroids are kept as int8 with a scale; what this makes of a centroid is the centroid, everywhere: rows' residuals are
taken from it. hnswlib needs them as float32 once more, which is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np
from numpy.typing import NDArray

from index.codes import PreparedQueries, encode_int8
from index.disk import save_array
from index.kernels import lists as kernels

LISTS_FOLDER = "lists"
COMPARED_LISTS = 8192
"""Up to this many lists a query is compared with every centroid: docs/decisions/0005-ivf.md."""
LINKS = 16
CONSTRUCTION = 100
MORE = 32
"""hnswlib is asked for a quarter more lists and this many: its beam is as wide as what it is asked for."""
HNSWLIB_FIXED_BYTES = 2_700_000
"""hnswlib keeps 65,536 locks of labels."""
HNSWLIB_LIST_BYTES = 2 * 4 * LINKS + 112


class Route:
    """centroids int8 (lists, width), scalars float32 (lists, 2): |c|^2 (dot: 0) and scale. graph: hnswlib's, or None."""

    def __init__(self, centroids: NDArray[np.int8], scalars: NDArray[np.float32], graph: Any = None) -> None:
        self.centroids, self.scalars, self.graph = centroids, scalars, graph

    def __len__(self) -> int:
        return len(self.centroids)

    @classmethod
    def build(
        cls, means: NDArray[np.float32], *, dot: bool, seed: int, check: Callable[[int, int], None] | None = None
    ) -> Route:
        """The route to lists with these means, float32 (lists, width). check: called now and then; may raise."""
        centroids, scalars = encode_int8(means, extra=None)
        back = centroids.astype(np.float32) * scalars[:, 1:2]
        scalars = np.ascontiguousarray(scalars[:, :2])
        scalars[:, 0] = 0.0 if dot else np.einsum("ij,ij->i", back, back)
        if len(means) <= COMPARED_LISTS:
            return cls(centroids, scalars)
        graph = hnswlib.Index(space="ip" if dot else "l2", dim=means.shape[1])
        graph.init_index(len(means), M=LINKS, ef_construction=CONSTRUCTION, random_seed=seed & 0x7FFFFFFF)
        for start in range(0, len(means), 4096):
            some = slice(start, min(start + 4096, len(means)))
            # One thread: with more, the links depend on which came first.
            graph.add_items(back[some], np.arange(some.start, some.stop), num_threads=1)
            if check is not None:
                check(some.stop, len(means))
        return cls(centroids, scalars, graph)

    def nearest(
        self, queries: PreparedQueries, quantised: NDArray[np.int8], probes: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The `probes` nearest lists of each query, int32 (m, probes), and their bases, float32; see kernels/lists.py."""
        lists, bases = np.empty((len(queries), probes), np.int32), np.empty((len(queries), probes), np.float32)
        found = self._walk(queries, probes)
        if found is None:
            kernels.nearest_lists(self.centroids, self.scalars, quantised, queries.scales, lists, bases)
            return lists, bases
        lists[:] = found
        kernels.list_bases(self.centroids, self.scalars, quantised, queries.scales, lists, bases)
        return lists, bases

    def _walk(self, queries: PreparedQueries, probes: int) -> Any:
        """What hnswlib finds; None where comparing all centroids is no more work, or it does not reach enough of them."""
        wanted = probes + probes // 4 + MORE
        if self.graph is None or wanted * 8 > len(self):
            return None
        try:
            labels, _ = self.graph.knn_query(queries.rotated, k=wanted, num_threads=1)
        except RuntimeError:
            return None
        return labels[:, :probes]

    def resident_bytes(self) -> dict[str, int]:
        """Memory by part."""
        parts = {"centroids": self.centroids.nbytes + self.scalars.nbytes}
        if self.graph is not None:
            parts["route"] = graph_bytes(len(self), self.centroids.shape[1])
        return parts

    def save(self, folder: Path) -> list[str]:
        """Write lists/centroids.npy, lists/centroid_scalars.npy and, where there is a graph, lists/route.bin."""
        names = [f"{LISTS_FOLDER}/{name}" for name in ("centroids.npy", "centroid_scalars.npy")]
        save_array(folder / names[0], self.centroids)
        save_array(folder / names[1], self.scalars)
        if self.graph is not None:
            names.append(f"{LISTS_FOLDER}/route.bin")
            self.graph.save_index(str(folder / names[2]))
        return names

    @classmethod
    def load(cls, folder: Path, *, dot: bool) -> Route:
        """The route that `save` wrote."""
        centroids = np.load(folder / LISTS_FOLDER / "centroids.npy")
        scalars = np.load(folder / LISTS_FOLDER / "centroid_scalars.npy")
        path, graph = folder / LISTS_FOLDER / "route.bin", None
        if path.exists():
            graph = hnswlib.Index(space="ip" if dot else "l2", dim=centroids.shape[1])
            graph.load_index(str(path), max_elements=len(centroids))
        return cls(centroids, scalars, graph)


def graph_bytes(lists: int, width: int) -> int:
    """What hnswlib keeps in memory for this many lists, centroids included; 0 where it is not used."""
    return 0 if lists <= COMPARED_LISTS else HNSWLIB_FIXED_BYTES + lists * (4 * width + HNSWLIB_LIST_BYTES)
