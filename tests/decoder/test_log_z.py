"""log Z of walks and screens: unbiased over seeds, entries that stand for all tokens, error bars that cover (S63)."""

from __future__ import annotations

import numpy as np
import pytest
from layer_oracle import log_sum, logits64, logprobs64
from small_decoders import Small, screened, small_decoder, walked
from toy_decoder import toy

from decoder import OutputLayer, open_decoder
from decoder.candidates import Effort
from decoder.kernels.screen import screen_states
from decoder.kernels.walk import walk_states

SEEDS = 400

CASES = {
    "walk, whole codes, rescored": ("walk", None, Effort(width=40, rerank=20, middle=40, tail=60), False),
    "walk, leading coordinates, rescored": ("walk", 20, Effort(width=40, rerank=20, middle=40, tail=60), False),
    "screen, everything drawn": ("screen", None, Effort(width=60, rerank=20, middle=100), True),
    "screen, short codes, everything drawn": ("screen", 80, Effort(width=60, rerank=20, middle=100), True),
    "screen, only reranked rows pass": ("screen", None, Effort(width=20, rerank=20, middle=100), False),
}  # fmt: skip
"""mode, width of codes, effort, whole: ways in which every row counts exactly or by a sample of exact ones."""


def answers(small: Small, mode: str, effort: Effort, whole: bool, seed: int):
    if mode == "walk":
        return walked(walk_states, small, effort, seed=seed)
    return screened(screen_states, small, effort, whole=whole, seed=seed)


@pytest.mark.parametrize("case", CASES)
def test_z_is_unbiased_over_seeds(case):
    mode, width, effort, whole = CASES[case]
    small = small_decoder(700, 128, width=width, n=4, scale=0.1)
    true = log_sum(logits64(small.layer, small.states))
    found = [answers(small, mode, effort, whole, seed) for seed in range(SEEDS)]
    ratios = np.exp(np.array([some.log_z for some in found]) - true)
    spread = ratios.std(axis=0)
    assert (spread > 1e-4).all()  # it is an estimate
    assert (np.abs(ratios.mean(axis=0) - 1) < 4 * spread / np.sqrt(SEEDS) + 1e-5).all()
    # And what it says of its error is about what it is.
    stated = np.array([some.error for some in found]).mean(axis=0)
    assert (stated > spread / 2).all() and (stated < spread * 3).all()


@pytest.mark.parametrize("mode", ["walk", "screen"])
def test_estimates_that_count_as_they_are_are_as_wrong_as_is_said(mode):
    """Where codes hold all coordinates, scored rows are not rescored: an error of up to 1 in 100."""
    small = small_decoder(700, 32, n=20, scale=0.2)
    effort = Effort(width=300, rerank=20, tail=200) if mode == "walk" else Effort(width=300, rerank=20, middle=200)
    true = log_sum(logits64(small.layer, small.states))
    found = [answers(small, mode, effort, False, seed) for seed in range(100)]
    ratios = np.exp(np.array([some.log_z for some in found]) - true)
    assert (np.abs(ratios.mean(axis=0) - 1) < 4 * ratios.std(axis=0) / 10 + 1e-2).all()


@pytest.mark.parametrize("case", [name for name in CASES if "reranked" not in name])
def test_entries_stand_for_all_tokens(case):
    """The weights sum to the vocabulary in the mean, and each row has weight 1 in the mean."""
    mode, width, effort, whole = CASES[case]
    small = small_decoder(300, 32, width=width, n=1, scale=0.1)
    sums, each = [], np.zeros(300)
    for seed in range(SEEDS):
        found = answers(small, mode, effort, whole, seed)
        count = found.counts[0]
        weights = found.weights[0, :count]
        assert (weights[: found.exact[0]] == 1.0).all() and len(set(found.token_ids[0, :count].tolist())) == count
        sums.append(weights.sum())
        np.add.at(each, found.token_ids[0, :count], weights)
    assert abs(np.mean(sums) - 300) < 4 * np.std(sums) / np.sqrt(SEEDS) + 1e-9
    assert np.abs(each / SEEDS - 1).max() < 0.7 and np.abs(each / SEEDS - 1).mean() < 0.12


@pytest.mark.parametrize("mode", ["walk", "screen"])
def test_s63_error_bars_cover(mode):
    """Of 1,000 held-out states: each log-probability within the stated 95 % interval in at least 93 %."""
    made = toy()
    with open_decoder(made.folder) as head:
        top = head.topk(made.held_out, k=3, mode=mode)
    assert top.mode == mode and (top.logprob_stderr > 0).all()
    true = np.take_along_axis(logprobs64(made.layer, made.held_out), top.token_ids.astype(np.int64), axis=1)
    error = np.abs(top.logprobs - true)
    assert (error <= 1.96 * top.logprob_stderr[:, None]).mean(axis=0).min() >= 0.93
    assert error.mean() < 0.01


@pytest.mark.parametrize("mode", ["walk", "screen", "auto"])
def test_s63_exact_normalisation_is_exact(mode):
    made = toy()
    with open_decoder(made.folder) as head:
        top = head.topk(made.held_out[:100], k=5, mode=mode, normalize="exact")
    true = np.take_along_axis(logprobs64(made.layer, made.held_out[:100]), top.token_ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(top.logprobs, true, atol=2e-5)
    assert not top.logprob_stderr.any()


@pytest.mark.parametrize("mode", ["walk", "screen"])
def test_a_drawn_row_far_better_than_those_found_does_not_overflow(mode):
    """Rows so long that exp() of the difference of two logits is beyond any float64."""
    weight = (np.random.default_rng(0).normal(size=(1200, 48)) * 5000).astype(np.float32)
    small = small_decoder(1200, 48, layer=OutputLayer(weight), n=200)
    effort = Effort(width=20, rerank=20, middle=0 if mode == "walk" else 64, tail=64 if mode == "walk" else 0)
    found = answers(small, mode, effort, False, 0)
    assert np.isfinite(found.log_z).all() and np.isfinite(found.error).all()
    # At least what was seen exactly, and no more than a few rows of the best that there is.
    assert (found.log_z >= found.logits[:, 0].astype(np.float64) - 1e-3).all()
    assert (found.log_z <= logits64(small.layer, small.states).max(axis=1) + 10).all()
