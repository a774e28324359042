"""Contracts of thresholds, heaps and order, over the slow twins and the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from decoder.kernels import reference_select, select

COUNTS = [1, 2, 3, 7, 100, 2048, 2049, 5000]


def random_values(count: int, *, ties: bool = False) -> np.ndarray:
    values = np.random.default_rng(count).normal(size=count + 5).astype(np.float32)
    return np.round(values) if ties else values


class SelectContract:
    nth_smallest: ClassVar[Callable[..., Any]]
    threshold: ClassVar[Callable[..., Any]]
    passing_rows: ClassVar[Callable[..., int]]
    keep_best: ClassVar[Callable[..., int]]
    best_first: ClassVar[Callable[..., None]]

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("count", COUNTS)
    def test_nth_smallest(self, count, ties):
        values = random_values(count, ties=ties)
        ordered = np.sort(values[:count])
        for n in sorted({0, 1, count // 3, count // 2, count - 2, count - 1} & set(range(count))):
            given = values.copy()
            assert self.nth_smallest(given, count, n) == ordered[n]
            assert (
                np.sort(given[:count]).tolist() == ordered.tolist()
                and given[count:].tolist() == values[count:].tolist()
            )

    def test_nth_smallest_of_sorted_and_equal_values(self):
        for values in (np.arange(99), np.arange(99)[::-1], np.zeros(99)):
            for n in (0, 50, 98):
                assert self.nth_smallest(values.astype(np.float32), 99, n) == np.sort(values)[n]

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("count", [*COUNTS, 49_152])
    def test_a_threshold_lets_about_as_many_pass(self, count, ties):
        values = np.sort(random_values(count, ties=ties)[:count])[::-1].copy()  # the smallest last
        sample = np.empty(select.SAMPLE, np.float32)
        for wanted in (1, count // 100, count // 10, count // 2, count - 1):
            if not 0 < wanted < count:
                continue
            bound = self.threshold(values, wanted, sample)
            assert bound == reference_select.threshold(values, wanted, None)
            if not ties:
                assert abs(np.count_nonzero(values <= bound) - wanted) <= 1 + count // select.SAMPLE
        assert self.threshold(values, count, sample) == np.inf

    @pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 100, 1000])
    @pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
    def test_passing_rows(self, count, share):
        values = random_values(count)[:count]
        values[:: max(1, count // 3)] = np.inf
        bound = np.float32(np.quantile(values[np.isfinite(values)], share)) if count > 3 else np.float32(share)
        rows = np.full(count + 1, -7, np.int32)
        m = self.passing_rows(values, bound, rows)
        assert rows[:m].tolist() == np.flatnonzero(values <= bound).tolist()
        assert self.passing_rows(values, np.float32(np.inf), rows) == count
        assert rows[:count].tolist() == list(range(count))

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("m, keep", [(1, 1), (1, 5), (5, 5), (30, 1), (300, 17), (300, 299), (300, 400)])
    def test_keep_best(self, m, keep, ties):
        distances = random_values(m, ties=ties)
        rows = np.sort(np.random.default_rng(2).permutation(1000)[:m]).astype(np.int32)
        who, far = np.full(keep, -7, np.int32), np.full(keep, np.nan, np.float32)
        kept = self.keep_best(distances, m, rows, keep, who, far)
        order = np.lexsort((rows, distances[:m]))[:keep]
        assert kept == min(m, keep)
        assert who[:kept].tolist() == rows[order].tolist() and far[:kept].tolist() == distances[:m][order].tolist()
        assert (who[kept:] == -7).all()

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("count", [0, 1, 2, 50])
    def test_best_first(self, count, ties):
        logits = random_values(60, ties=ties)
        who = np.random.default_rng(3).permutation(65).astype(np.int32)
        order = np.lexsort((who[:count], -logits[:count]))
        expected = who[:count][order].tolist() + who[count:].tolist()
        values = logits[:count][order].tolist() + logits[count:].tolist()
        self.best_first(who, logits, count, np.empty(60, np.float32))
        assert who.tolist() == expected and logits.tolist() == values


class TestSelectReference(SelectContract):
    nth_smallest = staticmethod(reference_select.nth_smallest)
    threshold = staticmethod(reference_select.threshold)
    passing_rows = staticmethod(reference_select.passing_rows)
    keep_best = staticmethod(reference_select.keep_best)
    best_first = staticmethod(reference_select.best_first)


class TestSelectNumba(SelectContract):
    nth_smallest = staticmethod(select.nth_smallest)
    threshold = staticmethod(select.threshold)
    passing_rows = staticmethod(select.passing_rows)
    keep_best = staticmethod(select.keep_best)
    best_first = staticmethod(select.best_first)
