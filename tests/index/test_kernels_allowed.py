"""Contracts of the kernels that search among some rows only, over the slow twins and the compiled ones."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

from index.kernels import allowed, reference, reference_allowed

BITS = (1, 2, 4, 8)
GROUPS = np.array([2, 5, 6], np.int32), np.array([3, 4, 9], np.int64)
"""Of nodes 0..7, node 2 has 4 rows (2 to 5), node 5 has 2 (8, 9), node 6 has 6 (10 to 15): 17 rows in all."""


class AllowedContract:
    kernels: ClassVar[ModuleType]

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("keep", [1, 30, 700])
    def test_scan_is_that_of_the_listed_nodes_alone(self, bits, keep):
        p = problem(bits)
        listed = np.flatnonzero(np.random.default_rng(9).random(len(p["codes"])) < 0.8).astype(np.int32)
        keep = min(keep, len(listed))
        rows, distances = np.empty((3, keep), np.int32), np.empty((3, keep), np.float32)
        prepared = p["planes"], p["scales"], p["sums"]
        self.kernels.scan_nodes(p["codes"], p["scalars"], bits, listed, *prepared, rows, distances)
        expected, far = np.empty_like(rows), np.empty_like(distances)
        reference.scan_queries(p["codes"][listed], p["scalars"][listed], bits, *prepared, expected, far)
        np.testing.assert_array_equal(rows, listed[expected])
        np.testing.assert_array_equal(distances, far)

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("wanted", [1, 60, 10**6])
    def test_lists_are_visited_until_enough_was_seen(self, bits, wanted):
        p, lists, bases, starts, listed = list_problem(bits)
        keep, m = 25, 3
        rows, distances = np.full((m, keep), -9, np.int32), np.full((m, keep), np.nan, np.float32)
        counts, hops, scored = (np.empty(m, np.int64) for _ in range(3))
        prepared = p["planes"], p["scales"], p["sums"]
        self.kernels.scan_allowed_lists(
            p["codes"], p["scalars"], bits, listed, starts, lists, bases, wanted, *prepared,
            rows, distances, counts, hops, scored,
        )  # fmt: skip
        for q in range(m):
            sizes = np.diff(starts)[lists[q]]
            visited = int(np.searchsorted(np.cumsum(sizes), wanted)) + 1 if wanted <= sizes.sum() else lists.shape[1]
            assert (hops[q], scored[q]) == (visited, sizes[:visited].sum())
            far = reference._estimates(p["codes"], p["scalars"], bits, p["planes"][q], p["scales"][q], p["sums"][q])
            near = sorted(
                (float(far[i] + bases[q, j]), int(i))
                for j in range(visited)
                for i in listed[starts[lists[q, j]] : starts[lists[q, j] + 1]]
            )[:keep]
            assert counts[q] == len(near)
            assert rows[q, : counts[q]].tolist() == [i for _, i in near]
            assert distances[q, : counts[q]].tolist() == [value for value, _ in near]

    def test_product_quantised_lists(self):
        p, lists, bases, starts, listed = list_problem(8)
        generator = np.random.default_rng(3)
        parts, each, m = 3, 2, 3
        books = generator.integers(-5, 6, (parts, each, 256)).astype(np.float32)
        codes = generator.integers(0, 256, (len(p["codes"]), parts)).astype(np.uint8)
        queries = generator.integers(-9, 10, (m, parts * each)).astype(np.float32)
        rows, distances = np.full((m, 40), -9, np.int32), np.full((m, 40), np.nan, np.float32)
        counts, hops, scored = (np.empty(m, np.int64) for _ in range(3))
        self.kernels.scan_allowed_pq(
            codes, p["scalars"], books, listed, starts, lists, bases, 10**6, queries,
            np.empty((parts, 256), np.float32), rows, distances, counts, hops, scored,
        )  # fmt: skip
        for q in range(m):
            near = sorted(
                (float(bases[q, j] + p["scalars"][i, 0] - 2 * stands_for(books, codes[i]) @ queries[q]), int(i))
                for j in range(lists.shape[1])
                for i in listed[starts[lists[q, j]] : starts[lists[q, j] + 1]]
            )[:40]
            assert rows[q, : counts[q]].tolist() == [i for _, i in near]
            assert distances[q, : counts[q]].tolist() == [value for value, _ in near]

    def test_candidates_that_are_not_allowed_are_dropped(self):
        nodes = np.array([[4, 1, 3, 0], [2, 0, 9, 9]], np.int32)
        distances = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
        counts, reached = np.array([4, 2], np.int64), np.empty(2, np.int64)
        mask = np.array([1, 0, 1, 1, 1], np.bool_)
        self.kernels.keep_allowed(nodes.copy(), distances.copy(), counts.copy(), mask, 3, 3, reached)
        assert reached.tolist() == [4, -1]
        self.kernels.keep_allowed(nodes, distances, counts, mask, 2, 2, reached)
        assert counts.tolist() == [2, 2] and reached.tolist() == [3, 2]
        assert nodes[:, :2].tolist() == [[4, 3], [2, 0]] and distances[:, :2].tolist() == [[1, 3], [5, 6]]

    @pytest.mark.parametrize(("k", "page_rows", "expected"), [
        (1, 1, [[3], [11, 16]]),
        (2, 1, [[3, 5], [11, 12, 16]]),
        (9, 1, [[3, 5], [11, 12, 15, 16]]),
        (9, 4, [[0, 1], [2, 3, 4]]),
    ])  # fmt: skip
    def test_of_copies_the_first_allowed_ones_are_wanted(self, k, page_rows, expected):
        mask = np.zeros(17, np.bool_)
        mask[[3, 5, 11, 12, 15, 16]] = True
        offsets = np.empty(3, np.int64)
        found = self.kernels.list_allowed_places(
            np.array([[2, 5], [7, 6]], np.int32), np.array([1, 2], np.int64), *GROUPS, mask, k, page_rows, offsets
        )
        assert [found[offsets[q] : offsets[q + 1]].tolist() for q in range(2)] == expected

    def test_rows_on_pages_that_are_not_allowed_are_dropped(self):
        query_of, rows, starts = (np.array(x, np.int64) for x in ([0, 0, 1, 1, 2], [5, 6, 5, 7, 6], [1, 2, 3, 4, 5]))
        mask, scored = np.array([0, 0, 0, 0, 0, 1, 0, 1], np.bool_), np.empty(3, np.int64)
        left = self.kernels.keep_allowed_rows(query_of, rows, starts, 5, mask, scored)
        assert left == 3 and scored.tolist() == [1, 2, 0]
        assert (query_of[:3].tolist(), rows[:3].tolist(), starts[:3].tolist()) == ([0, 1, 1], [5, 5, 7], [1, 3, 4])

    def test_chances(self):
        assert self.kernels.chance_below(1.0, 2.0, 0.0) == 1.0 and self.kernels.chance_below(2.0, 2.0, 0.0) == 0.0
        assert self.kernels.chance_below(1.0, 1.0, 3.0) == pytest.approx(0.5)
        assert self.kernels.chance_below(2.0, 1.0, 1.0) == pytest.approx(0.158655, rel=1e-4)
        assert self.kernels.chance_below(6.1, 1.0, 1.0) == 0.0
        # The integral of the normal distribution's tail from 0 on: 1 / sqrt(2 pi).
        assert self.kernels.expected_beyond(10.0, 1.0, 1.0, 2.0) == pytest.approx(3.98942, rel=1e-3)
        assert self.kernels.expected_beyond(10.0, 11.1, 1.0, 2.0) == 0.0

    def test_reading_goes_as_far_as_rows_are_expected_to_be_missed(self):
        scalars = np.ones((10, 2), np.float32)
        nodes = np.tile(np.arange(6, dtype=np.int32), (5, 1))
        distances = np.tile(np.array([1, 2, 3, 3.5, 4, 9], np.float32), (5, 1))
        counts = np.array([6, 6, 6, 6, 0], np.int64)
        # Nothing known to be missing; two read; all read; complete only to 4: too few; no candidates.
        horizons = np.array([np.inf, np.inf, np.inf, 4, np.inf], np.float32)
        read = np.array([[0, 1], [0, 1], [0, 1], [0, 1], [0, 1]], np.int32)
        chosen, ends = np.array([2, 2, 2, 2, 0], np.int64), np.empty(5, np.int64)
        limits = np.array([3, 0, 3, 4, 3], np.float32)
        deviations = np.array([1, 1, 1e-3, 1, 1], np.float32)
        self.kernels.missed_ends(
            nodes, distances, counts, horizons, read, chosen, scalars, deviations, limits, 0.2, ends
        )
        assert ends.tolist() == [4, 0, 3, -1, 0]


def problem(bits: int, n: int = 900, width: int = 16, m: int = 3) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(bits)
    planes = generator.integers(-127, 128, (m, 8 // bits, width * bits // 8)).astype(np.int8)
    return {
        "codes": generator.integers(0, 256, (n, width * bits // 8)).astype(np.uint8),
        "scalars": np.stack([generator.integers(0, 50, n), generator.integers(1, 4, n)], axis=1).astype(np.float32),
        "planes": planes,
        "scales": np.full(m, 0.5, np.float32),
        "sums": planes.reshape(m, -1).sum(axis=1, dtype=np.int64).astype(np.float32),
    }


def list_problem(bits: int):
    """Lists, one of them longer than a block and one empty, and some of their nodes."""
    p, generator = problem(bits), np.random.default_rng(bits + 50)
    offsets = np.array([0, 40, 40, 90, 560, 700, 900], np.int32)
    listed = np.flatnonzero(generator.random(900) < 0.7).astype(np.int32)
    lists = np.array([generator.permutation(6)[:4] for _ in range(3)], np.int32)
    return p, lists, generator.integers(-99, 99, (3, 4)).astype(np.float32), np.searchsorted(listed, offsets), listed


def stands_for(books: np.ndarray, code: np.ndarray) -> np.ndarray:
    return np.concatenate([book[:, value] for book, value in zip(books, code)])


class TestAllowedReference(AllowedContract):
    kernels = reference_allowed


class TestAllowedNumba(AllowedContract):
    kernels = allowed
