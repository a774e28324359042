"""Scanning all codes: contracts over the twins and the kernels, and their agreement bit by bit."""

from __future__ import annotations

import pytest
from gpu_layers import (
    DEVICE,
    both,
    coded,
    estimates_of,
    implementation,
    layer_of,
    layout,
    queries_of,
    reference,
    states_of,
    torch,
)


def case(vocab: int, dim: int, n: int, bits: int, *, twice: int = 0):
    layer = layer_of(vocab, dim, twice=twice)
    rows, matrix = coded(layer, bits)
    return rows, queries_of(layer, rows, matrix, states_of(n, dim))


@both
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("vocab", "dim", "n"), [(300, 100, 3), (129, 64, 1), (5, 10, 2)])
def test_every_block_gives_its_best_rows(run, vocab, dim, n, bits):
    rows, queries = case(vocab, dim, n, bits)
    found = run.scan(rows, queries, kept=4, scale=1.0, softcap=None)
    wanted, blocks = estimates_of(rows, queries), layout.blocks_of(vocab)
    assert found.estimates.shape == found.ids.shape == (n, blocks, 4) and found.rest.shape == (n, blocks)
    for block in range(blocks):
        ids = torch.arange(block, vocab, blocks, device=DEVICE)
        best = wanted[:, ids].topk(min(4, len(ids)), dim=1)
        kept = found.ids[:, block, : len(best.values[0])]
        assert torch.equal(kept.long(), ids[best.indices])
        assert torch.allclose(found.estimates[:, block, : kept.shape[1]].double(), best.values, rtol=2e-5, atol=1e-4)
        assert (found.ids[:, block, kept.shape[1] :] == -1).all()
        assert (found.estimates[:, block, kept.shape[1] :] == -torch.inf).all()
        left = wanted[:, ids].scatter(1, best.indices, -torch.inf)
        assert torch.allclose(found.rest[:, block].double(), torch.logsumexp(left, 1), rtol=1e-5, atol=1e-4)


@both
def test_scale_and_soft_cap_are_applied(run):
    rows, queries = case(200, 64, 2, 8)
    found = run.scan(rows, queries, kept=8, scale=0.5, softcap=3.0)
    wanted = 3.0 * torch.tanh(estimates_of(rows, queries) * 0.5 / 3.0)
    at = found.ids.view(2, -1).long()
    assert torch.allclose(found.estimates.view(2, -1).double(), wanted.gather(1, at), rtol=2e-5, atol=1e-4)


@both
@pytest.mark.parametrize("bits", [4, 8])
def test_equal_rows_stand_by_id(run, bits):
    # 256 rows in 2 blocks: row v and row v + 128 are equal and in one block.
    rows, queries = case(256, 64, 2, bits, twice=128)
    found = run.scan(rows, queries, kept=8, scale=1.0, softcap=None)
    assert torch.equal(found.ids[:, :, 0::2] + 128, found.ids[:, :, 1::2])
    assert torch.equal(found.estimates[:, :, 0::2], found.estimates[:, :, 1::2])


@both
def test_an_answer_does_not_depend_on_the_batch(run):
    rows, queries = case(300, 100, 17, 4)
    together = run.scan(rows, queries, kept=4, scale=1.0, softcap=None)
    alone = run.scan(rows, type(queries)(*(part[9:10] for part in queries)), kept=4, scale=1.0, softcap=None)
    assert torch.equal(together.ids[9:10], alone.ids) and torch.equal(together.estimates[9:10], alone.estimates)


@pytest.mark.parametrize(
    ("vocab", "dim", "n", "kept", "bits"),
    [(300, 100, 3, 8, 4), (300, 100, 3, 8, 8), (640, 200, 33, 16, 4), (200, 40, 33, 2, 8), (100, 40, 1, 128, 4)],
)
def test_kernel_and_twin_agree(vocab, dim, n, kept, bits):
    rows, queries = case(vocab, dim, n, bits, twice=40)
    found = implementation("triton").scan(rows, queries, kept=kept, scale=1.25, softcap=None)
    wanted = reference.scan(rows, queries, kept=kept, scale=1.25, softcap=None)
    assert torch.equal(found.ids, wanted.ids)
    assert torch.equal(found.estimates, wanted.estimates)
    assert torch.allclose(found.rest, wanted.rest, rtol=1e-5, atol=1e-5)
    assert not found.rest.isnan().any()
