"""Which operating point a search uses, and what manifests keep of it."""

from __future__ import annotations

import pytest

from index.errors import OptionsError
from index.operating_points import (
    MEASURED_K,
    PAGE_COST,
    OperatingPoint,
    StopByError,
    choose_point,
    effort_for,
    measured_k,
)


def point(k: int = 10, *, effort: int = 64, low: float = 0.9, pages: float = 10.0, rows: float = 500.0, z: float = 1.0):
    return OperatingPoint(
        k=k,
        effort=effort,
        rule=StopByError(z=z),
        recall=low + 0.01,
        low=low,
        high=low + 0.02,
        pages=pages,
        rows_scored=rows,
    )


def test_the_cheapest_that_reaches_the_recall_by_its_lower_bound():
    cheap, middle, dear = point(low=0.93, rows=100), point(low=0.95, rows=300), point(low=0.99, rows=900)
    assert choose_point([dear, cheap, middle], k=10, recall=0.95) is middle
    assert choose_point([dear, cheap, middle], k=10, recall=0.9) is cheap
    assert choose_point([dear, cheap, middle], k=10, recall=0.999) is dear


def test_pages_and_rows_are_both_paid_for():
    few_pages, few_rows = point(pages=5, rows=500 + 5 * PAGE_COST - 1), point(pages=10, rows=500)
    assert few_pages.cost < few_rows.cost
    assert choose_point([few_rows, few_pages], k=10, recall=0.9) is few_pages


def test_of_points_that_all_miss_the_best_and_of_equals_the_cheapest():
    assert (
        choose_point([point(low=0.5), point(low=0.6, rows=900), point(low=0.6, rows=800)], k=10, recall=0.9).rows_scored
        == 800
    )


@pytest.mark.parametrize("k,served", [(1, 1), (2, 10), (10, 10), (11, 100), (100, 100), (101, 100), (5000, 100)])
def test_the_next_larger_measured_k_serves(k, served):
    assert measured_k(k) == served
    assert choose_point([point(m) for m in MEASURED_K], k=k, recall=0.5).k == served


def test_effort_widens_above_every_measured_k():
    assert [effort_for(point(100, effort=150), k) for k in (50, 100, 101, 200, 1000)] == [150, 150, 152, 300, 1500]


@pytest.mark.parametrize("recall", [0.0, -0.5, 1.1, float("nan")])
def test_a_recall_that_makes_no_sense_is_refused(recall):
    with pytest.raises(OptionsError, match="exact=True"):
        choose_point([point()], k=10, recall=recall)


def test_what_manifests_keep_comes_back():
    for z in (0.25, 3.0, 1e9):
        kept = point(z=z).to_dict()
        assert OperatingPoint.from_dict(kept).to_dict() == kept
