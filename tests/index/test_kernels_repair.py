"""Contracts of mending links, over the slow twin and the compiled kernel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

from index.kernels import reference, repair


def rows_of(n: int, width: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """int8 rows whose distances are exact in float32."""
    rows = np.random.default_rng(n).integers(-20, 21, (n, width)).astype(np.int8)
    scalars = np.ones((n, 3), np.float32)
    scalars[:, 0], scalars[:, 2] = (rows.astype(np.int64) ** 2).sum(axis=1), 0
    return rows, scalars


class RepairContract:
    repair: ClassVar[Callable[..., int]]

    def mended(self, rows, links, places, *, alpha=1.0, cuts=(0, None)):
        stay = np.flatnonzero(places >= 0)
        new, scalars = np.empty((len(stay), rows[0].shape[1]), np.int8), np.empty((len(stay), 3), np.float32)
        new[places[stay]], scalars[places[stay]] = rows[0][stay], rows[1][stay]
        out = np.full((len(stay), links.shape[1]), -7, np.int32)
        lost = 0
        ends = [len(places) if cut is None else cut for cut in cuts]
        for first, last in pairwise(ends):
            lost += self.repair(new, scalars, links, places, np.float32(alpha), first, last, out)
        return out, lost

    def test_who_lost_nothing_keeps_its_links_in_order(self):
        links = np.array([[2, 1, -1], [0, -1, -1], [1, 0, -1]], np.int32)
        out, lost = self.mended(rows_of(3), links, np.array([2, 0, 1], np.int32))
        assert lost == 0 and out[[2, 0, 1]].tolist() == [[1, 0, -1], [2, -1, -1], [0, 2, -1]]

    def test_who_lost_a_link_gets_those_of_the_lost_one(self):
        # On a line: 0, 10, 20, 30; row 1 goes, which linked row 0 to rows 2 and 3; the diversity rule keeps row 2.
        rows = np.zeros((4, 16), np.int8)
        rows[:, 0] = [0, 10, 20, 30]
        scalars = np.ones((4, 3), np.float32)
        scalars[:, 0], scalars[:, 2] = rows[:, 0].astype(np.float32) ** 2, 0
        links = np.array([[1, -1, -1], [2, 3, 0], [1, 3, -1], [2, 1, -1]], np.int32)
        out, lost = self.mended((rows, scalars), links, np.array([0, -1, 1, 2], np.int32))
        assert lost == 3 and out.tolist() == [[1, -1, -1], [2, -1, -1], [1, -1, -1]]

    def test_a_row_all_of_whose_links_are_lost_for_good_has_none(self):
        links = np.array([[1], [0], [0]], np.int32)
        out, lost = self.mended(rows_of(3), links, np.array([0, -1, -1], np.int32))
        assert lost == 1 and out.tolist() == [[-1]]

    @pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
    @pytest.mark.parametrize("degree,alpha", [(4, 1.0), (12, 1.2)])
    def test_the_same_links_as_the_plain_twin(self, share, degree, alpha):
        generator = np.random.default_rng(degree)
        n = 120
        links = np.stack([generator.choice(n - 1, degree, replace=False) for _ in range(n)]).astype(np.int32)
        links[links >= np.arange(n)[:, None]] += 1
        links[generator.random(n) < 0.3, degree // 2 :] = -1
        stay = np.flatnonzero(generator.random(n) >= share)
        places = np.full(n, -1, np.int32)
        places[stay] = generator.permutation(len(stay))
        mine = self.mended(rows_of(n), links, places, alpha=alpha, cuts=(0, 50, None))
        theirs = TestRepairReference().mended(rows_of(n), links, places, alpha=alpha)
        np.testing.assert_array_equal(mine[0], theirs[0])
        assert mine[1] == theirs[1]
        for own, row in enumerate(mine[0].tolist()):
            used = [i for i in row if i >= 0]
            assert own not in used and len(set(used)) == len(used) and row[len(used) :] == [-1] * (degree - len(used))


class TestRepairReference(RepairContract):
    repair = staticmethod(reference.repair_links)


class TestRepairNumba(RepairContract):
    repair = staticmethod(repair.repair_links)
