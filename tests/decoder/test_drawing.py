"""Sampling from open decoders: tokens come as often as a plain softmax says, whichever way they were found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layer_oracle import logits64, logprobs64
from toy_decoder import V, toy

from decoder import (
    Constraints,
    DecoderOptions,
    OpenDecoder,
    OutputLayer,
    SamplingOptions,
    build_decoder,
    exact_topk,
    open_decoder,
)
from decoder.constraints import plan
from decoder.drawing import draw_all
from decoder.finder import Finder
from decoder.operating_points import pick
from decoder.planner import MODES, Choice
from decoder.store import read_decoder

DRAWS = 800


@pytest.fixture(scope="module")
def head() -> OpenDecoder:
    with open_decoder(toy().folder, layer=toy().layer) as opened:
        yield opened


@pytest.fixture(scope="module")
def parts():
    return read_decoder(toy().folder, layer=toy().layer)[0]


def choice_of(parts, mode: str) -> Choice:
    if mode == "exact":
        return Choice("exact", None, reached=True)
    return Choice(mode, *pick(parts.points, mode, k=10, recall=0.99, logprob_error=None))


def drawn(
    parts, mode: str, state: np.ndarray, options: dict, constraints: Constraints | None, count: int
) -> np.ndarray:
    """Tokens drawn of one state, every four by a decoder with a seed of its own: the tail's sample is another each time."""
    choice, states = choice_of(parts, mode), np.repeat(state, 4, axis=0)
    plans = None if constraints is None else [plan(constraints, V)] * 4
    tokens = np.empty((count // 4, 4), np.int64)
    for seed in range(count // 4):
        made = draw_all(
            Finder(replace(parts, seed=seed)), states, plans, choice, SamplingOptions(seed=seed, **options), k=3,
            needed=max(3, options.get("top_k", 0)), rows=np.arange(4), step=0, processed=False, interval=1.0, threads=1,
        )  # fmt: skip
        tokens[seed] = made.token_ids
    return tokens.reshape(-1)


def probabilities(layer, state: np.ndarray, options: dict, constraints: Constraints | None) -> np.ndarray:
    """What a token's chance is: temperature, top_k, top_p, min_p, each on what the one before left."""
    asked = plan(constraints, layer.vocab_size)
    logits = logits64(layer, state)[0] + asked.extra(layer.vocab_size).astype(np.float64)
    chances = np.exp((logits - logits.max()) / options.get("temperature", 1.0))
    order = np.argsort(-chances, kind="stable")
    if options.get("top_k", 0) > 0:
        chances[order[options["top_k"] :]] = 0.0
    chances /= chances.sum()
    before = np.cumsum(chances[order]) - chances[order]
    chances[order[before >= options.get("top_p", 1.0)]] = 0.0
    chances[chances < options.get("min_p", 0.0) * chances.max()] = 0.0
    return chances / chances.sum()


def require_frequencies(tokens: np.ndarray, chances: np.ndarray, *, edge: bool = False) -> None:
    """Chi-square over the likeliest tokens one by one and the others in bins, at four standard deviations.

    edge: whether a token beyond a cut may come now and then, as log Z, which places the cut, is an estimate.
    """
    beyond = chances[tokens] == 0
    assert np.mean(beyond) <= 0.02 if edge else not beyond.any()
    tokens = tokens[~beyond]
    order = np.argsort(-chances, kind="stable")
    expected, observed = chances[order] * len(tokens), np.bincount(tokens, minlength=len(chances))[order]
    bins = np.floor(np.cumsum(expected) / 12.0).astype(int)
    each = np.unique(bins)
    wanted = np.array([expected[bins == b].sum() for b in each])
    found = np.array([observed[bins == b].sum() for b in each])
    kept = wanted > 4
    wanted, found = np.append(wanted[kept], wanted[~kept].sum()), np.append(found[kept], found[~kept].sum())
    wanted, found = wanted[wanted > 0], found[wanted > 0]
    degrees = max(1, len(wanted) - 1)
    statistic = ((found - wanted) ** 2 / wanted).sum()
    assert statistic < degrees + 4 * np.sqrt(2 * degrees) + 4, (statistic, degrees)


CASES = {
    "plain": ({}, None),
    "hot": ({"temperature": 1.4}, None),
    "cold": ({"temperature": 0.5}, None),
    "top_k": ({"top_k": 7}, None),
    "top_p": ({"top_p": 0.8}, None),
    "min_p": ({"min_p": 0.02}, None),
    "all cuts": ({"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.01}, None),
    "bans": ({}, "the three best banned"),
    "many bans": ({}, "the 300 best banned"),
    "boost": ({}, "a token of the tail boosted"),
    "allowed": ({"temperature": 2.0}, "thirty allowed"),
}


def constraints_of(which: str | None, layer, state) -> Constraints | None:
    order = np.argsort(-logits64(layer, state)[0])
    if which is None:
        return None
    if which.startswith("thirty"):
        return Constraints(allowed=order[::80].tolist())
    if which.startswith("a token"):
        gap = float(logits64(layer, state)[0][order[0]] - logits64(layer, state)[0][order[1500]])
        return Constraints(logit_bias={int(order[1500]): gap, int(order[0]): -1.0})
    return Constraints(banned=order[: 3 if "three" in which else 300].tolist())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["walk", "screen"])
def test_tokens_come_as_often_as_they_should(parts, mode, case):
    options, which = CASES[case]
    state = toy().held_out[3:4]
    constraints = constraints_of(which, parts.layer, state)
    count = DRAWS if which is None else DRAWS // 3
    tokens = drawn(parts, mode, state, options, constraints, count)
    require_frequencies(tokens, probabilities(parts.layer, state, options, constraints), edge="top_p" in options)


@pytest.mark.parametrize("options", [{"scale": 0.05}, {"softcap": 1.0}])
@pytest.mark.parametrize("mode", ["walk", "screen"])
def test_the_tail_is_accounted_for(parts, mode, options):
    """A flat distribution: nearly every token drawn is one that was not reranked."""
    layer = OutputLayer(parts.layer.weight, parts.layer.bias, **options)
    flat = replace(parts, layer=layer)
    state = toy().held_out[5:6]
    tokens = drawn(flat, mode, state, {}, None, DRAWS)
    best = np.argsort(-logits64(layer, state)[0])[:100]
    assert np.isin(tokens, best).mean() < 0.3 and len(set(tokens.tolist())) > DRAWS // 4
    require_frequencies(tokens, probabilities(layer, state, {}, None))


# --- what a call answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_greedy_is_the_best_token(head, mode):
    states = toy().held_out[:100]
    exact = exact_topk(toy().layer, states, 1)
    for options in ({"temperature": 0.0}, {"temperature": 1e-9}, {"top_k": 1}):
        made = head.sample(states, mode=mode, sampling=SamplingOptions(seed=3, **options))
        assert np.mean(made.token_ids == exact.token_ids[:, 0]) >= 0.99
        assert (made.candidates.token_ids[:, 0] == made.token_ids).mean() >= 0.99
        assert made.candidates.mode == mode


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_step_and_row_draw_the_same(head, mode):
    states = np.repeat(toy().held_out[:1], 64, axis=0)
    options = SamplingOptions(seed=5, temperature=1.5)
    first, second = (head.sample(states, mode=mode, sampling=options, step=2) for _ in range(2))
    assert first.token_ids.tolist() == second.token_ids.tolist()
    assert len(set(first.token_ids.tolist())) > 5  # rows draw for themselves
    assert head.sample(states, mode=mode, sampling=options, step=3).token_ids.tolist() != first.token_ids.tolist()
    assert (
        head.sample(states[:7], mode=mode, sampling=options, step=2).token_ids.tolist() == first.token_ids[:7].tolist()
    )


@pytest.mark.parametrize("mode", MODES)
def test_log_probabilities_of_what_was_drawn(head, mode):
    states = toy().held_out[:200]
    true = logprobs64(toy().layer, states)
    options = {"temperature": 0.7, "top_k": 20, "top_p": 0.95}
    sampling = SamplingOptions(seed=1, **options)
    raw = head.sample(states, mode=mode, sampling=sampling)
    error = np.abs(raw.logprobs - true[np.arange(200), raw.token_ids])
    assert np.mean(error <= 1.96 * raw.logprob_stderr + 1e-4) >= 0.9 and error.mean() < 0.01
    processed = head.sample(states, mode=mode, sampling=sampling, logprobs="processed")
    assert processed.token_ids.tolist() == raw.token_ids.tolist()
    for row in range(0, 200, 10):
        chances = probabilities(toy().layer, states[row : row + 1], options, None)
        if chances[processed.token_ids[row]] > 0:
            assert processed.logprobs[row] == pytest.approx(np.log(chances[processed.token_ids[row]]), abs=0.05)
        ids, logprobs = processed.candidates.token_ids[row], processed.candidates.logprobs[row]
        with np.errstate(divide="ignore"):
            expected = np.log(chances[ids])
        assert np.count_nonzero(np.isfinite(logprobs) != np.isfinite(expected)) <= 1  # the token at the cut
        both = np.isfinite(logprobs) & np.isfinite(expected)
        np.testing.assert_allclose(logprobs[both], expected[both], atol=0.05)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"temperature": 2.0}, {"temperature": 1.5, "top_p": 0.9}, {"temperature": 0.3}])
def test_log_probabilities_after_temperature_and_cuts_are_exact(head, mode, options):
    """A sample of the tail says little of a mass that temperature moved there."""
    states, banned = toy().held_out[:60], [int(np.argmax(logits64(toy().layer, toy().held_out[:1])[0]))]
    for constraints in (None, Constraints(banned=banned)):
        found = head.sample(
            states,
            mode=mode,
            sampling=SamplingOptions(seed=3, **options),
            constraints=constraints,
            logprobs="processed",
        )
        assert not found.logprob_stderr.any()
        for row in range(60):
            chances = probabilities(toy().layer, states[row : row + 1], options, constraints)
            ids, logprobs = found.candidates.token_ids[row], found.candidates.logprobs[row]
            both = np.isfinite(logprobs) & (chances[ids] > 0)
            np.testing.assert_allclose(logprobs[both], np.log(chances[ids[both]]), atol=1e-4)
            if chances[found.token_ids[row]] > 0:
                assert found.logprobs[row] == pytest.approx(np.log(chances[found.token_ids[row]]), abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_s67_a_banned_token_never_comes(head, mode):
    states = np.repeat(toy().held_out[:1], 150, axis=0)
    best = int(exact_topk(toy().layer, states[:1], 1).token_ids[0, 0])
    for constraints in (Constraints(banned=[best]), Constraints(logit_bias={best: -100})):
        for options in ({}, {"temperature": 0.0}, {"temperature": 3.0}):
            made = head.sample(states, mode=mode, constraints=constraints, sampling=SamplingOptions(seed=2, **options))
            assert best not in made.token_ids.tolist() and (made.token_ids >= 0).all()
    assert not np.isin(
        best, head.sample(states, mode=mode, constraints=Constraints(banned=[best])).candidates.token_ids
    )


@pytest.mark.parametrize("mode", MODES)
def test_s66_nothing_but_what_is_allowed_comes(head, mode):
    states = toy().held_out[:100]
    options = SamplingOptions(seed=1, temperature=5.0)
    made = head.sample(states, mode=mode, sampling=options, constraints=Constraints(allowed=[5]))
    assert (made.token_ids == 5).all()
    one = head.sample(states, mode=mode, sampling=options, constraints=Constraints(allowed=[5]), logprobs="processed")
    assert (one.logprobs == 0.0).all() and one.candidates.counts.tolist() == [1] * 100
    several = head.sample(states, mode=mode, sampling=options, constraints=Constraints(allowed=[5, 9, 800], banned=[9]))
    assert set(several.token_ids.tolist()) == {5, 800}


def test_s58_padding_is_never_sampled(tmp_path):
    weight = np.random.default_rng(0).normal(size=(304, 16)).astype(np.float32)
    weight[300:] *= 100
    layer = OutputLayer(weight, vocab_size=300, scale=0.1)
    build_decoder(layer, tmp_path / "d", options=DecoderOptions(threads=1))
    states = np.random.default_rng(1).normal(size=(400, 16)).astype(np.float32)
    with open_decoder(tmp_path / "d", layer=layer) as head:
        for mode in MODES:
            made = head.sample(states, mode=mode, sampling=SamplingOptions(seed=0, temperature=2.0))
            assert made.token_ids.max() < 300 and made.candidates.token_ids.max() < 300
            assert len(set(made.token_ids.tolist())) > 150
