"""What a memory budget means, what it buys, and the least that works."""

from __future__ import annotations

import numpy as np
import pytest

from index import BuildOptions, PreviewKind
from index.budget import DEGREE, FLAT_ROWS, FLOOR_BYTES, LEAST_DEGREE, budget_bytes, choose_design, fixed_parts
from index.errors import BudgetTooSmallError, OptionsError
from index.fullview import PageLayout

LAYOUT = PageLayout(1_000_000, 128, np.dtype(np.float32))


def design(megabytes: float, *, layout: PageLayout = LAYOUT, nodes: int | None = None, **options):
    budget = int(megabytes * 1e6)
    return choose_design(layout, nodes=nodes or layout.n, options=BuildOptions(**options), budget=budget)


def test_fractions_are_of_the_vectors_as_float32_and_numbers_are_megabytes():
    assert budget_bytes("1/4", n=1_000_000, dim=128) == 128_000_000
    assert budget_bytes("1/8", n=1_000_000, dim=128) == 64_000_000
    assert budget_bytes(256, n=10, dim=1) == budget_bytes("256", n=10, dim=1) == 256_000_000
    assert budget_bytes(0.5, n=10, dim=1) == 500_000
    assert budget_bytes("1/4", n=100, dim=8) == FLOOR_BYTES


@pytest.mark.parametrize("budget", [True, "", "a", "1/0", "-1/4", "5/1", 0, -3, "0", 1e9, float("nan"), "inf", "1/4/2"])
def test_budgets_that_make_no_sense(budget):
    with pytest.raises(OptionsError, match="memory_budget"):
        budget_bytes(budget, n=1000, dim=8)


def test_more_memory_never_buys_less():
    seen = []
    for megabytes in range(70, 400, 10):
        try:
            bought = design(megabytes, preview="graph")
        except BudgetTooSmallError:
            assert not seen
            continue
        assert bought.preview is PreviewKind.GRAPH and bought.total <= megabytes * 1e6
        assert LEAST_DEGREE[bought.bits] <= bought.degree <= DEGREE
        assert bought.choices
        seen.append((bought.bits, bought.degree))
    assert seen == sorted(seen) and seen[-1] == (8, DEGREE)


def test_what_a_graph_is_too_large_for_becomes_lists_and_says_so():
    pytest.importorskip("faiss", reason="ivf clusters with faiss (extra cpu)")
    bought = design(60)
    assert bought.preview is PreviewKind.IVF and bought.total <= 60e6 and bought.lists > 0
    assert any("least that a graph" in choice for choice in bought.choices)


@pytest.mark.parametrize("bits", ["auto", 1, 2, 4, 8])
@pytest.mark.parametrize("preview", ["auto", "graph", "flat"])
def test_the_least_that_works_works_and_nothing_below(preview, bits):
    with pytest.raises(BudgetTooSmallError) as caught:
        design(1.0, preview=preview, bits=bits)
    least = caught.value.needed_bytes
    assert choose_design(LAYOUT, nodes=LAYOUT.n, options=BuildOptions(preview=preview, bits=bits), budget=least)
    with pytest.raises(BudgetTooSmallError):
        choose_design(
            LAYOUT, nodes=LAYOUT.n, options=BuildOptions(preview=preview, bits=bits), budget=least - 1_000_001
        )


def test_few_rows_are_scanned():
    for nodes, kind in ((1, PreviewKind.FLAT), (FLAT_ROWS, PreviewKind.FLAT), (FLAT_ROWS + 1, PreviewKind.GRAPH)):
        layout = PageLayout(nodes, 16, np.dtype(np.float32))
        assert design(64, layout=layout).preview is kind


def test_equal_rows_pay_once_for_codes():
    assert design(200, nodes=10_000).total < design(200).total / 4


def test_ids_that_do_not_fit_the_pages_are_counted():
    inside, beside = PageLayout(1000, 384, np.dtype(np.float32)), PageLayout(1000, 1024, np.dtype(np.float32))
    assert inside.ids_in_pages and not beside.ids_in_pages
    assert "ids" not in fixed_parts(inside) and fixed_parts(beside)["ids"] == 8000


@pytest.mark.parametrize("options", [{"preview": "tree"}, {"bits": 3}, {"bits": True}, {"bits": "8"}, {"bits": "pq"}])
def test_designs_that_make_no_sense(options):
    with pytest.raises(OptionsError):
        design(200, **options)


def test_a_fraction_that_is_raised_to_the_floor_is_said():
    layout = PageLayout(12_500, 1, np.dtype(np.float32))
    said = "1/1000 of the vectors is 5e-05 MB; raised to 16 MB, the least that a fraction means"
    options = BuildOptions(memory_budget="1/1000")
    assert choose_design(layout, nodes=12_500, options=options, budget=FLOOR_BYTES).choices[0] == said
    for budget in ("4/1", 16):
        layout = PageLayout(1_250_000, 4, np.dtype(np.float32))
        found = choose_design(layout, nodes=1000, options=BuildOptions(memory_budget=budget), budget=80_000_000)
        assert not any("raised" in choice for choice in found.choices)
