"""Contracts of the integer work around exact scores, over the slow twins and the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from index.kernels import choose, reference

NO_GROUPS = np.zeros(0, np.int32), np.zeros(0, np.int64)
GROUPS = np.array([2, 5, 6], np.int32), np.array([3, 4, 9], np.int64)
"""Of nodes 0..7, node 2 has 4 rows, node 5 has 2, node 6 has 6: 17 rows in all."""
FIRST_ROWS = [0, 1, 2, 6, 7, 8, 10, 16]
COPIES = [1, 1, 4, 1, 1, 2, 6, 1]


class ChooseCandidatesContract:
    choose: ClassVar[Callable[..., None]]

    def chosen(self, distances, *, counts, reach, k, depth=0):
        distances = np.asarray(distances, np.float32)
        nodes = np.tile(np.arange(10, 10 + distances.shape[1], dtype=np.int32), (len(distances), 1))
        scalars = np.ones((10 + distances.shape[1], 2), np.float32)
        scalars[::2, 1] = 2.0
        out = np.empty(len(distances), np.int64)
        counts = np.asarray(counts, np.int64)
        self.choose(nodes, distances, counts, scalars, np.asarray(reach, np.float32), k, depth, out)
        return [nodes[q, : out[q]].tolist() for q in range(len(out))]

    def test_the_k_best_and_those_whose_optimistic_estimate_reaches_them(self):
        # Even nodes have twice the error: at a reach of 1, node 14 (5 - 2) reaches the second (3), 13 (4.5 - 1) does not.
        found = self.chosen([[1, 3, 4, 4.5, 5, 5.5]], counts=[6], reach=[1], k=2)
        assert found == [[10, 11, 12, 14]]

    def test_equal_estimates_are_read(self):
        assert self.chosen([[1, 2, 2, 2, 3]], counts=[5], reach=[0], k=2) == [[10, 11, 12, 13]]

    def test_all_of_a_short_list(self):
        assert self.chosen([[1, 2, 9, 9]], counts=[2], reach=[0], k=3) == [[10, 11]]
        assert self.chosen([[1, 2, 9, 9]], counts=[0], reach=[0], k=3) == [[]]

    @pytest.mark.parametrize("depth", [1, 2, 4, 9])
    def test_a_fixed_depth(self, depth):
        assert self.chosen([[1, 2, 3, 4]], counts=[4], reach=[100], k=2, depth=depth) == [[10, 11, 12, 13][:depth]]

    def test_each_query_by_itself(self):
        found = self.chosen([[1, 2, 3], [1, 2, 3], [1, 2, 3]], counts=[3, 3, 1], reach=[0, 10, 10], k=1)
        assert found == [[10], [10, 11, 12], [10]]


class TestChooseCandidatesReference(ChooseCandidatesContract):
    choose = staticmethod(reference.choose_candidates)


class TestChooseCandidatesNumba(ChooseCandidatesContract):
    choose = staticmethod(choose.choose_candidates)


class PlacesContract:
    first_row: ClassVar[Callable[..., int]]
    copies: ClassVar[Callable[..., int]]
    list_places: ClassVar[Callable[..., np.ndarray]]

    def places(self, nodes, *, chosen, groups, k, page_rows):
        offsets = np.full(len(nodes) + 1, -1, np.int64)
        nodes, chosen = np.asarray(nodes, np.int32), np.asarray(chosen, np.int64)
        found = self.list_places(nodes, chosen, *groups, k, page_rows, offsets)
        assert offsets[0] == 0 and offsets[-1] == len(found)
        return [found[offsets[q] : offsets[q + 1]].tolist() for q in range(len(nodes))]

    def test_rows_and_copies_of_nodes(self):
        assert [self.first_row(node, *GROUPS) for node in range(8)] == FIRST_ROWS
        assert [self.copies(node, *GROUPS) for node in range(8)] == COPIES
        assert [self.first_row(node, *NO_GROUPS) for node in (0, 3, 99)] == [0, 3, 99]
        assert self.copies(3, *NO_GROUPS) == 1

    def test_each_place_once_a_query_ascending(self):
        nodes = [[9, 1, 8, 0], [8, 9, 1, 3]]
        assert self.places(nodes, chosen=[4, 2], groups=NO_GROUPS, k=5, page_rows=4) == [[0, 2], [2]]

    @pytest.mark.parametrize("k,expected", [(1, [1, 5]), (2, [1, 5]), (3, [1, 2, 5, 6]), (100, [1, 2, 5, 6, 7])])
    def test_the_first_k_copies_of_equal_vectors(self, k, expected):
        # Node 6 holds rows 10..15, node 2 rows 2..5.
        assert self.places([[6, 2]], chosen=[2], groups=GROUPS, k=k, page_rows=2) == [expected]

    def test_many_copies_grow_the_list(self):
        groups = np.array([0], np.int32), np.array([4999], np.int64)
        assert self.places([[0]], chosen=[1], groups=groups, k=5000, page_rows=1) == [list(range(5000))]

    def test_nothing_chosen(self):
        assert self.places([[1, 2], [3, 4]], chosen=[0, 1], groups=NO_GROUPS, k=1, page_rows=1) == [[], [3]]


class TestPlacesReference(PlacesContract):
    first_row = staticmethod(reference.first_row)
    copies = staticmethod(reference.copies)
    list_places = staticmethod(reference.list_places)


class TestPlacesNumba(PlacesContract):
    first_row = staticmethod(choose.first_row)
    copies = staticmethod(choose.copies)
    list_places = staticmethod(choose.list_places)


class ListRowsContract:
    list_rows: ClassVar[Callable[..., int]]

    def test_every_row_of_each_place_but_none_beyond_the_last(self):
        query_of, rows, starts = (np.full(20, -1, np.int64) for _ in range(3))
        places, offsets = np.array([4, 0, 4], np.int64), np.array([0, 2, 2, 3], np.int64)
        count = self.list_rows(places, offsets, 14, 3, 1000, 10, query_of, rows, starts)
        assert count == 7
        assert query_of[:7].tolist() == [0, 0, 0, 0, 0, 2, 2]
        assert rows[:7].tolist() == [12, 13, 0, 1, 2, 12, 13]
        assert starts[:7].tolist() == [0, 10, 1000, 1010, 1020, 2000, 2010]

    def test_nothing_was_read(self):
        none = np.zeros(0, np.int64)
        assert self.list_rows(none, np.zeros(3, np.int64), 14, 3, 1000, 10, none, none, none) == 0


class TestListRowsReference(ListRowsContract):
    list_rows = staticmethod(reference.list_rows)


class TestListRowsNumba(ListRowsContract):
    list_rows = staticmethod(choose.list_rows)


class KeepBestContract:
    keep: ClassVar[Callable[..., None]]
    sort: ClassVar[Callable[..., None]]

    def best(self, hits, *, m, k, pieces=1):
        """(scores, id codes, rows) of each query, best first. hits: (query, score, id code, row)."""
        scores, codes, rows = np.zeros((m, k), np.float32), np.zeros((m, k), np.uint64), np.full((m, k), -1, np.int64)
        counts = np.zeros(m, np.int64)
        for part in np.array_split(np.arange(len(hits)), pieces):
            some = [hits[j] for j in part]
            self.keep(
                np.array([h[0] for h in some], np.int64),
                np.array([h[1] for h in some], np.float32),
                np.array([h[2] for h in some], np.uint64),
                np.array([h[3] for h in some], np.int64),
                scores,
                codes,
                rows,
                counts,
            )
        self.sort(scores, codes, rows, counts)
        cut = [slice(0, count) for count in counts]
        return [list(zip(scores[q, c].tolist(), codes[q, c].tolist(), rows[q, c].tolist())) for q, c in enumerate(cut)]

    @pytest.mark.parametrize("pieces", [1, 3, 50])
    @pytest.mark.parametrize("k", [1, 2, 7, 50])
    def test_s22_ties_by_ascending_id_and_prefixes_of_longer_lists(self, k, pieces):
        generator = np.random.default_rng(k)
        hits = [
            (int(generator.integers(3)), float(generator.integers(4)), int(i), int(i) * 2)
            for i in generator.permutation(90)
        ]
        expected = [
            sorted(((s, c, r) for q, s, c, r in hits if q == at), key=lambda h: (-h[0], h[1])) for at in range(3)
        ]
        assert self.best(hits, m=3, k=k, pieces=pieces) == [e[:k] for e in expected]

    def test_id_codes_of_64_bits(self):
        hits = [(0, 1.0, 2**64 - 1, 0), (0, 1.0, 2**63, 1), (0, 1.0, 2**53 + 1, 2), (0, 1.0, 2**53, 3)]
        assert [h[1] for h in self.best(hits, m=1, k=3)[0]] == [2**53, 2**53 + 1, 2**63]

    def test_queries_without_hits(self):
        assert self.best([(1, -2.0, 5, 6)], m=3, k=4) == [[], [(-2.0, 5, 6)], []]


class TestKeepBestReference(KeepBestContract):
    keep = staticmethod(reference.keep_best)
    sort = staticmethod(reference.sort_best)


class TestKeepBestNumba(KeepBestContract):
    keep = staticmethod(choose.keep_best)
    sort = staticmethod(choose.sort_best)


class CountFoundContract:
    count: ClassVar[Callable[..., None]]

    def test_places_of_other_queries_and_missing_ones_do_not_count(self):
        true = np.array([[3, 4, -1], [9, 3, 3], [1, 2, 3]], np.int64)
        found = np.full(3, -1, np.int64)
        self.count(true, np.array([3, 4, 3, 7], np.int64), np.array([0, 2, 4, 4], np.int64), found)
        assert found.tolist() == [2, 2, 0]


class TestCountFoundReference(CountFoundContract):
    count = staticmethod(reference.count_found)


class TestCountFoundNumba(CountFoundContract):
    count = staticmethod(choose.count_found)
