"""Contracts of what log Z is made of, over the slow twins and the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from layer_oracle import random_states

from decoder.kernels import partition, reference_partition

FLOATS = [(1.0, 0.0), (0.5, 0.0), (1.0, 4.0), (2.0, 30.0)]
"""(scale, soft-cap; 0: none)."""


class RandomContract:
    state_seed: ClassVar[Callable[..., Any]]
    draw: ClassVar[Callable[..., Any]]
    uniform: ClassVar[Callable[..., Any]]

    def test_draws_are_those_of_splitmix64(self):
        """The first numbers from state 1234567, as published with the generator."""
        x, found = np.uint64(1234567), []
        for _ in range(5):
            x, bits = self.draw(np.uint64(x))
            found.append(int(bits))
        assert found == [
            6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
        ]  # fmt: skip

    def test_uniform_numbers(self):
        x, values = np.uint64(9), []
        for _ in range(4000):
            x, value = self.uniform(np.uint64(x))
            values.append(value)
        assert min(values) >= 0.0 and max(values) < 1.0
        assert abs(np.mean(values) - 0.5) < 0.02 and abs(np.var(values) - 1 / 12) < 0.005

    def test_every_bit_of_state_and_seed_counts(self):
        state = random_states(1, 33)[0]
        first = int(self.state_seed(state, np.uint64(5)))
        assert first == int(reference_partition.state_seed(state, np.uint64(5)))
        others = {int(self.state_seed(state, np.uint64(6)))}
        for place in range(33):
            other = state.copy()
            other.view(np.uint32)[place] ^= 1
            others.add(int(self.state_seed(other, np.uint64(5))))
        assert len(others) == 34 and first not in others


class TestRandomReference(RandomContract):
    state_seed = staticmethod(reference_partition.state_seed)
    draw = staticmethod(reference_partition.draw)
    uniform = staticmethod(reference_partition.uniform)


class TestRandomNumba(RandomContract):
    state_seed = staticmethod(partition.state_seed)
    draw = staticmethod(partition.draw)
    uniform = staticmethod(partition.uniform)


class SeenContract:
    estimate_error: ClassVar[Callable[..., float]]
    sum_seen: ClassVar[Callable[..., Any]]
    add_ties: ClassVar[Callable[..., Any]]
    sample_seen: ClassVar[Callable[..., int]]

    def distances(self, count: int = 60) -> np.ndarray:
        return (np.random.default_rng(1).normal(size=count) * 8).astype(np.float32)

    @pytest.mark.parametrize("scale, softcap", FLOATS)
    def test_masses_are_those_of_the_estimates_beyond_the_limit(self, scale, softcap):
        far = self.distances()
        raw = (-0.5 * far.astype(np.float64) + 1.25) * scale
        logits = softcap * np.tanh(raw / softcap) if softcap else raw
        masses = np.full(61, -1, np.float32)
        total, squares = self.sum_seen(
            far, 60, np.float32(-1.0), np.float32(1.25), np.float32(scale), np.float32(softcap), np.float32(2.0), masses
        )
        expected = np.where(far > -1.0, np.exp(logits - 2.0), 0.0)
        np.testing.assert_allclose(masses[:60], expected, rtol=1e-5)
        np.testing.assert_allclose([total, squares], [expected.sum(), (expected**2).sum()], rtol=1e-5)
        assert masses[60] == -1

    def test_an_estimate_far_above_the_best_logit_stays_finite(self):
        far = np.array([-1e6, -300.0, 1e6], np.float32)
        for softcap in (0.0, 1e5):
            masses = np.empty(3, np.float32)
            lowest, no = np.float32(-np.inf), np.float32(0.0)
            total, squares = self.sum_seen(far, 3, lowest, no, np.float32(1.0), np.float32(softcap), no, masses)
            assert np.isfinite([total, squares]).all() and (masses >= 0).all()
            assert masses[0] == masses[1] == pytest.approx(np.exp(60.0), rel=1e-5) and masses[2] < 1e-37

    @pytest.mark.parametrize("scale, softcap", FLOATS)
    def test_the_error_of_estimates(self, scale, softcap):
        far = self.distances(20)
        raw = (np.float32(-0.5) * far + np.float32(0.5)) * np.float64(scale)
        estimates = softcap * np.tanh(raw / softcap) if softcap else raw
        logits = (estimates + np.tile([0.02, -0.02], 10)).astype(np.float32)
        found = self.estimate_error(logits, far, np.float32(0.5), np.float32(scale), np.float32(softcap), 20)
        assert found == pytest.approx(0.02, rel=0.01)
        exactly = self.estimate_error(
            estimates.astype(np.float32), far, np.float32(0.5), np.float32(scale), np.float32(softcap), 20
        )
        assert exactly < 1e-5

    def test_ties_with_the_last_reranked_row(self):
        rows = np.array([9, 4, 7, 1, 8, 3, 2], np.int32)
        far = np.array([1, 3, 3, 3, 5, 3, 2], np.float32)
        who, near = np.array([9, 2, 7, 3, -7], np.int32), np.array([1, 2, 3, 3, 9], np.float32)
        masses = np.zeros(7, np.float32)
        no, one = np.float32(0.0), np.float32(1.0)
        total, squares = self.add_ties(rows, far, 7, who, near, 4, no, one, no, no, masses)
        mass = np.exp(-1.5)
        np.testing.assert_allclose(masses, [0, mass, 0, mass, 0, 0, 0], rtol=1e-6)  # rows 4 and 1
        np.testing.assert_allclose([total, squares], [2 * mass, 2 * mass**2], rtol=1e-6)

    def test_without_ties_nothing_is_added(self):
        rows, far = np.arange(5, dtype=np.int32), np.array([2, 1, 4, 3, 5], np.float32)
        masses = np.full(5, 0.25, np.float32)
        no = np.float32(0.0)
        who, near = np.array([1, 0, 3], np.int32), np.array([1, 2, 3], np.float32)
        assert self.add_ties(rows, far, 5, who, near, 3, no, np.float32(1.0), no, no, masses) == (0.0, 0.0)
        assert (masses == 0.25).all()

    def drawn(self, masses: np.ndarray, draws: int, start: float):
        who, weights = np.full(draws, -7, np.int32), np.full(draws, np.nan)
        times = np.full(draws, -7, np.int32)
        rows = np.arange(len(masses), dtype=np.int32) * 3
        total = float(masses.astype(np.float64).sum())
        m = self.sample_seen(rows, masses, len(masses), total, draws, start, who, weights, times)
        return who[:m] // 3, weights[:m], times[:m], total

    @pytest.mark.parametrize("draws", [1, 5, 64, 500])
    @pytest.mark.parametrize("start", [0.0, 0.37, 0.999])
    def test_the_weighted_masses_sum_to_all(self, draws, start):
        masses = np.random.default_rng(2).exponential(size=200).astype(np.float32) ** 3
        masses[::7] = 0.0
        places, weights, times, total = self.drawn(masses, draws, start)
        assert (np.diff(places) > 0).all() and (masses[places] > 0).all() and times.sum() == draws
        np.testing.assert_allclose((weights * masses[places]).sum(), total, rtol=1e-6)

    def test_each_row_comes_in_proportion_to_its_mass(self):
        masses = np.array([0.0, 1.0, 5.0, 2.0, 0.0, 2.0], np.float32)
        counts, weighed = np.zeros(6), np.zeros(6)
        starts = (np.arange(1000) + 0.5) / 1000
        for start in starts:
            places, weights, times, _ = self.drawn(masses, 4, start)
            counts[places] += times
            weighed[places] += weights
        np.testing.assert_allclose(counts / 4000, masses / 10, atol=1e-3)
        np.testing.assert_allclose(weighed / 1000, masses > 0, atol=1e-3)  # a token stands for itself, in the mean

    def test_nothing_to_draw_from(self):
        places, *_ = self.drawn(np.zeros(5, np.float32), 4, 0.5)
        assert len(places) == 0


class TestSeenReference(SeenContract):
    estimate_error = staticmethod(reference_partition.estimate_error)
    sum_seen = staticmethod(reference_partition.sum_seen)
    add_ties = staticmethod(reference_partition.add_ties)
    sample_seen = staticmethod(reference_partition.sample_seen)


class TestSeenNumba(SeenContract):
    estimate_error = staticmethod(partition.estimate_error)
    sum_seen = staticmethod(partition.sum_seen)
    add_ties = staticmethod(partition.add_ties)
    sample_seen = staticmethod(partition.sample_seen)


class CombineContract:
    combine: ClassVar[Callable[..., Any]]

    def run(
        self, logits, *, exact, sampled=0, weights=None, times=None, total=0.0, squares=0.0, spread=0.0, drawn_from=0.0,
        draws=0, rest=0,
    ):  # fmt: skip
        logits = np.asarray(logits, np.float32)
        weights = np.ones(len(logits)) if weights is None else np.asarray(weights, np.float64)
        times = np.ones(max(1, sampled), np.int32) if times is None else np.asarray(times, np.int32)
        masses = np.empty(len(logits))
        return self.combine(
            logits, weights, exact, sampled, times, total, squares, spread, drawn_from, draws, rest, masses
        )

    def test_exact_rows_alone(self):
        z, error = self.run([2.0, 5.0, -1.0], exact=3)
        assert z == pytest.approx(np.log(np.exp([2.0, 5.0, -1.0]).sum()), abs=1e-12) and error == partition.FEW

    def test_estimates_count_as_they_are(self):
        z, error = self.run([0.0], exact=1, total=0.5, squares=0.04, spread=0.1)
        assert z == pytest.approx(np.log(1.5), abs=1e-12) and error == pytest.approx(0.2 * 0.1 / 1.5)

    def test_a_sample_of_estimated_rows_counts_by_its_weights(self):
        """Exact masses twice the estimates: 4 draws from estimates that sum to 3."""
        logits = np.log([1.0, 0.4, 0.8])
        z, error = self.run(
            logits, exact=1, sampled=2, weights=[1.0, 3.75, 5.625], times=[1, 3], drawn_from=3.0, draws=4
        )
        assert z == pytest.approx(np.log(1.0 + 1.5 + 4.5), abs=1e-6) and error == pytest.approx(partition.FEW)
        uneven, wider = self.run(
            np.log([1.0, 0.2, 0.8]),
            exact=1,
            sampled=2,
            weights=[1.0, 3.75, 5.625],
            times=[1, 3],
            drawn_from=3.0,
            draws=4,
        )
        assert uneven < z and wider > 0.01
        # Where nothing was drawn the estimates stand.
        assert self.run([0.0], exact=1, drawn_from=3.0, draws=4)[0] == pytest.approx(np.log(4.0))

    def test_a_uniform_sample_is_scaled_up(self):
        masses = np.array([1.0, 0.01, 0.03, 0.02])
        z, error = self.run(np.log(masses), exact=1, rest=300)
        assert z == pytest.approx(np.log(1 + 0.02 * 300), abs=1e-6)
        spread = np.sqrt(300**2 * 0.0001 / 3 * (1 - 3 / 300))
        assert error == pytest.approx(spread / 7.0, rel=1e-4)
        # The whole rest was drawn: nothing is left to chance.
        z, error = self.run(np.log(masses), exact=1, rest=3)
        assert z == pytest.approx(np.log(1.06), abs=1e-6) and error == partition.FEW

    def test_large_logits_do_not_overflow(self):
        z, _ = self.run([9000.0, 8999.0, 100.0], exact=2, rest=5)
        assert z == pytest.approx(9000.0 + np.log(1 + np.exp(-1.0)), abs=1e-3)

    def test_twins_agree_on_everything_at_once(self):
        generator = np.random.default_rng(4)
        given = {
            "exact": 9, "sampled": 12, "weights": generator.exponential(size=40) + 0.1,
            "times": generator.integers(1, 4, 12), "total": 0.7, "squares": 0.01, "spread": 0.05, "drawn_from": 1.5,
            "draws": 24, "rest": 900,
        }  # fmt: skip
        logits = np.sort(generator.normal(size=40))[::-1] * 3
        np.testing.assert_allclose(self.run(logits, **given), TestCombineReference().run(logits, **given), rtol=1e-9)


class TestCombineReference(CombineContract):
    combine = staticmethod(reference_partition.combine)


class TestCombineNumba(CombineContract):
    combine = staticmethod(partition.combine)
