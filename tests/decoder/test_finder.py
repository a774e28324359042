"""Candidates by mode and effort: how many, on how many threads, with which buffers; and what comes of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from layer_oracle import log_sum, logits64
from small_decoders import require_same_row
from toy_decoder import V, toy

from decoder.candidates import Candidates, Effort
from decoder.finder import Finder
from decoder.operating_points import pick
from decoder.planner import MODES, Choice
from decoder.results import Answer, normalised, requested, spread_rows
from decoder.results import log_sum as float_log_sum
from decoder.store import read_decoder


@pytest.fixture(scope="module")
def parts():
    return read_decoder(toy().folder, layer=toy().layer)[0]


@pytest.fixture
def finder(parts) -> Finder:
    return Finder(parts)


def choice(parts, mode: str) -> Choice:
    return Choice(
        mode, None if mode == "exact" else pick(parts.points, mode, k=10, recall=0.99, logprob_error=None)[0], True
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("log_z, entries", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("threads", [1, 3, 100])
def test_threads_share_the_states(parts, finder, mode, log_z, entries, threads):
    states = toy().held_out[:10]
    asked = {"k": 5, "log_z": log_z, "entries": entries}
    found = finder.find(states, choice(parts, mode), threads=threads, **asked)
    for row in range(10):
        require_same_row(finder.find(states[row : row + 1], choice(parts, mode), **asked), 0, found, row)
    assert (found.exact >= 5).all() and (mode == "exact" or np.isnan(found.log_z).all() == (not log_z))


def test_calls_at_once_have_buffers_of_their_own(parts):
    finder, begin = Finder(parts), threading.Barrier(8)

    def ask(row: int) -> Candidates:
        begin.wait()
        for _ in range(20):
            found = finder.find(toy().held_out[row : row + 1], choice(parts, "walk"), k=10, log_z=True)
        return found

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    alone = Finder(parts)
    for row, found in enumerate(answers):
        require_same_row(
            alone.find(toy().held_out[row : row + 1], choice(parts, "walk"), k=10, log_z=True), 0, found, 0
        )
    assert 1 <= finder._scratch.qsize() <= 8


def test_exact_rows_have_the_bits_of_every_mode(finder):
    state, ids = toy().held_out[0], np.array([3, 3, V - 1, 0], np.int32)
    found = finder.find(state[None, :], Choice("exact", None, True), k=V, log_z=False)
    bits = dict(zip(found.token_ids[0].tolist(), found.logits[0].tolist()))
    assert finder.exact_rows(state, ids).tolist() == [bits[token] for token in ids.tolist()]
    assert len(finder.exact_rows(state, ids[:0])) == 0


def test_timed_answers_like_any_other_call(finder):
    for mode in MODES:
        assert finder.timed(mode, 24, toy().held_out[:3], log_z=True) is None


class TestResults:
    def found(self) -> Candidates:
        found = Candidates.empty(2, Effort(width=9, rerank=3, middle=2))
        found.token_ids[:] = [[7, 3, 9, 1, 2], [5, 6, 8, 4, 0]]
        found.logits[:] = [[4, 3, 2, 9, 9], [4, 3, 9, 9, 9]]
        found.exact[:], found.counts[:], found.scored[:] = [3, 2], [5, 4], [50, 60]
        found.log_z[:], found.error[:] = [5.0, 6.0], [0.1, 0.2]
        return found

    def test_the_best_exact_candidates(self):
        answer = Answer.of(self.found(), 3)
        assert answer.token_ids.tolist() == [[7, 3, 9], [5, 6, -1]] and answer.counts.tolist() == [3, 2]
        assert answer.logits.tolist() == [[4, 3, 2], [4, 3, -np.inf]] and answer.scored.tolist() == [50, 60]
        assert Answer.of(self.found(), 1).token_ids.tolist() == [[7], [5]]
        assert Answer.of(self.found(), 99).token_ids.shape == (2, 5)

    @pytest.mark.parametrize(
        "normalize, log_z, error",
        [("estimate", [5.0, 6.0], [0.3, 0.6]), ("topk", log_sum(np.array([[4, 3, 2], [4, 3, -np.inf]])), [0.0, 0.0])],
    )
    def test_what_log_probabilities_are_relative_to(self, finder, normalize, log_z, error):
        found = self.found()
        answer = normalised(
            finder, toy().held_out[:2], Answer.of(found, 3), normalize, found, exact_mode=False, interval=3.0
        )
        np.testing.assert_allclose(answer.log_z, log_z, rtol=1e-6)
        np.testing.assert_allclose(answer.error, error)
        np.testing.assert_allclose(answer.logprobs, answer.logits - answer.log_z[:, None], rtol=1e-5)
        assert not answer.exact and answer.logprobs[1, 2] == -np.inf

    def test_tokens_asked_for(self, finder):
        answer = Answer.of(self.found(), 3).with_log_z(np.array([5.0, 6.0]), np.zeros(2), exact=True)
        ids = np.array([8, 2], np.int32)
        logits, logprobs = requested(finder, toy().held_out[:2], ids, answer, None, processed=False)
        np.testing.assert_allclose(logits, logits64(toy().layer, toy().held_out[:2])[:, ids], atol=1e-5)
        np.testing.assert_allclose(logprobs, logits - [[5.0], [6.0]], atol=1e-5)

    def test_failed_rows_are_put_back(self):
        answer = Answer.of(self.found(), 2).with_log_z(np.array([5.0, 6.0]), np.array([0.1, 0.2]), exact=False)
        extra = (np.ones((2, 1), np.float32), np.full((2, 1), 2, np.float32))
        failed = np.array([True, False, True, False])
        top = spread_rows(answer, "walk", failed, np.array([1, 3]), extra)
        assert len(top) == 4 and top.mode == "walk" and top.failed.tolist() == failed.tolist()
        assert top.token_ids.tolist() == [[-1, -1], [7, 3], [-1, -1], [5, 6]] and top.counts.tolist() == [0, 2, 0, 2]
        assert top.logprobs[0].tolist() == [-np.inf, -np.inf] and top.logprob_stderr.tolist() == [
            0,
            np.float32(0.1),
            0,
            np.float32(0.2),
        ]
        assert top.rows_scored.tolist() == [0, 50, 0, 60] and np.isnan(top.requested_logits[[0, 2]]).all()
        assert top.token_ids.dtype == top.counts.dtype == np.int32 and top.logits.dtype == np.float32
        whole = spread_rows(answer, "walk", np.zeros(2, bool), np.arange(2), None)
        assert whole.token_ids.tolist() == [[7, 3], [5, 6]] and whole.requested_logits is None

    def test_log_sum_of_entries_that_are_not_there(self):
        assert float_log_sum(np.array([[0.0, -np.inf]], np.float32)).tolist() == [0.0]
        assert float_log_sum(np.array([[9000.0, 9000.0]], np.float32))[0] == pytest.approx(9000 + np.log(2))
