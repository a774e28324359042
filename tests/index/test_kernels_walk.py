"""Contracts of dots, scan and walk, over the slow twins and the compiled kernels.

Scalars and scales are small whole numbers here, so every estimate is exact in float32 and both must agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from numba import njit

from index.kernels import dots, reference, scan, walk

BITS = (1, 2, 4, 8)


@njit
def compiled_dot_code(codes, i, query, bits):
    return dots.dot_code(codes, i, query, bits)


@njit
def compiled_dot_int8(rows, i, query):
    return dots.dot_int8(rows, i, query)


class Problem(NamedTuple):
    codes: np.ndarray
    scalars: np.ndarray
    links: np.ndarray
    planes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray


def problem(bits: int, *, n: int = 200, width: int = 16, degree: int = 6, m: int = 5, seed: int = 0) -> Problem:
    """Random codes, links (some rows have fewer) and queries."""
    generator = np.random.default_rng(seed)
    stride = width * bits // 8
    codes = generator.integers(0, 256, (n, stride)).astype(np.uint8)
    scalars = np.stack([generator.integers(0, 50, n), generator.integers(1, 4, n)], axis=1).astype(np.float32)
    links = generator.integers(0, n, (n, degree)).astype(np.int32)
    for row, cut in enumerate(generator.integers(0, degree + 1, n)):
        links[row, max(cut, 1) if n > 1 else cut :] = -1
    planes = generator.integers(-127, 128, (m, 8 // bits, stride)).astype(np.int8)
    sums = planes.reshape(m, -1).sum(axis=1, dtype=np.int64).astype(np.float32)
    return Problem(codes, scalars, links, planes, np.full(m, 0.5, np.float32), sums)


class DotContract:
    dot_code: ClassVar[Callable[..., int]]
    dot_int8: ClassVar[Callable[..., int]]

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("width", [8, 24, 384])
    def test_every_level_meets_its_component(self, bits, width):
        p = problem(bits, width=width, n=20)
        levels = reference.unpack(p.codes, bits)
        assert levels.shape == (20, width)
        for i in range(20):
            expected = sum(int(a) * int(b) for a, b in zip(levels[i], p.planes[0].reshape(-1)))
            assert self.dot_code(p.codes, i, p.planes[0], bits) == expected

    @pytest.mark.parametrize("bits", BITS)
    def test_extremes_do_not_overflow(self, bits):
        codes = np.full((1, 4096 * bits // 8), 255, np.uint8)
        query = np.full((8 // bits, 4096 * bits // 8), -127, np.int8)
        assert self.dot_code(codes, 0, query, bits) == -127 * 4096 * (2**bits - 1)

    def test_int8_rows(self):
        rows = np.array([[-128, 127, 5], [1, 2, 3]], np.int8)
        assert self.dot_int8(rows, 0, np.array([-128, -128, 1], np.int8)) == 128 * 128 - 127 * 128 + 5
        assert self.dot_int8(np.full((2, 4096), -128, np.int8), 1, np.full(4096, -128, np.int8)) == 4096 * 128 * 128


class TestDotReference(DotContract):
    dot_code = staticmethod(reference.dot_code)
    dot_int8 = staticmethod(reference.dot_int8)


class TestDotNumba(DotContract):
    dot_code = staticmethod(compiled_dot_code)
    dot_int8 = staticmethod(compiled_dot_int8)


class ScanQueriesContract:
    scan: ClassVar[Callable[..., None]]

    def scanned(self, p, bits, keep):
        rows, distances = np.full((len(p.planes), keep), -7, np.int32), np.empty((len(p.planes), keep), np.float32)
        self.scan(p.codes, p.scalars, bits, p.planes, p.scales, p.sums, rows, distances)
        return rows, distances

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("keep", [1, 2, 13, 199, 200])
    def test_twins_agree(self, bits, keep):
        p = problem(bits)
        for mine, theirs in zip(self.scanned(p, bits, keep), TestScanQueriesReference().scanned(p, bits, keep)):
            np.testing.assert_array_equal(mine, theirs)

    def test_of_equals_the_lower_row_comes_first(self):
        p = problem(4, n=60)
        p = p._replace(codes=np.zeros_like(p.codes), scalars=np.ones_like(p.scalars))
        rows, _ = self.scanned(p, 4, 17)
        np.testing.assert_array_equal(rows, np.tile(np.arange(17), (5, 1)))

    def test_a_longer_list_begins_with_the_shorter_one(self):
        p = problem(1, width=8)  # 256 different codes at most: many ties
        longest, _ = self.scanned(p, 1, 200)
        for keep in range(1, 200, 23):
            np.testing.assert_array_equal(self.scanned(p, 1, keep)[0], longest[:, :keep])


class TestScanQueriesReference(ScanQueriesContract):
    scan = staticmethod(reference.scan_queries)


class TestScanQueriesNumba(ScanQueriesContract):
    scan = staticmethod(scan.scan_queries)


class WalkQueriesContract:
    walk: ClassVar[Callable[..., int]]

    def walked(self, p, bits, beam, entries, *, slots=None, mark=0, table=None):
        m = len(p.planes)
        rows, distances = np.full((m, beam), -1, np.int32), np.full((m, beam), np.nan, np.float32)
        counts, hops, scored = (np.full(m, -1, np.int64) for _ in range(3))
        slots = slots or walk.visited_slots(beam, p.links.shape[1], len(entries))
        table = np.zeros(slots, np.uint64) if table is None else table
        last = self.walk(
            p.codes, p.scalars, bits, p.links, p.planes, p.scales, p.sums, np.asarray(entries, np.int32), table, mark,
            rows, distances, counts, hops, scored,
        )  # fmt: skip
        assert last == mark + m
        return rows, distances, counts, hops, scored

    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("beam", [1, 2, 10, 64, 200])
    def test_same_rows_and_counts_as_a_plain_beam_walk(self, bits, beam):
        for seed in range(4):
            p = problem(bits, seed=seed)
            entries = np.random.default_rng(seed).choice(200, 7, replace=False)
            expected = TestWalkQueriesReference().walked(p, bits, beam, entries)
            for mine, theirs in zip(self.walked(p, bits, beam, entries), expected):
                np.testing.assert_array_equal(mine, theirs)

    def test_lists_are_sorted_distinct_and_scored_as_a_scan_scores_them(self):
        p = problem(4, degree=12)
        rows, distances, counts, hops, scored = self.walked(p, 4, 32, [0, 50, 100])
        everything, far = TestScanQueriesReference().scanned(p, 4, 200)
        for q in range(5):
            mine, near = rows[q, : counts[q]], distances[q, : counts[q]]
            assert len(set(mine.tolist())) == len(mine) and (np.diff(near) >= 0).all()
            value = dict(zip(everything[q].tolist(), far[q].tolist()))
            assert [value[i] for i in mine.tolist()] == near.tolist()
            assert hops[q] >= counts[q] == 32 and scored[q] >= counts[q]

    def test_a_beam_of_all_rows_finds_what_a_scan_finds(self):
        p = problem(8, degree=12)
        ring = p.links.copy()
        ring[:, 0] = (np.arange(200) + 1) % 200
        p = p._replace(links=ring)
        rows, distances, counts, hops, scored = self.walked(p, 8, 200, [3])
        assert (counts == 200).all() and (hops == 200).all() and (scored == 200).all()
        np.testing.assert_array_equal(distances, TestScanQueriesReference().scanned(p, 8, 200)[1])
        assert (np.sort(rows, axis=1) == np.arange(200)).all()

    def test_a_row_alone_and_repeated_entries(self):
        p = problem(4, n=1)
        p = p._replace(links=np.full((1, 6), -1, np.int32))
        rows, _, counts, hops, scored = self.walked(p, 4, 4, [0, 0, 0])
        assert (rows[:, 0] == 0).all() and (counts == 1).all() and (hops == 1).all() and (scored == 1).all()

    def test_a_query_alone_walks_as_in_a_batch(self):
        p = problem(4, m=8)
        together = self.walked(p, 4, 16, [1, 2])
        for q in range(8):
            one = p._replace(planes=p.planes[q : q + 1], scales=p.scales[q : q + 1], sums=p.sums[q : q + 1])
            for a, b in zip(self.walked(one, 4, 16, [1, 2]), together):
                np.testing.assert_array_equal(a[0], b[q])

    def test_marks_left_in_the_table_change_nothing(self):
        p = problem(4)
        table = np.zeros(walk.visited_slots(16, 6, 2), np.uint64)
        first = self.walked(p, 4, 16, [1, 2], table=table)
        for turn in range(1, 6):
            again = self.walked(p, 4, 16, [1, 2], table=table, mark=5 * turn)
            for a, b in zip(first, again):
                np.testing.assert_array_equal(a, b)

    def test_a_table_that_fills_up_ends_the_walk_in_order(self):
        p = problem(4, n=2000, degree=8)
        ring = p.links.copy()
        ring[:, 0] = (np.arange(2000) + 1) % 2000
        p = p._replace(links=ring)
        rows, distances, counts, _, scored = self.walked(p, 4, 2000, [0], slots=256)
        assert (scored <= 256 * 3 // 4).all() and (counts == scored).all()
        for q in range(5):
            assert len(set(rows[q, : counts[q]].tolist())) == counts[q]
            assert (np.diff(distances[q, : counts[q]]) >= 0).all()


class TestWalkQueriesReference(WalkQueriesContract):
    walk = staticmethod(reference.walk_queries)


class TestWalkQueriesNumba(WalkQueriesContract):
    walk = staticmethod(walk.walk_queries)


@pytest.mark.parametrize("beam", [1, 16, 100, 4096])
@pytest.mark.parametrize("degree", [8, 32])
def test_visited_slots_is_a_power_of_two_that_stays_half_empty(beam, degree):
    slots = walk.visited_slots(beam, degree, 64)
    assert slots & (slots - 1) == 0
    assert slots >= 2 * (64 + beam * degree)
