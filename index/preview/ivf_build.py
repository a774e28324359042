"""Building the ivf preview: rows into lists, lists into an order, residuals into codes.

order_by_lists  before rows are written: the disk order, list after list, near lists side by side
build_ivf       after: centroids, route, codes, and the error of estimates measured on a sample
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from index.codes import Coder, encode_int8
from index.graph import GraphRows, nearby_order
from index.kernels import lists as kernels
from index.kernels.bisect import bisect
from index.kernels.rotate import quantise_queries
from index.options import Metric
from index.preview.clustering import Check, cluster_rows, float_rows, train_pq
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """lists: about how many; page_rows: rows of a page, kept near each other; threads change nothing but the time."""

    lists: int
    page_rows: int
    seed: int
    threads: int


def order_by_lists(rows: GraphRows, *, options: ListOptions, check: Check | None = None) -> ListOrder:
    """Cluster the rows into lists. Near lists lie side by side, in a list near rows."""
    seed, threads = options.seed, options.threads
    labels, found = cluster_rows(rows, lists=options.lists, seed=seed, threads=threads, check=check)
    by_list = np.argsort(labels, kind="stable").astype(np.int32)
    sizes = np.bincount(labels, minlength=found)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    means = np.empty((found, rows.codes.shape[1]), np.float32)
    for at in range(found):
        means[at] = float_rows(rows, by_list[starts[at] : starts[at + 1]]).mean(axis=0)
        if check is not None and at % 1024 == 0:
            check(len(rows), len(rows))
    near = nearby_order(GraphRows(*encode_int8(means, extra=None)), page_rows=1, seed=seed)
    order = np.concatenate([by_list[starts[at] : starts[at + 1]] for at in near])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[near])]).astype(np.int32)
    _order_inside(rows, order, offsets, options, check)
    return ListOrder(order, offsets)


def _order_inside(
    rows: GraphRows, order: NDArray[np.int32], offsets: NDArray[np.int32], options: ListOptions, check: Check | None
) -> None:
    """Put the rows of each list in an order in which near ones share a page."""
    scales = np.ascontiguousarray(rows.scalars[:, 1])

    def arrange(first: int) -> None:
        signal = np.zeros(2, np.int64)
        for at in range(first, min(first + BLOCK_LISTS, len(offsets) - 1)):
            bisect(rows.codes, scales, order[offsets[at] : offsets[at + 1]], options.page_rows, options.seed, signal)

    with ThreadPoolExecutor(options.threads) as pool:
        for _ in pool.map(arrange, range(0, len(offsets) - 1, BLOCK_LISTS)):
            if check is not None:
                check(len(rows), len(rows))


@dataclass(frozen=True, slots=True)
class IvfParts:
    """What build_ivf starts from. rows: in list order; offsets: of the lists; codes, scalars: where codes go (of a
    product quantiser: `parts` bytes each, made here); left_out int32: nodes that centroids must not be made of."""

    rows: GraphRows
    offsets: NDArray[np.int32]
    codes: NDArray[np.uint8]
    scalars: NDArray[np.float32]
    bits: int | str
    parts: int
    left_out: NDArray[np.int32]


def build_ivf(
    given: IvfParts, *, coder: Coder, seed: int, threads: int, check: Check | None = None
) -> tuple[IvfPreview, float]:
    """The preview, and the standard deviation of an estimate over (query length * row scale)."""

    def stop(done: int, total: int) -> None:
        """A step of which the rows done say nothing."""
        if check is not None:
            check(0, len(given.rows))

    rows, offsets, dot = given.rows, given.offsets, coder.metric is Metric.DOT
    means = _means(given, threads)
    route = Route.build(means, dot=dot, seed=seed, check=stop)
    labels = np.repeat(np.arange(len(route), dtype=np.int32), np.diff(offsets))
    residuals = _Residuals(rows, route, labels)
    codes, books = given.codes, None
    if given.bits == "pq":
        sample = np.linspace(0, len(rows) - 1, min(PQ_SAMPLE, len(rows))).astype(np.int64)
        books = train_pq(
            np.concatenate([residuals.of(int(i), 1) for i in sample]), parts=given.parts, seed=seed, threads=threads
        )
        codes = np.empty((len(rows), given.parts), np.uint8)
    encoder = _Encoder(coder, books)

    def encode(first: int) -> int:
        block = residuals.of(first, min(BLOCK_ROWS, len(rows) - first))
        some = slice(first, first + len(block))
        codes[some], given.scalars[some] = encoder.encode(block, residuals.centroids_of(some))
        return some.stop

    with ThreadPoolExecutor(threads) as pool:
        for done in pool.map(encode, range(0, len(rows), BLOCK_ROWS)):
            if check is not None:
                check(done, len(rows))
    preview = IvfPreview(codes, given.scalars, given.bits, offsets, route, books)
    return preview, _error_scale(preview, residuals, encoder)


def _means(given: IvfParts, threads: int) -> NDArray[np.float32]:
    rows, count = given.rows, len(given.offsets) - 1
    left_out = np.zeros(len(rows), np.bool_)
    left_out[given.left_out] = True
    scales = np.ascontiguousarray(rows.scalars[:, 1])
    means = np.empty((count, rows.codes.shape[1]), np.float32)

    def mean(first: int) -> None:
        last = min(first + BLOCK_LISTS, count)
        kernels.list_means(rows.codes, scales, given.offsets, left_out, first, last, means)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(mean, range(0, count, BLOCK_LISTS)))
    return means


class _Residuals:
    """Rows without their list's centroid, a block at a time."""

    def __init__(self, rows: GraphRows, route: Route, labels: NDArray[np.int32]) -> None:
        self.rows, self.route, self.labels = rows, route, labels
        self._scales = np.ascontiguousarray(rows.scalars[:, 1])
        self._centroid_scales = np.ascontiguousarray(route.scalars[:, 1])

    def of(self, first: int, count: int) -> NDArray[np.float32]:
        """float32 (count, width)."""
        out = np.empty((count, self.rows.codes.shape[1]), np.float32)
        kernels.residuals(
            self.rows.codes, self._scales, self.route.centroids, self._centroid_scales, self.labels, first, out
        )
        return out

    def centroids_of(self, some: slice) -> NDArray[np.float32]:
        """The centroid of each row of a block, float32 (count, width)."""
        lists = self.labels[some]
        values: NDArray[np.float32] = self.route.centroids[lists].astype(np.float32)
        values *= self._centroid_scales[lists][:, None]
        return values


class _Encoder:
    """Residuals -> codes and scalars, and codes -> the residuals that they stand for."""

    def __init__(self, coder: Coder, books: NDArray[np.float32] | None) -> None:
        self._coder, self._books = coder, books
        self.is_dot = coder.metric is Metric.DOT

    def encode(
        self, residuals: NDArray[np.float32], centroids: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """codes uint8 (m, stride), scalars float32 (m, 2).

        With r a residual, c its centroid and v what the code stands for, |q - c - r|^2 is estimated as
        |q - c|^2 + s - 2 <q - c, v>, where s is |r|^2 (bits) or |v|^2 + |r - v|^2 (a product quantiser). The part without q
        is the row's own: s + 2 <c, v>. So the error grows with |q - c|, not with |q|.
        """
        if self._books is None:
            codes, scalars = self._coder.encode_block(residuals)
            own = scalars[:, 0]
            stands_for = self.decode(codes, scalars)
        else:
            codes = np.empty((len(residuals), len(self._books)), np.uint8)
            kernels.encode_pq(residuals, self._books, codes)
            scalars = np.empty((len(residuals), 2), np.float32)
            stands_for = self.decode(codes, scalars)
            missing = residuals - stands_for
            missed = np.einsum("ij,ij->i", missing, missing)
            own = np.einsum("ij,ij->i", stands_for, stands_for) + missed
            scalars[:, 1] = np.sqrt(missed)
        scalars[:, 0] = 0.0 if self.is_dot else own + 2 * np.einsum("ij,ij->i", centroids, stands_for)
        return codes, scalars

    def decode(self, codes: NDArray[np.uint8], scalars: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 (m, width)."""
        if self._books is not None:
            parts = [book[:, codes[:, part]].T for part, book in enumerate(self._books)]
            return np.concatenate(parts, axis=1)
        middle = np.float32((2**self._coder.bits - 1) / 2)
        return (self._coder.levels(codes) - middle) * scalars[:, 1:2]


def _error_scale(preview: IvfPreview, residuals: _Residuals, encoder: _Encoder) -> float:
    """Points between rows of some lists as queries for the rows of the same and of the next list: estimates against
    distances."""
    total, pairs = 0.0, 0
    for at in np.unique(np.linspace(0, preview.lists - 1, min(SAMPLE_LISTS, preview.lists)).astype(np.int64)):
        first, last = int(preview.offsets[at]), int(preview.offsets[min(at + 2, preview.lists)])
        last = min(last, first + BLOCK_ROWS)
        some = slice(first, last)
        centroids = residuals.centroids_of(some)
        true = centroids + residuals.of(first, last - first)
        stands_for = encoder.decode(preview.codes[some], preview.scalars[some])
        # Between two rows, since a row itself is what int8 stands for without an error, and no other query is.
        queries = np.asarray((true + np.roll(true, -1, axis=0))[:SAMPLE_QUERIES] / 2, np.float32)
        bases = preview.route.scalars[residuals.labels[some], 0]
        estimates = bases + preview.scalars[some, 0] - 2 * _as_searched(queries) @ (centroids + stands_for).T
        wanted = -2 * queries @ true.T
        if not encoder.is_dot:
            wanted += np.einsum("ij,ij->i", true, true)
        lengths = np.linalg.norm(queries, axis=1)[:, None] * preview.scalars[some, 1]
        seen = (lengths > 0) & ~np.eye(len(queries), last - first, dtype=np.bool_)
        total += float((((estimates - wanted)[seen] / lengths[seen]) ** 2).sum(dtype=np.float64))
        pairs += int(seen.sum())
    return float(np.sqrt(total / pairs)) if pairs else 0.0


def _as_searched(queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Queries as what their int8 form stands for: that is a part of an estimate's error, of 8-bit codes the larger one."""
    m = len(queries)
    quantised = np.empty(queries.shape, np.int8)
    scales, sums, lengths = (np.empty(m, np.float32) for _ in range(3))
    quantise_queries(np.ascontiguousarray(queries), quantised, scales, sums, lengths)
    return quantised.astype(np.float32) * scales[:, None]
