"""The walk with a fixed number of steps: contracts over the twins and the kernels, and their agreement."""

from __future__ import annotations

import pytest
from gpu_layers import (
    DEVICE,
    both,
    coded,
    estimates_of,
    implementation,
    layer_of,
    queries_of,
    reference,
    results,
    states_of,
    torch,
)

PLAIN = {"scale": 1.0, "softcap": None}


def case(vocab: int, dim: int, n: int, bits: int, *, degree: int = 5, twice: int = 0):
    layer = layer_of(vocab, dim, twice=twice)
    rows, matrix = coded(layer, bits)
    queries = queries_of(layer, rows, matrix, states_of(n, dim))
    links = torch.randint(-1, vocab, (vocab, degree), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    return rows, queries, links.to(DEVICE)


def ids(*rows: int):
    return torch.tensor(rows, dtype=torch.int32, device=DEVICE)


def by_id(pool, q: int):
    """{row: (estimate, unexpanded)} of one query."""
    there = pool.ids[q] >= 0
    values = zip(pool.estimates[q][there].tolist(), pool.unexpanded[q][there].tolist())
    return dict(zip(pool.ids[q][there].tolist(), values))


def walked_by_hand(estimates, links, entries, *, steps: int, beam: int):
    """(scored rows, expanded rows) of a walk in plain Python. estimates: [V] of one query."""
    scored, expanded = set(entries), set()
    for _ in range(steps):
        waiting = sorted((-estimates[row], row) for row in scored - expanded)[:beam]
        expanded |= {row for _, row in waiting}
        scored |= {row for _, parent in waiting for row in links[parent] if row >= 0}
    return scored, expanded


@both
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("steps", "twice"), [(0, 0), (1, 0), (3, 60)])
def test_a_walk_scores_what_it_reaches_and_expands_the_best(run, steps, twice, bits):
    rows, queries, links = case(200, 70, 2, bits, twice=twice)
    entries = ids(5, 17, 5, 90)
    pool = run.walk(rows, queries, links, entries, steps=steps, beam=16, places=256, **PLAIN)
    # The kernels' own estimates, so that ties are told apart as there.
    everything = run.walk(rows, queries, links, ids(*range(200)), steps=0, beam=16, places=256, **PLAIN)
    exact = estimates_of(rows, queries)
    for q in range(2):
        estimates = {row: value for row, (value, _) in by_id(everything, q).items()}
        scored, expanded = walked_by_hand(estimates, links.tolist(), entries.tolist(), steps=steps, beam=16)
        found = by_id(pool, q)
        assert set(found) == scored and int(pool.filled[q]) == len(scored)
        assert {row for row, (_, left) in found.items() if left == -torch.inf} == expanded
        wanted = torch.tensor([exact[q, row] for row in found])
        assert torch.allclose(
            torch.tensor([value for value, _ in found.values()]), wanted.float(), rtol=1e-4, atol=1e-4
        )
        bits_set = [row for row in range(200) if (int(pool.seen[q, row // 32]) >> (row % 32)) & 1]
        assert bits_set == sorted(scored)


@both
def test_a_frontier_takes_what_there_is(run):
    rows, queries, links = case(60, 20, 1, 8)
    pool = run.walk(rows, queries, links, ids(1, 2, 3), steps=0, beam=16, places=128, **PLAIN)
    assert sorted(run.frontier(pool, beam=16)[0].tolist()) == [-1] * 13 + [1, 2, 3]
    assert run.frontier(pool, beam=16)[0].tolist() == [-1] * 16


@both
def test_links_that_lead_nowhere_are_passed_over(run):
    rows, queries, _ = case(60, 20, 1, 8)
    links = torch.full((60, 3), -1, dtype=torch.int32, device=DEVICE)
    links[7] = ids(60, -1, 2**30)
    pool = run.walk(rows, queries, links, ids(7), steps=2, beam=16, places=128, **PLAIN)
    assert set(by_id(pool, 0)) == {7}


@both
def test_a_full_pool_loses_rows_and_says_so(run):
    rows, queries, links = case(200, 20, 1, 8)
    pool = run.walk(rows, queries, links, ids(*range(150)), steps=1, beam=16, places=128, **PLAIN)
    assert int(pool.filled[0]) > 128 and (pool.ids >= 0).all()
    assert len(pool.ids[0].unique()) == 128


@both
def test_scale_and_soft_cap_are_applied(run):
    rows, queries, links = case(60, 20, 2, 8)
    pool = run.walk(rows, queries, links, ids(*range(60)), steps=0, beam=16, places=128, scale=0.5, softcap=2.0)
    wanted = 2.0 * torch.tanh(estimates_of(rows, queries) * 0.5 / 2.0)
    there = pool.ids[1] >= 0
    assert torch.allclose(pool.estimates[1][there].double(), wanted[1, pool.ids[1][there].long()], rtol=1e-4, atol=1e-4)


@both
@pytest.mark.parametrize("bits", [4, 8])
def test_a_sample_is_a_window_of_the_permutation_without_what_was_seen(run, bits):
    rows, queries, _ = case(100, 40, 3, bits)
    permutation = torch.randperm(100, generator=torch.Generator().manual_seed(1)).to(DEVICE, torch.int32)
    seen = torch.zeros((3, results.words_of(100)), dtype=torch.int32, device=DEVICE)
    seen[1] = -1
    found = run.sample(rows, queries, permutation, seen, size=64, **PLAIN)
    exact = estimates_of(rows, queries)
    for q in (0, 2):
        drawn = permutation[(int(queries.windows[q]) + torch.arange(64, device=DEVICE)) % 100].long()
        assert torch.allclose(found[q].double(), exact[q, drawn], rtol=1e-4, atol=1e-4)
    assert (found[1] == -torch.inf).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_kernel_and_twin_agree(bits):
    rows, queries, links = case(300, 100, 2, bits, degree=7, twice=100)
    effort = {"steps": 3, "beam": 16, "places": 512}
    found = implementation("triton").walk(rows, queries, links, ids(1, 2, 250), **effort, **PLAIN)
    wanted = reference.walk(rows, queries, links, ids(1, 2, 250), **effort, **PLAIN)
    assert torch.equal(found.seen, wanted.seen) and torch.equal(found.filled, wanted.filled)
    assert all(by_id(found, q) == by_id(wanted, q) for q in range(2))
    permutation = torch.arange(300, dtype=torch.int32, device=DEVICE)
    drawn = [
        of.sample(rows, queries, permutation, found.seen, size=32, **PLAIN)
        for of in (implementation("triton"), reference)
    ]
    assert torch.equal(*drawn)
