"""Operating points of a decoder: the narrowest that reaches what is asked, and what one call looks at."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoder.operating_points import SPARE, DecoderPoint, effort_of, lower_bound, pick


def point(mode: str, width: int, low: float, *, error: float = 0.001) -> DecoderPoint:
    recall = {"1": low + 0.002, "10": low + 0.001, "100": low}
    lows = {"1": low + 0.001, "10": low, "100": low - 0.01}
    return DecoderPoint(
        mode=mode, width=width, recall=recall, low=lows, rows_scored=10.0 * width, logprob_error=error, interval=1.5,
        half_width=0.01,
    )  # fmt: skip


POINTS = (
    point("walk", 64, 0.97, error=0.02),
    point("walk", 24, 0.90, error=0.05),
    point("screen", 128, 0.99),
    point("walk", 96, 0.995, error=0.003),
)


def test_a_point_is_json():
    made = DecoderPoint(**json.loads(json.dumps(POINTS[0].to_dict())))
    assert made == POINTS[0]


@pytest.mark.parametrize("k, low", [(1, 0.971), (2, 0.97), (10, 0.97), (11, 0.96), (100, 0.96), (5000, 0.96)])
def test_between_the_measured_k_the_next_larger_counts(k, low):
    assert POINTS[0].low_at(k) == pytest.approx(low)


@pytest.mark.parametrize(
    "recall, error, width, reached",
    [
        (0.5, None, 24, True), (0.95, None, 64, True), (0.96, 0.04, 64, True), (0.95, 0.01, 96, True),
        (0.999, None, 96, False), (0.95, 0.001, 96, False),
    ],
)  # fmt: skip
def test_the_narrowest_that_reaches_what_is_asked(recall, error, width, reached):
    chosen, found = pick(POINTS, "walk", k=10, recall=recall, logprob_error=error)
    assert (chosen.width, found) == (width, reached)


def test_recall_at_the_k_that_is_asked_for():
    assert pick(POINTS, "walk", k=1, recall=0.971, logprob_error=None)[0].width == 64
    assert pick(POINTS, "walk", k=100, recall=0.97, logprob_error=None)[0].width == 96


@pytest.mark.parametrize("n", [20, 200, 5000])
def test_the_lower_bound_is_one(n):
    """Of 400 samples at most about one in twenty lies above the truth."""
    generator = np.random.default_rng(n)
    for truth in (0.9, 0.99):
        bounds = [lower_bound(generator.binomial(10, truth, n) / 10) for _ in range(400)]
        assert np.mean(np.array(bounds) > truth) < 0.075
        assert np.mean(bounds) > truth - 3.5 / np.sqrt(n * 10) - 1.4 / n
    assert lower_bound(np.zeros(n)) == 0.0
    assert 1 - 2 / n < lower_bound(np.ones(n)) < 1.0


class TestEffort:
    def effort(
        self, k: int, *, width: int = 64, mode: str = "walk", vocab_size: int = 100_000, whole: bool = True, log_z=True
    ):
        some = point(mode, width, 0.99)
        return effort_of(some, k, vocab_size=vocab_size, whole_codes=whole, log_z=log_z)

    @pytest.mark.parametrize("mode", ["walk", "screen"])
    @pytest.mark.parametrize("whole", [False, True])
    @pytest.mark.parametrize("k", [1, 10, 100, 101, 1000, 40_000])
    def test_enough_is_reranked_and_seen(self, k, whole, mode):
        effort = self.effort(k, mode=mode, whole=whole)
        assert effort.rerank >= k + min(SPARE, k) and effort.width >= effort.rerank
        assert (effort.tail if mode == "walk" else effort.middle) > 0

    def test_beyond_the_largest_measured_k_the_width_grows_with_k(self):
        assert self.effort(100, width=600).width == 600 and self.effort(300, width=600).width == 1800

    @pytest.mark.parametrize("k", [1, 7, 21])
    def test_never_more_than_there_is(self, k):
        for mode in ("walk", "screen"):
            for whole in (False, True):
                effort = self.effort(k, width=2000, mode=mode, vocab_size=21, whole=whole)
                assert effort.rerank <= 21 and effort.width == 21

    @pytest.mark.parametrize("mode", ["walk", "screen"])
    def test_without_log_z_nothing_is_sampled(self, mode):
        effort = self.effort(10, mode=mode, log_z=False)
        assert (effort.middle, effort.tail) == (0, 0)

    def test_a_walk_with_whole_codes_trusts_its_estimates(self):
        assert self.effort(10).middle == 0 and self.effort(10, whole=False).middle > 0
