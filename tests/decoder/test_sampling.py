"""Sampling: the cuts against the plain way over all tokens, draws by frequency, the tail's weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from decoder.errors import DecoderOptionsError
from decoder.sampling import Entries, SamplingOptions, draw, entries_of, generator_of, log_partition, processed_logprobs


def entries(logits, weights=None) -> Entries:
    logits = np.asarray(logits, np.float32)
    return entries_of(np.arange(len(logits), dtype=np.int32), logits, weights)


def plain(logits: np.ndarray, options: SamplingOptions) -> np.ndarray:
    """Probabilities of all tokens, one cut after the other, each renormalised: float64."""
    temperature = 1.0 if options.greedy else options.temperature
    p = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    p /= p.sum()
    order = np.lexsort((np.arange(len(p)), -logits))
    if options.top_k:
        p[order[options.top_k :]] = 0
        p /= p.sum()
    if options.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= options.top_p * (1 - 1e-9)]] = 0
        p /= p.sum()
    p[p < options.min_p * p.max()] = 0
    return p / p.sum()


options_of = some.builds(
    SamplingOptions,
    temperature=some.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]),
    top_k=some.sampled_from([-1, 0, 1, 2, 5, 100]),
    top_p=some.sampled_from([0.01, 0.3, 0.5, 0.9, 1.0]),
    min_p=some.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
)


@settings(deadline=None)
@given(options=options_of, seed=some.integers(0, 99), count=some.integers(1, 40))
def test_the_cuts_equal_the_plain_way(options, seed, count):
    logits = (np.random.default_rng(seed).normal(size=count) * 3).astype(np.float32)
    given_entries = entries(logits)
    with np.errstate(divide="ignore"):
        expected = np.log(plain(logits, options))
    found = processed_logprobs(given_entries, options)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[given_entries.ids], atol=1e-5)
    drawn = draw(given_entries, options, generator_of(seed, 0, 0))
    assert drawn.token_id == given_entries.ids[drawn.place] and found[drawn.place] > -np.inf
    assert drawn.logprob == pytest.approx(found[drawn.place], abs=1e-6)


@settings(deadline=None)
@given(options=options_of, seed=some.integers(0, 30))
def test_equal_tail_tokens_may_be_one_entry(options, seed):
    """Tokens of one logit, as one entry with their number as weight, change nothing for the others."""
    generator = np.random.default_rng(seed)
    few, copies = (generator.normal(size=6) * 2).astype(np.float32), generator.integers(1, 30, 6)
    folded = entries(few, copies.astype(np.float64))
    p = plain(np.repeat(few, copies), options)
    share = [p[np.repeat(np.arange(6), copies) == token].sum() for token in folded.ids]
    logprobs = processed_logprobs(folded, options)
    kept = np.exp(logprobs[logprobs > -np.inf].astype(np.float64))
    first = [p[np.repeat(np.arange(6), copies) == token][0] for token in folded.ids]
    np.testing.assert_allclose(np.exp(logprobs), first, atol=1e-5)
    assert len(kept) == sum(each > 0 for each in share)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}])
def test_draws_come_as_often_as_they_should(options):
    logits = np.array([1.0, 0.0, -1.0, -2.0, 0.5], np.float32)
    chosen = SamplingOptions(seed=7, **options)
    counts = np.zeros(5)
    for step in range(4000):
        counts[draw(entries(logits), chosen, generator_of(chosen.seed, step, 0)).token_id] += 1
    p = plain(logits, chosen)
    assert (np.abs(counts / 4000 - p) <= 4 * np.sqrt(p * (1 - p) / 4000)).all()


def test_the_tail_is_drawn_by_its_weight():
    """A different uniform sample of the tail each time, as a decoder takes it: every token comes as often as it should."""
    generator = np.random.default_rng(3)
    logits = (generator.normal(size=60) / 4).astype(np.float32)
    logits[:5] += 2
    p = plain(logits, SamplingOptions())
    counts = np.zeros(60)
    for step in range(6000):
        sample = 5 + generator.choice(55, 11, replace=False)
        ids = np.concatenate([np.arange(5), sample]).astype(np.int32)
        made = entries_of(ids, logits[ids], np.array([1.0] * 5 + [5.0] * 11))
        counts[draw(made, SamplingOptions(), generator_of(1, step, 0)).token_id] += 1
    assert (np.abs(counts / 6000 - p) <= 4.5 * np.sqrt(p * (1 - p) / 6000)).all()


def test_log_partition_at_any_temperature():
    logits, weights = np.array([3.0, 1.0, 0.5], np.float32), np.array([1.0, 4.0, 2.5])
    made = entries(logits, weights)
    for temperature in (0.25, 1.0, 3.0):
        expected = np.log(np.sum(weights * np.exp(logits.astype(np.float64) / temperature)))
        assert log_partition(made, temperature) == pytest.approx(expected, rel=1e-12)


def test_greedy_takes_the_best_and_of_equals_the_lowest_id():
    made = entries_of(np.array([9, 4, 7], np.int32), np.array([1.0, 2.0, 2.0], np.float32))
    for temperature in (0, 0.0, 1e-6):
        drawn = draw(made, SamplingOptions(temperature=temperature), generator_of(None, 0, 0))
        assert (drawn.token_id, drawn.place) == (4, 0)
    assert drawn.logprob == pytest.approx(-np.log(2 + np.exp(-1)))


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 1e4, 1e30])
def test_extreme_temperatures_and_logits(temperature):
    made = entries([3e38, -3e38, 0.0])
    logprobs = processed_logprobs(made, SamplingOptions(temperature=temperature))
    assert not np.isnan(logprobs).any() and draw(
        made, SamplingOptions(temperature=temperature), generator_of(0, 0, 0)
    ).token_id in (0, 1, 2)


def test_seeds_steps_and_rows():
    def drawn(seed, step, row):
        return draw(entries(np.zeros(10_000)), SamplingOptions(), generator_of(seed, step, row)).token_id

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    assert len({drawn(1, 2, 3), drawn(2, 2, 3), drawn(1, 3, 3), drawn(1, 2, 4), drawn(1, 3, 2)}) == 5
    assert drawn(None, 0, 0) != drawn(None, 0, 0)
    assert drawn(2**63 - 1, 0, 0) == drawn(2**63 - 1, 0, 0)


def test_s65_no_limit_is_0_or_minus_1():
    assert SamplingOptions(top_k=-1).top_k == 0 and SamplingOptions(top_k=np.int64(4)).top_k == 4


@pytest.mark.parametrize(
    "options, said",
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "1"}, "temperature is '1'"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": 0.01}, "top_k is 0.01"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_k": None}, "top_k is None"),
        ({"top_p": 0.0}, "top_p is 0.0, needed a finite number above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is"),
        ({"seed": 1.0}, "seed is 1.0"),
    ],
)
def test_options_of_no_use(options, said):
    with pytest.raises(DecoderOptionsError, match=said):
        SamplingOptions(**options)
