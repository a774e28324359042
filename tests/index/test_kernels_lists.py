"""Contracts of the list kernels, over the slow twins and the compiled ones.

Scalars, scales and codebooks are small whole numbers here, so every estimate is exact in float32 and both agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import pytest

from index.kernels import dots, lists, reference_lists

BITS = (1, 2, 4, 8)


class Problem(NamedTuple):
    codes: np.ndarray
    scalars: np.ndarray
    offsets: np.ndarray
    lists: np.ndarray
    bases: np.ndarray
    planes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray


def problem(bits: int, *, n: int = 300, width: int = 24, count: int = 12, probes: int = 5, m: int = 4) -> Problem:
    """Lists of uneven sizes, two of them empty, one longer than a block of the scan."""
    generator = np.random.default_rng(bits)
    cuts = np.sort(generator.integers(0, n - 150, count - 3))
    offsets = np.array([0, 0, *cuts, n - 100, n], np.int32)
    stride = width * bits // 8
    planes = generator.integers(-127, 128, (m, 8 // bits, stride)).astype(np.int8)
    return Problem(
        generator.integers(0, 256, (n, stride)).astype(np.uint8),
        np.stack([generator.integers(0, 50, n), generator.integers(1, 4, n)], axis=1).astype(np.float32),
        offsets,
        np.array([generator.permutation(count)[:probes] for _ in range(m)], np.int32),
        generator.integers(-1000, 1000, (m, probes)).astype(np.float32),
        planes,
        np.full(m, 0.5, np.float32),
        planes.reshape(m, -1).sum(axis=1, dtype=np.int64).astype(np.float32),
    )


def scanned(scan: Callable[..., None], p: Problem, bits: int, keep: int) -> tuple[np.ndarray, ...]:
    m = len(p.lists)
    rows, distances = np.full((m, keep), -9, np.int32), np.full((m, keep), np.nan, np.float32)
    counts, scored = np.empty(m, np.int64), np.empty(m, np.int64)
    scan(
        p.codes,
        p.scalars,
        bits,
        p.offsets,
        p.lists,
        p.bases,
        p.planes,
        p.scales,
        p.sums,
        rows,
        distances,
        counts,
        scored,
    )
    return rows, distances, counts, scored


class ListsContract:
    kernels: ClassVar[object]
    dot_range: ClassVar[Callable[..., None]]

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("width", [8, 40, 384])
    def test_dot_range_is_dot_code_of_each_row(self, bits, width):
        p = problem(bits, width=width)
        out = np.full(20, -1, np.int32)
        self.dot_range(p.codes, 7, 24, p.planes[1], bits, out)
        planes = [(p.codes[7:24] >> (s * bits)) & (2**bits - 1) for s in range(8 // bits)]
        expected = np.concatenate(planes, axis=1).astype(np.int64) @ p.planes[1].reshape(-1).astype(np.int64)
        np.testing.assert_array_equal(out[:17], expected)
        assert (out[17:] == -1).all()

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("keep", [1, 10, 299])
    def test_the_nearest_rows_of_the_lists_and_no_others(self, bits, keep):
        p = problem(bits)
        rows, distances, counts, scored = scanned(self.kernels.scan_lists, p, bits, keep)
        for q in range(len(rows)):
            inside = np.concatenate([np.arange(p.offsets[at], p.offsets[at + 1]) for at in p.lists[q]])
            assert scored[q] == len(inside)
            assert counts[q] == min(keep, len(inside))
            found = rows[q, : counts[q]]
            assert set(found.tolist()) <= set(inside.tolist())
            order = np.lexsort((found, distances[q, : counts[q]]))
            np.testing.assert_array_equal(order, np.arange(counts[q]))

    @pytest.mark.parametrize("bits", BITS)
    def test_agrees_with_the_twin(self, bits):
        p = problem(bits)
        for keep in (1, 7, 64, 250):
            mine = scanned(self.kernels.scan_lists, p, bits, keep)
            twin = scanned(reference_lists.scan_lists, p, bits, keep)
            np.testing.assert_array_equal(mine[2], twin[2])
            for q, count in enumerate(twin[2]):
                np.testing.assert_array_equal(mine[0][q, :count], twin[0][q, :count])
                np.testing.assert_array_equal(mine[1][q, :count], twin[1][q, :count])

    def test_of_equal_rows_the_lower_ones_stay_whatever_the_order_of_the_lists(self):
        p = problem(2)
        p.codes[:] = p.codes[0]
        p.scalars[:] = p.scalars[0]
        p.bases[:] = 3.0
        rows, _, counts, _ = scanned(self.kernels.scan_lists, p, 2, 6)
        for q in range(len(rows)):
            inside = np.concatenate([np.arange(p.offsets[at], p.offsets[at + 1]) for at in p.lists[q]])
            assert rows[q, : counts[q]].tolist() == sorted(inside.tolist())[:6]

    def test_empty_lists_give_nothing(self):
        p = problem(4)
        empty = p._replace(lists=np.zeros((4, 1), np.int32), bases=np.zeros((4, 1), np.float32))
        _, _, counts, scored = scanned(self.kernels.scan_lists, empty, 4, 5)
        assert not counts.any()
        assert not scored.any()

    @pytest.mark.parametrize("count", [1, 63, 64, 200])
    def test_nearest_lists(self, count):
        generator = np.random.default_rng(count)
        centroids = generator.integers(-127, 128, (count, 16)).astype(np.int8)
        scalars = np.stack([generator.integers(0, 9, count), generator.integers(1, 3, count)], axis=1).astype(
            np.float32
        )
        queries, scales = generator.integers(-127, 128, (3, 16)).astype(np.int8), np.full(3, 0.5, np.float32)
        for probes in {1, (count + 1) // 2, count}:
            found, bases = np.empty((3, probes), np.int32), np.empty((3, probes), np.float32)
            self.kernels.nearest_lists(centroids, scalars, queries, scales, found, bases)
            values = scalars[:, 0] - scalars[:, 1] * (queries.astype(np.float32) @ centroids.T.astype(np.float32))
            for q in range(3):
                best = np.lexsort((np.arange(count), values[q]))[:probes]
                np.testing.assert_array_equal(found[q], best)
                np.testing.assert_array_equal(bases[q], values[q, best])
            again = np.empty_like(bases)
            self.kernels.list_bases(centroids, scalars, queries, scales, found, again)
            np.testing.assert_array_equal(again, bases)

    @pytest.mark.parametrize("parts", [1, 3, 8])
    def test_product_quantiser(self, parts):
        generator = np.random.default_rng(parts)
        p, width = problem(8), 24
        books = generator.integers(-9, 10, (parts, width // parts, 256)).astype(np.float32)
        queries = generator.integers(-9, 10, (4, width)).astype(np.float32)
        codes = generator.integers(0, 256, (300, parts)).astype(np.uint8)
        rows, distances = np.empty((4, 9), np.int32), np.empty((4, 9), np.float32)
        counts, scored = np.empty(4, np.int64), np.empty(4, np.int64)
        table = np.empty((parts, 256), np.float32)
        self.kernels.scan_lists_pq(
            codes, p.scalars, books, p.offsets, p.lists, p.bases, queries, table, rows, distances, counts, scored
        )
        stands_for = np.concatenate([books[s][:, codes[:, s]].T for s in range(parts)], axis=1)
        for q in range(4):
            inside = [(at, i) for at, own in enumerate(p.lists[q]) for i in range(p.offsets[own], p.offsets[own + 1])]
            values = [p.bases[q, at] + p.scalars[i, 0] - 2 * stands_for[i] @ queries[q] for at, i in inside]
            order = np.lexsort(([i for _, i in inside], values))[:9]
            assert counts[q] == len(order)
            assert scored[q] == len(inside)
            np.testing.assert_array_equal(rows[q, : counts[q]], [inside[o][1] for o in order])
            np.testing.assert_array_equal(distances[q, : counts[q]], np.array(values, np.float32)[order])

    def test_encode_pq_takes_the_nearest_centroid_of_equals_the_lower(self):
        generator = np.random.default_rng(0)
        books = generator.integers(-9, 10, (4, 3, 256)).astype(np.float32)
        books[0, :, 200] = books[0, :, 100]
        exact = np.concatenate([books[s][:, [100, 7]].T for s in range(4)], axis=1)
        codes = np.empty((2, 4), np.uint8)
        self.kernels.encode_pq(exact, books, codes)
        for s in range(4):
            for i in range(2):
                far = ((books[s] - exact[i, 3 * s : 3 * s + 3, None]) ** 2).sum(axis=0)
                assert codes[i, s] == far.argmin()
        assert codes[0, 0] <= 100

    def test_means_leave_out_rows_unless_nothing_is_left(self):
        codes = np.array([[2, 4], [4, 8], [6, 6], [1, 1]], np.int8)
        scales, offsets = np.array([1, 2, 1, 3], np.float32), np.array([0, 2, 2, 3, 4], np.int32)
        left_out = np.array([False, True, False, True])
        means = np.full((4, 2), -1, np.float32)
        self.kernels.list_means(codes, scales, offsets, left_out, 0, 4, means)
        np.testing.assert_array_equal(means, [[2, 4], [0, 0], [6, 6], [3, 3]])
        self.kernels.list_means(codes, scales, offsets, np.zeros(4, bool), 0, 1, means)
        np.testing.assert_array_equal(means[0], [5, 10])

    def test_residuals(self):
        generator = np.random.default_rng(0)
        codes, centroids = (generator.integers(-127, 128, (n, 8)).astype(np.int8) for n in (10, 3))
        scales, labels = np.arange(1, 11).astype(np.float32), np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 2], np.int32)
        out = np.empty((6, 8), np.float32)
        self.kernels.residuals(codes, scales, centroids, np.array([1, 2, 3], np.float32), labels, 3, out)
        expected = scales[3:9, None] * codes[3:9] - (labels[3:9] + 1)[:, None] * centroids[labels[3:9]].astype(float)
        np.testing.assert_array_equal(out, expected)


class TestListsReference(ListsContract):
    kernels = reference_lists
    dot_range = staticmethod(reference_lists.dot_range)


class TestListsNumba(ListsContract):
    kernels = lists
    dot_range = staticmethod(dots.dot_range)
