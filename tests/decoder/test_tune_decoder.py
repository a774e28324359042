"""Operating points measured: recall, log Z and error bars are what they are, by answers made up for the purpose."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from layer_oracle import log_sum, logits64, random_layer, random_states

from decoder.candidates import Candidates
from decoder.tune import FEW_STATES, WIDTHS, Truth, measure_curve, measure_point

V = 3000


def truth_of(n: int = 500) -> Truth:
    states = random_states(n, 8)
    true = logits64(random_layer(V, 8), states)
    return Truth(states, np.argsort(-true, axis=1)[:, :100].astype(np.int32), log_sum(true))


def fake(truth: Truth, *, missed: int = 0, log_z_error: float = 0.0, stated: float = 1.0, seen=None):
    """Answers that lack the `missed` best tokens of every fourth state."""
    place = {state.tobytes(): row for row, state in enumerate(truth.states)}
    lock = threading.Lock()

    def answer(states, effort, scratch) -> Candidates:
        found = Candidates.empty(len(states), effort)
        for i, state in enumerate(states):
            row = place[state.tobytes()]
            best = truth.token_ids[row]
            best = best[missed:] if row % 4 == 0 else best
            ids = np.concatenate([best, np.full(effort.rerank, V - 1, np.int32)])[: effort.rerank]
            found.token_ids[i, : effort.rerank] = ids
            found.exact[i] = found.counts[i] = effort.rerank
            error = np.random.default_rng(row).normal() * log_z_error
            found.log_z[i], found.error[i], found.scored[i] = truth.log_z[row] + error, stated, effort.width * 7
        if seen is not None:
            with lock:
                seen.append((len(states), effort))
        return found

    return answer


def measured(answer, truth, *, width=200, threads=1, **options):
    given = {"vocab_size": V, "whole_codes": True, "threads": threads, "check": lambda: None, **options}
    return measure_point(answer, "walk", width, truth, **given)


def test_recall_is_the_share_of_the_best_that_is_found():
    truth = truth_of()
    point = measured(fake(truth, missed=2), truth)
    assert point.recall["1"] == pytest.approx(0.75)
    assert point.recall["10"] == pytest.approx(1 - 0.2 / 4)
    assert point.recall["100"] == pytest.approx(1 - 0.02 / 4, abs=1e-3)
    assert all(point.low[k] < point.recall[k] for k in ("1", "10", "100"))
    assert point.rows_scored == 1400 and (point.mode, point.width) == ("walk", 200)
    perfect = measured(fake(truth), truth)
    assert set(perfect.recall.values()) == {1.0} and min(perfect.low.values()) > 0.99


@pytest.mark.parametrize("stated, interval", [(0.1, 1.0), (0.05, 1.0), (0.025, 2.0), (0.005, 10.0)])
def test_intervals_are_widened_until_they_cover(stated, interval):
    """True errors of 0.05."""
    truth = truth_of()
    point = measured(fake(truth, log_z_error=0.05, stated=stated), truth)
    assert point.interval == pytest.approx(interval, rel=0.1)
    assert point.half_width == pytest.approx(1.96 * stated * point.interval)
    errors = [abs(np.random.default_rng(row).normal() * 0.05) for row in range(len(truth))]
    assert np.mean(np.array(errors) <= 1.96 * point.interval * stated) >= 0.95
    assert point.logprob_error == pytest.approx(np.mean(errors))


def test_threads_change_nothing():
    truth, seen = truth_of(), []
    one = measured(fake(truth, missed=3, log_z_error=0.1), truth)
    assert one == measured(fake(truth, missed=3, log_z_error=0.1, seen=seen), truth, threads=3)
    assert max(n for n, _ in seen) <= 64 and sum(n for n, e in seen if e.tail) == len(truth)
    assert sum(n for n, e in seen if not e.tail) == min(FEW_STATES, len(truth))


def test_a_curve_ends_where_it_is_enough():
    truth, widths = truth_of(60), []

    def curve(vocab_size, enough=lambda point: False, mode="walk"):
        return [
            point.width
            for point in measure_curve(
                fake(truth), mode, truth, enough=enough, vocab_size=vocab_size, whole_codes=True, threads=1,
                check=lambda: widths.append(0),
            )
        ]  # fmt: skip

    assert curve(V, lambda point: point.width >= 64) == [24, 32, 48, 64]
    assert curve(V)[-1] == WIDTHS["walk"][-1] and curve(V) == list(WIDTHS["walk"])
    assert curve(V, mode="screen") == [w for w in WIDTHS["screen"] if w < V] + [V]
    # As wide as the vocabulary is as wide as can be; and one point there always is.
    assert (
        curve(100) == [24, 32, 48, 64, 96, 100] and curve(100, mode="screen") == [32, 64, 96, 100] and curve(21) == [21]
    )
    assert widths


def test_measuring_can_be_cancelled():
    truth = truth_of(60)

    def check() -> None:
        raise InterruptedError

    for threads in (1, 3):
        with pytest.raises(InterruptedError):
            measured(fake(truth), truth, threads=threads, check=check)


def test_a_part_of_the_truth():
    truth = truth_of(50)
    part = truth.part(slice(10, 20))
    assert len(part) == 10 and part.states.tobytes() == truth.states[10:20].tobytes()
    assert part.token_ids.tobytes() == truth.token_ids[10:20].tobytes()
