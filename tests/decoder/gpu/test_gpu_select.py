"""Merging the blocks' best: contracts over the twins and the kernels, and their agreement."""

from __future__ import annotations

import pytest
from gpu_layers import DEVICE, both, implementation, reference, states_of, torch


def estimates_and_ids(n: int, size: int, *, levels: int | None = None, absent: float = 0.0):
    """Estimates of `size` rows a query, ids in no order; `levels`: so many different values; a part is absent."""
    generator = torch.Generator().manual_seed(size)
    estimates = states_of(n, size).cpu() * 10.0
    if levels:
        estimates = (estimates / 10.0 * levels).round() / levels
    ids = torch.stack([torch.randperm(4 * size, generator=generator)[:size] for _ in range(n)]).to(torch.int32)
    gone = torch.rand(n, size, generator=generator) < absent
    return estimates.masked_fill(gone, -torch.inf).to(DEVICE), ids.masked_fill(gone, -1).to(DEVICE)


def best_of(estimates, ids, keep):
    """By Python's own sort: (-estimate, id)."""
    pairs = [(-e, i) for e, i in zip(estimates.tolist(), ids.tolist()) if i >= 0]
    return {i for _, i in sorted(pairs)[:keep]}


@both
@pytest.mark.parametrize(
    ("size", "keep", "levels", "absent"),
    [
        (1, 16, None, 0.0),
        (16, 16, 1, 0.0),
        (100, 16, 2, 0.5),
        (100, 64, 1, 0.5),
        (777, 64, None, 0.1),
        (333, 32, 1, 0.0),
    ],
)
def test_the_best_are_chosen_and_ties_go_to_the_lower_id(run, size, keep, levels, absent):
    estimates, ids = estimates_and_ids(2, size, levels=levels, absent=absent)
    found = run.select(estimates, ids, keep=keep)
    for q in range(2):
        chosen = found.ids[q][found.ids[q] >= 0]
        assert set(chosen.tolist()) == best_of(estimates[q], ids[q], keep)
        assert (found.estimates[q][found.ids[q] < 0] == -torch.inf).all()
        value = dict(zip(ids[q].tolist(), estimates[q].tolist()))
        assert [value[i] for i in chosen.tolist()] == found.estimates[q, : len(chosen)].tolist()
        rest = [v for i, v in value.items() if i >= 0 and i not in set(chosen.tolist())]
        wanted = torch.logsumexp(torch.tensor(rest, dtype=torch.float64), 0) if rest else torch.tensor(-torch.inf)
        assert torch.allclose(torch.logsumexp(found.rest[q].double(), 0).cpu(), wanted.double(), rtol=1e-6, atol=1e-5)


@both
def test_nothing_to_choose_from_gives_nothing(run):
    estimates = torch.full((1, 20), -torch.inf, device=DEVICE)
    found = run.select(estimates, torch.full((1, 20), -1, dtype=torch.int32, device=DEVICE), keep=16)
    assert (found.ids == -1).all() and (found.estimates == -torch.inf).all() and (found.rest == -torch.inf).all()


def test_kernel_and_twin_write_in_the_same_order():
    estimates, ids = estimates_and_ids(3, 500, levels=4, absent=0.1)
    found, wanted = implementation("triton").select(estimates, ids, keep=32), reference.select(estimates, ids, keep=32)
    assert torch.equal(found.ids, wanted.ids) and torch.equal(found.estimates, wanted.estimates)


@pytest.mark.parametrize("levels", [None, 3])
def test_more_than_one_program_holds_is_cut_in_groups(monkeypatch, levels):
    kernels = implementation("triton")
    monkeypatch.setattr("decoder.gpu.select.TILE", 64)
    estimates, ids = estimates_and_ids(1, 300, levels=levels)
    found, wanted = kernels.select(estimates, ids, keep=32), reference.select(estimates, ids, keep=32)
    assert torch.equal(found.ids, wanted.ids) and torch.equal(found.estimates, wanted.estimates)
    rest = torch.logsumexp(found.rest, dim=1, keepdim=True)
    assert torch.allclose(rest, wanted.rest, rtol=1e-6, atol=1e-5)


@both
def test_zeros_of_both_signs_are_ties(run):
    estimates = torch.tensor([[0.0, -0.0, -0.0, 0.0] * 8], device=DEVICE)
    ids = torch.arange(31, -1, -1, dtype=torch.int32, device=DEVICE)[None, :]
    assert sorted(run.select(estimates, ids, keep=16).ids[0].tolist()) == list(range(16))
