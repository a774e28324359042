"""Exact logits, their order and log Z: contracts over the twins and the kernels, and their agreement."""

from __future__ import annotations

import pytest
from gpu_layers import DEVICE, both, implementation, layer_of, reference, states_of, torch

NONE = torch.zeros((4, 0), device=DEVICE)
GOOD = torch.zeros(4, dtype=torch.uint8, device=DEVICE)
SCORED = torch.tensor([5, 6, 7, 8], dtype=torch.int32, device=DEVICE)


@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dim", [3, 100, 700])
def test_scores_are_the_layers_logits(run, dim, dtype):
    layer = layer_of(50, dim)
    weight, states = layer.weight.to(getattr(torch, dtype)), states_of(2, dim)
    ids = torch.tensor([[7, 0, -1, 49, 7], [1, 2, 3, -1, -1]], dtype=torch.int32, device=DEVICE)
    found = run.score(weight, layer.bias, states, ids, scale=1.5, softcap=None)
    wanted = 1.5 * (states.double() @ weight.double().T + layer.bias.double()).gather(1, ids.clamp_min(0).long())
    assert (found[ids < 0] == -torch.inf).all()
    assert torch.allclose(found[ids >= 0].double(), wanted[ids >= 0], rtol=1e-5, atol=1e-5)


@both
def test_soft_capped_scores(run):
    layer, states = layer_of(64, 30), 20.0 * states_of(2, 30)
    ids = torch.arange(64, dtype=torch.int32, device=DEVICE).expand(2, -1).contiguous()
    found = run.score(layer.weight, layer.bias, states, ids, scale=0.7, softcap=5.0)
    wanted = 5.0 * torch.tanh((states.double() @ layer.weight.double().T + layer.bias.double()) * 0.7 / 5.0)
    assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-5)
    assert found.abs().max() <= 5.0


@both
def test_infinities_in_a_state_do_not_spread(run):
    layer, states = layer_of(20, 10), states_of(2, 10)
    states[1, 4] = torch.inf
    ids = torch.zeros((2, 16), dtype=torch.int32, device=DEVICE)
    assert run.score(layer.weight, layer.bias, states, ids, scale=1.0, softcap=None).isfinite().all()


def candidates(n: int, keep: int, *, absent: int = 0, levels: int = 0):
    """Logits, estimates and ids of `keep` candidates, the last `absent` of them none."""
    logits = states_of(n, keep) * 5.0
    if levels:
        logits = logits.sign() * levels
    estimates = logits + 0.3 * states_of(n, keep, seed=4)
    ids = torch.stack([torch.randperm(1000, generator=torch.Generator().manual_seed(q))[:keep] for q in range(n)])
    ids = ids.to(DEVICE, torch.int32)
    if absent:
        logits[:, -absent:], estimates[:, -absent:], ids[:, -absent:] = -torch.inf, -torch.inf, -1
    return logits, estimates, ids


@both
@pytest.mark.parametrize(("keep", "absent", "levels"), [(16, 0, 0), (64, 5, 2), (128, 0, 3), (16, 16, 0)])
def test_candidates_are_sorted_with_ties_by_id(run, keep, absent, levels):
    logits, estimates, ids = candidates(3, keep, absent=absent, levels=levels)
    found = run.order(logits, estimates, ids, NONE[:3], states_of(3, 2), NONE[:3], GOOD[:3], SCORED[:3], vocab=1000)
    for q in range(3):
        wanted = sorted((-v, i) for v, i in zip(logits[q].tolist(), ids[q].tolist()) if i >= 0)
        assert found.ids[q].tolist() == [i for _, i in wanted] + [-1] * absent
        assert found.logits[q, : len(wanted)].tolist() == [-v for v, _ in wanted]
        assert (found.logits[q, len(wanted) :] == -torch.inf).all()
    there = found.ids >= 0
    assert torch.equal(found.logprobs[there], (found.logits - found.log_partition[:, None])[there])
    assert (found.logprobs[~there] == -torch.inf).all()


@both
def test_log_z_of_everything_estimated_adds_candidates_and_others(run):
    logits, _, ids = candidates(2, 16)
    rest, more = states_of(2, 1500, seed=6), states_of(2, 3, seed=7)
    found = run.order(logits, logits - 0.25, ids, rest, more, NONE[:2], GOOD[:2], SCORED[:2], vocab=1000)
    others = torch.logsumexp(torch.cat([rest, more], 1).double(), 1) + 0.25
    wanted = torch.logaddexp(torch.logsumexp(logits.double(), 1), others)
    assert torch.allclose(found.log_partition.double(), wanted, rtol=1e-6, atol=1e-5)
    # All candidates were off by the same: nothing is uncertain but float32 itself.
    assert (found.stderr < 2e-5).all()


@both
def test_the_error_bar_grows_with_the_spread_of_estimates(run):
    logits, _, ids = candidates(2, 64)
    noise = states_of(2, 64, seed=8)
    rest = torch.full((2, 1), 8.0, device=DEVICE)
    bars = [
        run.order(logits, logits + size * noise, ids, rest, NONE[:2], NONE[:2], GOOD[:2], SCORED[:2], vocab=1000).stderr
        for size in (0.01, 0.1, 0.5)
    ]
    assert (bars[0] < bars[1]).all() and (bars[1] < bars[2]).all()


@both
def test_a_sample_stands_for_what_was_not_seen(run):
    logits, _, ids = candidates(2, 16)
    sampled = states_of(2, 64, seed=9)
    sampled[:, ::4] = -torch.inf
    found = run.order(logits, logits, ids, NONE[:2], states_of(2, 1), sampled, GOOD[:2], SCORED[:2], vocab=5000)
    unseen = sampled.double().exp().mean(1) * 5000
    total = logits.double().exp().sum(1) + states_of(2, 1).double().exp()[:, 0] + unseen
    assert torch.allclose(found.log_partition.double(), total.log(), rtol=1e-6, atol=1e-5)
    scatter = 5000 * (sampled.double().exp().var(1, correction=0) / 64).sqrt()
    assert torch.allclose(found.stderr.double(), scatter / total, rtol=1e-3)


@both
def test_a_failed_state_gives_nothing(run):
    logits, estimates, ids = candidates(2, 16)
    failed = torch.tensor([0, 1], dtype=torch.uint8, device=DEVICE)
    found = run.order(logits, estimates, ids, NONE[:2], states_of(2, 1), NONE[:2], failed, SCORED[:2], vocab=1000)
    assert (found.ids[1] == -1).all() and (found.logprobs[1] == -torch.inf).all() and found.log_partition[1] == 0.0
    assert (found.ids[0] >= 0).all() and found.failed.tolist() == [False, True]
    assert found.rows_scored.tolist() == [5, 6]


@pytest.mark.parametrize("keep", [16, 128, 512])
def test_kernel_and_twin_agree(keep):
    kernels = implementation("triton")
    logits, estimates, ids = candidates(3, keep, absent=7)
    arguments = (
        logits,
        estimates,
        ids,
        states_of(3, 300),
        states_of(3, 2),
        states_of(3, 256, seed=3) - 3.0,
        GOOD[:3],
        SCORED[:3],
    )
    found, wanted = kernels.order(*arguments, vocab=9000), reference.order(*arguments, vocab=9000)
    assert torch.equal(found.ids, wanted.ids) and torch.equal(found.logits, wanted.logits)
    for name in ("logprobs", "log_partition", "stderr"):
        assert torch.allclose(getattr(found, name), getattr(wanted, name), rtol=1e-5, atol=1e-5), name
