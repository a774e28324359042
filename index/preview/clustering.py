"""Hierarchical k-means through faiss: many small lists of near rows, never more than a block of float32 rows in memory.

require_faiss   the module, or MissingExtraError naming the extra
cluster_rows    int8 rows -> the list of each row
train_pq        residuals -> the codebooks of a product quantiser

A group of rows that should become k lists is split by k-means into about sqrt(k) groups, these again, and groups of up to
LEAF lists by one k-means of their own; each k-means sees a bounded sample. Then every row goes to the nearest of all
lists, since a row near the border of a group may have its nearest list in the next one. With a GPU and faiss-gpu the
same calls run there. Each call of faiss runs on one thread, over blocks that do not depend on how many threads there are:
the lists are the same for any number of them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import MissingExtraError
from index.graph import GraphRows

Check = Callable[[int, int], None]
"""Called with (rows done, rows in all), now and then; may raise to stop."""

LEAF = 256
"""Most lists that one k-means makes."""
SAMPLE_ROWS = 64
"""Rows a list that a k-means learns from."""
SAMPLE_BYTES = 64_000_000
BLOCK_ROWS = 1024
ROUNDS = 6
ITERATIONS = 2
"""Iterations of k-means in each round; a build can be cancelled between rounds."""
FLAT_LISTS = 512
"""Up to this many lists every row is compared with all of them; beyond, with those of the nearest NEAR_GROUPS groups."""
NEAR_GROUPS = 8


def has_faiss() -> bool:
    """True where faiss is installed."""
    return importlib.util.find_spec("faiss") is not None


def faiss_installed() -> bool:
    """True where faiss can be imported; does not import it."""
    return importlib.util.find_spec("faiss") is not None


def require_faiss(purpose: str) -> Any:
    """The module faiss. Raises MissingExtraError."""
    try:
        return importlib.import_module("faiss")
    except ImportError:
        raise MissingExtraError(package="faiss", extra="cpu", purpose=purpose) from None


def cluster_rows(
    rows: GraphRows, *, lists: int, seed: int, threads: int, check: Check | None = None
) -> tuple[NDArray[np.int32], int]:
    """The list of each row, int32 (n,), and how many lists there are: about `lists`, none of them empty.

    Where rows have an extra coordinate (dot) it counts too.
    """
    n = len(rows)
    if lists <= 1 or n <= 2:
        return np.zeros(n, np.int32), 1
    faiss = require_faiss("clustering rows into lists")
    clustering = _Clustering(faiss, rows, lists, seed, check or (lambda done, total: None))
    with _pool(faiss, threads) as pool:
        centroids = clustering.centroids(pool)
        labels = clustering.nearest(centroids, np.arange(n, dtype=np.int32), pool, done_before=n // 2)
    used, labels = np.unique(labels, return_inverse=True)
    return labels.reshape(-1).astype(np.int32), len(used)


def float_rows(rows: GraphRows, some: NDArray[np.integer] | slice) -> NDArray[np.float32]:
    """Some rows as float32 (m, width)."""
    values = rows.codes[some].astype(np.float32)
    values *= rows.scalars[some, 1:2]
    return values


class _Clustering:
    """One clustering under way. Every k-means and every search runs on one thread of the pool."""

    def __init__(self, faiss: Any, rows: GraphRows, lists: int, seed: int, check: Check) -> None:
        self._faiss, self._rows, self._seed, self._check = faiss, rows, seed, check
        self._rows_a_list = len(rows) / lists
        self._done = 0
        self._gpus = int(faiss.get_num_gpus())
        self._extended = bool(rows.scalars[:, 2].any())
        self._dim = rows.codes.shape[1] + self._extended

    def centroids(self, pool: ThreadPoolExecutor) -> NDArray[np.float32]:
        """Centroids of all lists, float32 (lists, dim), group after group."""
        waiting = [np.arange(len(self._rows), dtype=np.int32)]
        leaves: list[NDArray[np.int32]] = []
        while waiting:
            group = waiting.pop()
            wanted = self._lists_of(group)
            if wanted <= LEAF:
                leaves.append(group)
                continue
            parts = self._split(group, int(np.ceil(np.sqrt(wanted))), pool)
            # A group that k-means cannot divide becomes one k-means' lists, however many were wanted.
            (leaves if len(parts) == 1 else waiting).extend(parts)
        leaves.sort(key=lambda group: int(group[0]))
        found = []
        for done, part in enumerate(pool.map(self._leaf, leaves), start=1):
            found.append(part)
            self._advance(len(self._rows) * done // (2 * len(leaves)))
        return np.concatenate(found)

    def _advance(self, done: int) -> None:
        """Tell how many rows are done, never fewer than before. May raise."""
        self._done = max(self._done, done)
        self._check(self._done, len(self._rows))

    def _float(self, some: NDArray[np.integer]) -> NDArray[np.float32]:
        values = float_rows(self._rows, some)
        return np.concatenate([values, self._rows.scalars[some, 2:3]], axis=1) if self._extended else values

    def _lists_of(self, group: NDArray[np.int32]) -> int:
        return max(1, round(len(group) / self._rows_a_list))

    def _split(self, group: NDArray[np.int32], k: int, pool: ThreadPoolExecutor) -> list[NDArray[np.int32]]:
        labels = self.nearest(pool.submit(self._train, group, k).result(), group, pool)
        order = np.argsort(labels, kind="stable")
        cuts = np.flatnonzero(np.diff(labels[order])) + 1
        return np.split(group[order], cuts)

    def _leaf(self, group: NDArray[np.int32]) -> NDArray[np.float32]:
        return self._train(group, min(LEAF, self._lists_of(group)))

    def _train(self, group: NDArray[np.int32], k: int) -> NDArray[np.float32]:
        """Centroids of a k-means over a sample of the group."""
        most = max(k, min(SAMPLE_ROWS * k, SAMPLE_BYTES // (4 * self._dim)))
        if len(group) > most:
            generator = np.random.default_rng((self._seed, int(group[0]), k))
            group = np.sort(generator.choice(group, most, replace=False))
        sample = self._float(group)
        if k == 1:
            return np.asarray(sample.mean(axis=0, dtype=np.float64, keepdims=True), np.float32)
        centroids = None
        for _ in range(ROUNDS):
            centroids = _kmeans(self._faiss, sample, k, self._seed, centroids)
            self._advance(0)
        assert centroids is not None, "there is at least one round"
        return centroids

    def nearest(
        self,
        centroids: NDArray[np.float32],
        group: NDArray[np.int32],
        pool: ThreadPoolExecutor,
        *,
        done_before: int = 0,
    ) -> NDArray[np.int64]:
        """The nearest centroid of each row of the group, int64 (len(group),). done_before: progress at the start."""
        index = pool.submit(self._index_of, centroids).result()
        labels = np.empty(len(group), np.int64)

        def assign(start: int) -> int:
            block = self._float(group[start : start + BLOCK_ROWS])
            labels[start : start + len(block)] = index.search(block, 1)[1][:, 0]
            return start + len(block)

        for done in pool.map(assign, range(0, len(group), BLOCK_ROWS)):
            self._advance(done_before + done // 2 if done_before else 0)
        return labels

    def _index_of(self, centroids: NDArray[np.float32]) -> Any:
        """An index of the centroids: on CPUs one that looks at the nearest groups of them only."""
        faiss = self._faiss
        index = faiss.IndexFlatL2(self._dim)
        if self._gpus:
            index.add(centroids)
            return faiss.index_cpu_to_all_gpus(index)
        if len(centroids) <= FLAT_LISTS:
            index.add(centroids)
            return index
        groups = int(np.sqrt(len(centroids)))
        grouped = faiss.IndexIVFFlat(index, self._dim, groups)
        grouped.cp.min_points_per_centroid = 1
        grouped.cp.seed = self._seed & 0x7FFFFFFF
        grouped.train(centroids)
        grouped.add(centroids)
        grouped.nprobe = min(groups, NEAR_GROUPS)
        return grouped


def train_pq(residuals: NDArray[np.float32], *, parts: int, seed: int, threads: int) -> NDArray[np.float32]:
    """Codebooks of a product quantiser of `parts` sub-quantisers of 8 bits, a k-means each, from float32 (m, width).

    float32 (parts, width / parts, 256): the order in which kernels/lists.py makes tables of them.
    """
    faiss = require_faiss('bits="pq"')
    width = residuals.shape[1]
    sample = np.resize(residuals, (max(256, len(residuals)), width)).reshape(-1, parts, width // parts)

    def train(part: int) -> NDArray[np.float32]:
        # faiss is eight times faster from eight components on, and zeros change no distance.
        own = np.zeros((len(sample), max(8, sample.shape[2])), np.float32)
        own[:, : sample.shape[2]] = sample[:, part]
        centroids = None
        for _ in range(ROUNDS):
            centroids = _kmeans(faiss, own, 256, seed + part, centroids)
        assert centroids is not None, "there is at least one round"
        return centroids[:, : sample.shape[2]].T

    with _pool(faiss, threads) as pool:
        return np.ascontiguousarray(np.stack(list(pool.map(train, range(parts)))))


def _pool(faiss: Any, threads: int) -> ThreadPoolExecutor:
    """Threads whose calls of faiss start no others; one where a GPU does the work."""
    each: Callable[..., object] = faiss.omp_set_num_threads
    return ThreadPoolExecutor(1 if faiss.get_num_gpus() else threads, initializer=each, initargs=(1,))


def _kmeans(
    faiss: Any, sample: NDArray[np.float32], k: int, seed: int, start: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Centroids float32 (k, dim) of a few iterations from `start`, or from rows drawn by the seed."""
    kmeans = faiss.Kmeans(
        sample.shape[1],
        k,
        niter=ITERATIONS,
        seed=seed & 0x7FFFFFFF,
        min_points_per_centroid=1,
        max_points_per_centroid=1 << 30,
        gpu=faiss.get_num_gpus() > 0,
    )
    kmeans.train(sample, init_centroids=start)
    return np.array(kmeans.centroids, np.float32).reshape(k, sample.shape[1])
