"""Scenarios S58 to S61, S65 and S66: what a decoder answers, on every path to an answer. S55 for its kernels."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from decoder_paths import PATHS, Answer
from layer_oracle import logits64, random_layer, random_states
from model_files import plain, write_model

from decoder.constraints import Constraints, plan
from decoder.errors import BadHiddenError, BadWeightsError, ConstraintError, DecoderOptionsError
from decoder.exact import exact_logits
from decoder.output_layer import OutputLayer
from decoder.sampling import SamplingOptions, draw, entries_of, generator_of, processed_logprobs


@pytest.fixture(params=PATHS)
def answer(request) -> Answer:
    return PATHS[request.param]


def layer_of(logits: list[float], **options) -> tuple[OutputLayer, np.ndarray]:
    """A layer and a state with these raw logits."""
    return OutputLayer(np.eye(len(logits), dtype=np.float32), **options), np.array([logits], np.float32)


# --- S55 --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates an older x86 processor")
def test_s55_the_kernels_compiled_for_a_processor_without_avx(tmp_path):
    """Without fused multiply-add and F16C the same contracts hold."""
    older = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2,+popcnt", "NUMBA_CACHE_DIR": str(tmp_path)}
    here = Path(__file__).parent
    tests = [str(path) for path in sorted(here.glob("test_*_kernels.py"))]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env={**os.environ, **older},
        check=True,
    )


# --- S58 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def padded() -> tuple[OutputLayer, np.ndarray]:
    """64 rows, 61 real tokens of equal logits, padding that would win by far."""
    weight = np.ones((64, 8), np.float32)
    weight[61:] *= 100
    return OutputLayer(weight, vocab_size=61), np.ones((1, 8), np.float32)


def test_s58_padding_rows_are_never_chosen(answer, padded):
    layer, state = padded
    top = answer(layer, state, k=64)
    assert top.counts.tolist() == [61] and top.token_ids.tolist() == [list(range(61))]
    np.testing.assert_allclose(top.logprobs, np.full((1, 61), -4.110874), atol=5e-7)


def test_s58_padding_rows_are_never_sampled(answer, padded):
    layer, state = padded
    top = answer(layer, state, k=64)
    entries, options = entries_of(top.token_ids[0], top.logits[0]), SamplingOptions(seed=0)
    drawn = {draw(entries, options, generator_of(0, step, 0)).token_id for step in range(10_000)}
    assert drawn == set(range(61))


@pytest.mark.parametrize("constraints", [{"allowed": [5, 62]}, {"logit_bias": {62: 1.0}}, {"banned": [62]}])
def test_s58_padding_cannot_be_asked_for(answer, padded, constraints):
    with pytest.raises(ConstraintError, match=r"62 .* vocabulary of 61 tokens"):
        answer(*padded, k=5, constraints=Constraints(**constraints))


def test_s58_the_highest_id_of_a_sparse_tokenizer_stays_usable(answer, tmp_path):
    weight = random_states(64, 8)
    tokenizer = {"model": {"vocab": {"a": 0, "b": 3}}, "added_tokens": [{"id": 60, "content": "<end>"}]}
    folder = write_model(
        tmp_path / "m", {"lm_head.weight": plain(weight, "float16")}, {"vocab_size": 64}, tokenizer=tokenizer
    )
    layer = OutputLayer.load(folder)
    assert layer.vocab_size == 61
    assert answer(layer, weight[60] * 50, k=1).token_ids.tolist() == [[60]]
    assert answer(layer, weight[0], k=1, constraints=Constraints(allowed=[60])).token_ids.tolist() == [[60]]


# --- S59 --------------------------------------------------------------------------------------------------------


def test_s59_the_bias_decides_where_the_state_says_nothing(answer):
    bias = np.zeros(10, np.float32)
    bias[7] = 5.0
    top = answer(OutputLayer(random_states(10, 4), bias), np.zeros((1, 4), np.float32), k=10)
    assert top.token_ids.tolist() == [[7, 0, 1, 2, 3, 4, 5, 6, 8, 9]]
    np.testing.assert_allclose(top.logprobs[0], [-0.058874] + [-5.058874] * 9, atol=5e-7)


def test_s59_a_tied_model_keeps_its_bias(answer, tmp_path):
    weight, bias = random_states(10, 4), np.zeros((1, 10), np.float32)
    bias[0, 7] = 5.0
    tensors = {"model.shared.weight": plain(weight, "float16"), "final_logits_bias": plain(bias, "float32")}
    folder = write_model(
        tmp_path / "m", tensors, {"model_type": "marian", "tie_word_embeddings": True, "vocab_size": 10}
    )
    top = answer(OutputLayer.load(folder), np.zeros((1, 4), np.float32), k=3)
    assert top.token_ids[0, 0] == 7 and top.logprobs[0, 0] == pytest.approx(-0.058874, abs=5e-7)


def test_s59_a_bias_that_is_large_against_the_weight_decides_the_order(answer):
    layer = OutputLayer(random_states(3000, 16) * 0.01, np.random.default_rng(2).normal(size=3000) * 5)
    states = random_states(5, 16, seed=3)
    top = answer(layer, states, k=10)
    np.testing.assert_array_equal(top.token_ids, np.argsort(-logits64(layer, states), axis=1)[:, :10])
    assert set(top.token_ids[0].tolist()) <= set(np.argsort(-layer.bias)[:20].tolist())


# --- S60 --------------------------------------------------------------------------------------------------------


def test_s60_a_soft_cap_is_applied_once(answer):
    layer, state = layer_of([124, 60, 10], softcap=30.0)
    top = answer(layer, state, k=3)
    np.testing.assert_allclose(top.logits[0], [29.9846, 28.9208, 9.6454], atol=5e-5)
    np.testing.assert_allclose(top.logprobs[0], [-0.2965, -1.3603, -20.6357], atol=5e-5)
    entries = entries_of(top.token_ids[0], top.logits[0])
    np.testing.assert_allclose(processed_logprobs(entries, SamplingOptions()), [-0.2965, -1.3603, -20.6357], atol=5e-5)


@pytest.mark.parametrize(
    "config, scale, softcap",
    [
        ({"model_type": "gemma2", "final_logit_softcapping": 30.0}, 1.0, 30.0),
        ({"model_type": "cohere", "logit_scale": 0.0625}, 0.0625, None),
        ({"model_type": "granite", "logits_scaling": 8.0}, 0.125, None),
        ({"final_logit_softcapping": 5.0, "logit_scale": 0.5, "logits_scaling": 4.0}, 0.125, 5.0),
    ],
)
def test_s60_a_models_configuration_is_read(answer, tmp_path, config, scale, softcap):
    folder = write_model(tmp_path / "m", {"lm_head.weight": plain(np.eye(3) * 10, "bfloat16")}, config)
    raw = np.array([12.4, 6.0, 1.0], np.float32)
    top = answer(OutputLayer.load(folder), raw, k=3)
    expected = raw.astype(np.float64) * 10 * scale
    expected = expected if softcap is None else softcap * np.tanh(expected / softcap)
    np.testing.assert_allclose(top.logits[0], expected, rtol=1e-6)
    np.testing.assert_allclose(top.logprobs[0], expected - np.log(np.exp(expected).sum()), atol=1e-5)


# --- S61 --------------------------------------------------------------------------------------------------------


def test_s61_half_precision_does_not_overflow(answer):
    weight = np.full((4, 90), 100.0, np.float16)
    weight[1:] /= 2
    hidden = np.full((1, 90), 10.0, np.float16)
    top = answer(OutputLayer(weight), hidden, k=4)
    assert np.isfinite(top.logits).all() and top.logits[0, 0] == pytest.approx(90_000, rel=1e-3)
    assert top.logprobs[0, 0] == 0.0


def test_s61_a_bad_row_is_named_or_marked(answer):
    layer, states = random_layer(100, 8), random_states(4, 8)
    good = answer(layer, states[[0, 1, 3]], k=5)
    states[2, 4] = np.nan
    with pytest.raises(BadHiddenError, match="row 2 of 4") as caught:
        answer(layer, states, k=5)
    assert caught.value.rows == [2]
    top = answer(layer, states, k=5, on_bad="mark")
    assert top.failed.tolist() == [False, False, True, False] and top.counts.tolist() == [5, 5, 0, 5]
    for name in ("token_ids", "logits", "logprobs"):
        assert getattr(top, name)[[0, 1, 3]].tobytes() == getattr(good, name).tobytes()
    assert (top.token_ids[2] == -1).all() and (top.logprobs[2] == -np.inf).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_s61_bad_weights_are_refused_naming_the_token(bad):
    weight = random_states(100, 8).astype(np.float16)
    weight[42, 1] = bad
    with pytest.raises(BadWeightsError, match="token id 42 ") as caught:
        OutputLayer(weight)
    assert caught.value.token_ids == [42]


# --- S62 and S63, where the library is concerned ----------------------------------------------------------------


def test_s62_impossible_entries_are_left_out(answer):
    layer, state = layer_of([1, 0, -1, -2])
    allowed = Constraints(allowed=[0, 1])
    raw, processed = (answer(layer, state, k=5, constraints=allowed, processed=each) for each in (False, True))
    for top, expected in ((raw, [-0.4402, -1.4402]), (processed, [-0.3133, -1.3133])):
        assert top.counts.tolist() == [2] and top.token_ids[0, :2].tolist() == [0, 1]
        np.testing.assert_allclose(top.logprobs[0, :2], expected, atol=5e-5)
        assert (top.token_ids[0, 2:] == -1).all() and (top.logprobs[0, 2:] == -np.inf).all()


def test_s63_raw_logprobs_know_no_constraint_and_no_temperature(answer):
    layer, state = layer_of([1, 0, -1, -2])
    raw = {0: -0.4402, 1: -1.4402, 2: -2.4402, 3: -3.4402}
    for constraints in (None, Constraints(logit_bias={3: 100.0}), Constraints(banned=[0]), Constraints(allowed=[3, 1])):
        top = answer(layer, state, k=4, constraints=constraints)
        for place in range(top.counts[0]):
            assert top.logprobs[0, place] == pytest.approx(raw[int(top.token_ids[0, place])], abs=5e-5)
    top = answer(layer, state, k=4)
    processed = processed_logprobs(entries_of(top.token_ids[0], top.logits[0]), SamplingOptions(temperature=0.5))
    np.testing.assert_allclose(processed, [-0.1451, -2.1451, -4.1451, -6.1451], atol=5e-5)


# --- S65 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [20, 21, 22, 50, 10**9])
def test_s65_k_around_the_vocabulary(answer, k):
    layer, states = random_layer(21, 8), random_states(3, 8)
    top = answer(layer, states, k=k)
    count = min(k, 21)
    assert top.token_ids.shape == (3, count) and top.counts.tolist() == [count] * 3
    assert all(len(set(ids.tolist())) == count for ids in top.token_ids)
    if count == 21:
        np.testing.assert_allclose(np.exp(top.logprobs.astype(np.float64)).sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("k", [0, -2, 0.01, "5", None, True, 5.0, np.nan])
def test_s65_k_that_is_no_number_of_tokens(answer, k):
    with pytest.raises(ValueError, match="k is") as caught:
        answer(random_layer(21, 8), random_states(1, 8), k=k)
    assert isinstance(caught.value, DecoderOptionsError)


def test_s65_a_vocabulary_of_one(answer):
    top = answer(random_layer(1, 8), random_states(2, 8), k=3)
    assert top.token_ids.tolist() == [[0], [0]] and top.logprobs.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("top_k", [0, -1])
def test_s65_top_k_of_0_and_minus_1_is_no_limit(top_k):
    entries = entries_of(np.arange(21, dtype=np.int32), np.zeros(21, np.float32))
    assert (processed_logprobs(entries, SamplingOptions(top_k=top_k)) > -np.inf).all()


# --- S66 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constraints", [{"allowed": []}, {"allowed": [5], "banned": [5]}, {"banned": range(21)}])
def test_s66_no_token_allowed(answer, constraints):
    with pytest.raises(ValueError, match="row 0: no token allowed") as caught:
        answer(random_layer(21, 8), random_states(1, 8), k=3, constraints=Constraints(**constraints))
    assert isinstance(caught.value, ConstraintError) and caught.value.row == 0
    with pytest.raises(ConstraintError, match="row 7: no token allowed"):
        plan(Constraints(**constraints), 21, row=7)


def test_s66_one_allowed_token(answer):
    layer, state = random_layer(21, 8), random_states(1, 8)
    everything = answer(layer, state, k=21)
    raw = everything.logprobs[0, everything.token_ids[0].tolist().index(5)]
    only = Constraints(allowed=[5])
    top = answer(layer, state, k=3, constraints=only)
    assert top.counts.tolist() == [1] and top.token_ids[0, 0] == 5 and top.logprobs[0, 0] == raw
    assert top.logits[0, 0] == exact_logits(layer, state, ids=[5])[0, 0]
    assert answer(layer, state, k=3, constraints=only, processed=True).logprobs[0, 0] == 0.0
    entries = entries_of(top.token_ids[0, :1], top.logits[0, :1])
    drawn = {draw(entries, SamplingOptions(temperature=5.0), generator_of(1, step, 0)).token_id for step in range(200)}
    assert drawn == {5}


def test_s66_a_ban_wins_over_a_permission(answer):
    layer, states = random_layer(21, 8), random_states(6, 8)
    top = answer(layer, states, k=21, constraints=Constraints(allowed=[3, 4, 5], banned=[4], logit_bias={4: 50.0}))
    assert top.counts.tolist() == [2] * 6
    assert {int(token) for token in top.token_ids[:, :2].reshape(-1)} == {3, 5}
