"""Building the ivf preview: rows into lists, lists into an order, residuals into codes.

order_by_lists  before rows are written: the disk order, list after list, near lists side by side
build_ivf       after: centroids, route, codes, and the error of estimates measured on a sample
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from index.codes import Coder, encode_int8
from index.graph import GraphRows, nearby_order
from index.kernels import lists as kernels
from index.options import Metric
from index.preview.clustering import Check, cluster_rows, codebooks_of, float_rows, one_thread, require_faiss, train_pq
from index.preview.ivf import IvfPreview
from index.preview.route import Route

PQ_SAMPLE = 16_384
BLOCK_ROWS = 4096
BLOCK_LISTS = 256
SAMPLE_LISTS = 64
SAMPLE_QUERIES = 16


class ListOrder(NamedTuple):
    """order int32 (n,): the rows in list order; offsets int32 (lists + 1,): where each list begins in it."""

    order: NDArray[np.int32]
    offsets: NDArray[np.int32]


def order_by_lists(
    rows: GraphRows, *, lists: int, page_rows: int, seed: int, threads: int, check: Check | None = None
) -> ListOrder:
    """Cluster the rows into about `lists` lists. Near lists lie side by side, in a list near rows."""
    labels, found = cluster_rows(rows, lists=lists, seed=seed, threads=threads, check=check)
    by_list = np.argsort(labels, kind="stable").astype(np.int32)
    sizes = np.bincount(labels, minlength=found)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    first = rows.scalars[by_list[starts[:-1]]]
    means = np.empty((found, rows.codes.shape[1]), np.float32)
    for at in range(found):
        means[at] = float_rows(rows, by_list[starts[at] : starts[at + 1]]).mean(axis=0)
        if check is not None and at % 1024 == 0:
            check(0, len(rows))
    del first
    near = nearby_order(GraphRows(*encode_int8(means, extra=None)), page_rows=1, seed=seed)
    order = np.concatenate([by_list[starts[at] : starts[at + 1]] for at in near])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[near])]).astype(np.int32)
    _order_inside(rows, order, offsets, page_rows, seed, threads)
    return ListOrder(order, offsets)


def _order_inside(
    rows: GraphRows,
    order: NDArray[np.int32],
    offsets: NDArray[np.int32],
    page_rows: int,
    seed: int,
    threads: int,
) -> None:
    from index.kernels.bisect import bisect

    scales = np.ascontiguousarray(rows.scalars[:, 1])
    stop = np.zeros(1, np.uint8)

    def arrange(first: int) -> None:
        for at in range(first, min(first + BLOCK_LISTS, len(offsets) - 1)):
            bisect(rows.codes, scales, order[offsets[at] : offsets[at + 1]], page_rows, seed, stop)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(arrange, range(0, len(offsets) - 1, BLOCK_LISTS)))
