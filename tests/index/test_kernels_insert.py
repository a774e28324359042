"""Contracts of linking, of disk order and of rearranging rows, over the slow twins and the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from index.kernels import bisect, insert, permute, reach, reference


def rows_of(n: int, width: int = 16, *, seed: int = 0, extra: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """int8 rows and scalars whose distances are exact in float32: whole numbers, scale 1."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(-20, 21, (n, width)).astype(np.int8)
    scalars = np.ones((n, 3), np.float32)
    scalars[:, 2] = generator.integers(0, 9, n) if extra else 0
    scalars[:, 0] = (rows.astype(np.int64) ** 2).sum(axis=1) + scalars[:, 2] ** 2
    return rows, scalars


class LinkRowsContract:
    link: ClassVar[Callable[..., int]]
    reverse: ClassVar[Callable[..., None]]
    pairs: ClassVar[Callable[..., int]]

    def built(self, n, *, degree, beam, alpha=1.0, seed=0, extra=False, batch=7):
        """A graph built as graph/build.py does it, on one thread."""
        rows, scalars = rows_of(n, seed=seed, extra=extra)
        links = np.full((n, degree), -1, np.int32)
        entries, visited, mark = np.arange(min(4, n), dtype=np.int32), np.zeros(n, np.uint8), 0
        for done in range(1, n, batch):
            some = np.arange(done, min(done + batch, n), dtype=np.int32)
            there = entries[: min(len(entries), done)]
            mark = self.link(rows, scalars, links, some, there, beam, degree // 2, np.float32(alpha), visited, mark)
            sources = np.empty(len(some) * degree, np.int32)
            targets = np.empty_like(sources)
            count = self.pairs(links, some, sources, targets)
            order = np.argsort(targets[:count], kind="stable")
            sources, targets = sources[:count][order], targets[:count][order]
            unique, starts = np.unique(targets, return_index=True)
            starts = np.append(starts, count)
            self.reverse(rows, scalars, links, sources, starts, unique, np.float32(alpha), 0, len(unique))
        return rows, scalars, links

    @pytest.mark.parametrize("extra", [False, True])
    @pytest.mark.parametrize(
        "n,degree,beam,alpha", [(2, 4, 3, 1.0), (60, 6, 10, 1.0), (150, 8, 20, 1.2), (60, 16, 60, 1.0)]
    )
    def test_the_same_links_as_the_plain_twin(self, n, degree, beam, alpha, extra):
        _, _, mine = self.built(n, degree=degree, beam=beam, alpha=alpha, extra=extra)
        _, _, theirs = TestLinkRowsReference().built(n, degree=degree, beam=beam, alpha=alpha, extra=extra)
        np.testing.assert_array_equal(mine, theirs)

    def test_links_are_distinct_other_rows_and_then_minus_one(self):
        _, _, links = self.built(120, degree=6, beam=12)
        for row, mine in enumerate(links.tolist()):
            used = mine[: mine.index(-1)] if -1 in mine else mine
            assert used and row not in used and len(set(used)) == len(used)
            assert all(i == -1 for i in mine[len(used) :])

    def test_kept_links_are_diverse(self):
        rows, _, links = self.built(80, degree=40, beam=80, batch=1)
        wide = rows.astype(np.int64)
        far = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
        # The last row: its links come from one selection, and no reverse link was added since.
        kept = links[-1][links[-1] >= 0]
        for a in range(1, len(kept)):
            assert all(far[kept[a], kept[b]] >= far[79, kept[a]] for b in range(a))
        assert kept[0] == np.argmin(np.where(np.arange(80) == 79, np.iinfo(np.int64).max, far[79]))

    def test_more_rows_than_marks(self):
        rows, scalars = rows_of(20)
        links = np.full((20, 4), -1, np.int32)
        links[0, 0], links[1, 0] = 1, 0
        visited, mark = np.zeros(20, np.uint8), 0
        batch = np.resize(np.arange(2, 20, dtype=np.int32), 600)
        entries = np.zeros(1, np.int32)
        mark = self.link(rows, scalars, links, batch, entries, 8, 2, np.float32(1), visited, mark)
        assert mark == 600 % 255
        assert (links[2:, 0] >= 0).all()


class TestLinkRowsReference(LinkRowsContract):
    link = staticmethod(reference.link_rows)
    reverse = staticmethod(reference.add_reverse)
    pairs = staticmethod(reference.reverse_pairs)


class TestLinkRowsNumba(LinkRowsContract):
    link = staticmethod(insert.link_rows)
    reverse = staticmethod(insert.add_reverse)
    pairs = staticmethod(insert.reverse_pairs)


class BisectContract:
    bisect: ClassVar[Callable[..., None]]

    @pytest.mark.parametrize("page_rows", [1, 2, 5, 10, 300])
    @pytest.mark.parametrize("n", [1, 2, 9, 10, 11, 256, 257])
    def test_a_permutation(self, n, page_rows):
        rows, _ = rows_of(n)
        order = np.arange(n, dtype=np.int32)
        self.bisect(rows, np.ones(n, np.float32), order, page_rows, 0, np.zeros(2, np.int64))
        assert sorted(order.tolist()) == list(range(n))

    def test_pages_are_full_of_near_rows(self):
        # 30 tight clusters of ten rows: with ten rows a page, most pages hold rows of few clusters.
        generator = np.random.default_rng(2)
        centres = generator.integers(-100, 101, (30, 16))
        cluster = generator.permutation(np.repeat(np.arange(30), 10))
        rows = np.clip(centres[cluster] + generator.integers(-2, 3, (300, 16)), -127, 127).astype(np.int8)
        order = np.arange(300, dtype=np.int32)
        self.bisect(rows, np.ones(300, np.float32), order, 10, 0, np.zeros(2, np.int64))
        pages = cluster[order].reshape(30, 10)
        assert np.mean([len(set(page.tolist())) for page in pages]) < 4

    def test_equal_rows(self):
        order = np.arange(100, dtype=np.int32)
        self.bisect(np.ones((100, 8), np.int8), np.ones(100, np.float32), order, 3, 0, np.zeros(2, np.int64))
        assert sorted(order.tolist()) == list(range(100))

    def test_rows_placed_are_counted(self):
        rows, _ = rows_of(100)
        signal = np.zeros(2, np.int64)
        self.bisect(rows, np.ones(100, np.float32), np.arange(100, dtype=np.int32), 3, 0, signal)
        assert signal.tolist() == [0, 100]

    def test_can_be_stopped(self):
        rows, _ = rows_of(100)
        order = np.arange(100, dtype=np.int32)
        signal = np.array([1, 0], np.int64)
        self.bisect(rows, np.ones(100, np.float32), order, 3, 0, signal)
        assert signal.tolist() == [1, 0]
        assert order.tolist() == list(range(100))


class TestBisectReference(BisectContract):
    bisect = staticmethod(reference.bisect)


class TestBisectNumba(BisectContract):
    bisect = staticmethod(bisect.bisect)


class PermuteRowsContract:
    permute: ClassVar[Callable[..., None]]

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "float32", "int32"])
    @pytest.mark.parametrize("n", [0, 1, 2, 97])
    def test_in_place(self, n, dtype):
        generator = np.random.default_rng(n)
        rows = generator.integers(0, 100, (n, 5)).astype(dtype)
        order = generator.permutation(n).astype(np.int32)
        expected = rows[order]
        self.permute(rows, order)
        np.testing.assert_array_equal(rows, expected)

    def test_rows_may_be_part_of_a_wider_array(self):
        wide = np.arange(40, dtype=np.float32).reshape(5, 8)
        before = wide.copy()
        order = np.array([4, 2, 0, 1, 3], np.int32)
        self.permute(wide[:, 2:5], order)
        np.testing.assert_array_equal(wide[:, 2:5], before[order, 2:5])
        np.testing.assert_array_equal(wide[:, [0, 1, 5, 6, 7]], before[:, [0, 1, 5, 6, 7]])


class TestPermuteRowsReference(PermuteRowsContract):
    permute = staticmethod(reference.permute_rows)


class TestPermuteRowsNumba(PermuteRowsContract):
    permute = staticmethod(permute.permute_rows)


class ConnectRowsContract:
    connect: ClassVar[Callable[..., int]]

    def reached(self, links, entries):
        seen = set(entries.tolist())
        waiting = list(seen)
        while waiting:
            new = {i for i in links[waiting.pop()].tolist() if i >= 0} - seen
            seen |= new
            waiting += new
        return seen

    @pytest.mark.parametrize("seed", range(6))
    def test_every_member_can_be_reached_and_none_is_lost(self, seed):
        generator = np.random.default_rng(seed)
        n, degree = 300, 4
        # Links within blocks of ten only, many of them doubled: many pieces that no link leaves.
        links = (np.arange(n)[:, None] // 10 * 10 + generator.integers(0, 10, (n, degree))).astype(np.int32)
        for row, cut in enumerate(generator.integers(0, degree + 1, n)):
            links[row, cut:] = -1
        members = np.flatnonzero(np.arange(n) // 10 % 3 != 2).astype(np.int32)
        entries = np.array([0, 11], np.int32)
        before = self.reached(links, entries)
        whole = links.copy()
        added = self.connect(links, entries, members)
        assert before | set(members.tolist()) == self.reached(links, entries)
        assert 0 < added == len(set(members.tolist()) - before) or added < len(members)
        changed = (links != whole).any(axis=1)
        assert changed.sum() <= added
        for mine in links.tolist():
            assert all(i == -1 for i in mine[mine.index(-1) :]) if -1 in mine else True

    def test_a_connected_graph_stays_as_it_is(self):
        links = np.stack([(np.arange(50) + 1) % 50, np.full(50, -1)], axis=1).astype(np.int32)
        before = links.copy()
        assert self.connect(links, np.array([7], np.int32), np.arange(50, dtype=np.int32)) == 0
        np.testing.assert_array_equal(links, before)

    def test_a_lost_row_hangs_from_the_nearest_row_that_it_links_to(self):
        links = np.array([[1, 2], [0, 2], [0, 1], [2, 1]], np.int32)
        assert self.connect(links, np.array([0], np.int32), np.arange(4, dtype=np.int32)) == 1
        assert links[2].tolist() == [0, 3]


class TestConnectRowsReference(ConnectRowsContract):
    connect = staticmethod(reference.connect_rows)


class TestConnectRowsNumba(ConnectRowsContract):
    connect = staticmethod(reach.connect_rows)
