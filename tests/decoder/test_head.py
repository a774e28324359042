"""OpenDecoder: what calls accept, what they answer, and that answers do not depend on company (S64)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pytest
from decoder_paths import opened
from layer_oracle import logits64, logprobs64, random_layer, random_states, require_best
from toy_decoder import DIM, V, toy

from decoder import Constraints, OpenDecoder, SamplingOptions, TopK, exact_topk, open_decoder
from decoder.errors import BadHiddenError, DecoderClosedError, DecoderError, DecoderOptionsError
from decoder.planner import MODES


@pytest.fixture(scope="module")
def head() -> OpenDecoder:
    with open_decoder(toy().folder, layer=toy().layer) as opened_toy:
        yield opened_toy


def held(n: int) -> np.ndarray:
    return toy().held_out[:n]


def shares(top: TopK, exact) -> np.ndarray:
    k = exact.token_ids.shape[1]
    return np.array([len(set(a) & set(b)) / k for a, b in zip(top.token_ids.tolist(), exact.token_ids.tolist())])


def require_same(a: TopK, i: int, b: TopK, j: int) -> None:
    for field in fields(TopK):
        mine, theirs = getattr(a, field.name), getattr(b, field.name)
        if isinstance(mine, np.ndarray):
            assert mine[i].tobytes() == theirs[j].tobytes(), field.name
        else:
            assert mine == theirs


# --- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [1, 10, 100])
def test_the_recall_that_was_promised(head, mode, k):
    states = held(1000)
    top, exact = head.topk(states, k=k, mode=mode), exact_topk(toy().layer, states, k)
    assert top.mode == mode and top.exact == (mode == "exact")
    assert (top.counts == k).all() and top.token_ids.dtype == np.int32 and top.logits.dtype == np.float32
    found = shares(top, exact)
    assert found.mean() >= 0.99 - 2 * found.std() / np.sqrt(1000)


@pytest.mark.parametrize("mode", MODES)
def test_logits_are_exact_and_in_order(head, mode):
    top = head.topk(held(50), k=20, mode=mode)
    true = logits64(toy().layer, held(50))
    np.testing.assert_allclose(top.logits, np.take_along_axis(true, top.token_ids.astype(np.int64), axis=1), atol=1e-5)
    assert (np.diff(top.logits, axis=1) <= 0).all()
    # The bits of a token's logit are the same in every mode.
    exact = head.topk(held(50), k=100, mode="exact")
    for row in range(50):
        bits = dict(zip(exact.token_ids[row].tolist(), exact.logits[row].tolist()))
        assert all(bits.get(t, x) == x for t, x in zip(top.token_ids[row].tolist(), top.logits[row].tolist()))


@pytest.mark.parametrize("recall", [0.5, 0.95, 1.0])
def test_recall_can_be_asked_for(head, recall):
    top = head.topk(held(300), mode="walk", recall=recall)
    assert shares(top, exact_topk(toy().layer, held(300), 10)).mean() >= min(recall, 0.99)
    assert head.topk(held(3), mode="walk", recall=0.5).rows_scored.mean() < V


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [V // 4, V // 2, V, 10 * V])
def test_large_k(head, mode, k):
    top = head.topk(held(2), k=k, mode=mode)
    assert (top.counts == min(k, V)).all() and top.token_ids.shape == (2, min(k, V))
    if k > V // 4:
        require_best(toy().layer, held(2), top.token_ids, top.logits, min(k, V))
        np.testing.assert_allclose(
            top.logprobs, -np.sort(-logprobs64(toy().layer, held(2)), axis=1)[:, : min(k, V)], atol=2e-5
        )


def test_auto_names_the_mode_it_took(head):
    modes = {head.topk(held(n)).mode for n in (1, 8, 64)}
    assert modes <= set(MODES)
    assert head.topk(held(1), recall=1.0).mode == "exact"  # no bound of a sample reaches 1


@pytest.mark.parametrize("normalize", ["estimate", "topk", "exact", "none"])
@pytest.mark.parametrize("mode", MODES)
def test_what_log_probabilities_are_relative_to(head, mode, normalize):
    top = head.topk(held(200), k=10, mode=mode, normalize=normalize)
    true = np.take_along_axis(logprobs64(toy().layer, held(200)), top.token_ids.astype(np.int64), axis=1)
    if normalize == "none":
        assert np.isnan(top.logprobs).all() and not top.logprob_stderr.any()
    elif normalize == "topk":
        np.testing.assert_allclose(np.exp(top.logprobs.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
        assert (top.logprobs > true).all() and not top.exact  # the paper's overstates every one
    elif normalize == "exact" or mode == "exact":
        np.testing.assert_allclose(top.logprobs, true, atol=2e-5)
        assert not top.logprob_stderr.any()
    else:
        assert np.abs(top.logprobs - true).mean() < 0.01 and (top.logprob_stderr > 0).all()
    assert top.exact == (mode == "exact" and normalize != "topk")


def test_tokens_asked_for_besides(head):
    ids = [7, 7, V - 1, 0]
    for mode in MODES:
        top = head.topk(held(30), mode=mode, score_ids=ids)
        np.testing.assert_allclose(top.requested_logits, logits64(toy().layer, held(30))[:, ids], atol=1e-5)
        log_z = top.logits[:, :1] - top.logprobs[:, :1]  # the same as for the tokens found
        np.testing.assert_allclose(
            top.requested_logits - top.requested_logprobs, np.repeat(log_z, 4, axis=1), atol=1e-5
        )
    assert head.topk(held(2)).requested_logits is None
    with pytest.raises(DecoderOptionsError, match=f"token id {V} is not in the vocabulary of {V} tokens"):
        head.topk(held(2), score_ids=[V])


def test_exact_log_probabilities_of_given_tokens(head):
    targets = np.random.default_rng(0).integers(0, V, 90)
    logprobs, ranks = head.logprobs_of(held(90), targets)
    true = logprobs64(toy().layer, held(90))
    np.testing.assert_allclose(logprobs, true[np.arange(90), targets], atol=2e-5)
    assert ranks.tolist() == [1 + int((row > row[t]).sum()) for row, t in zip(true, targets)]


# --- what calls accept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("mode", MODES)
def test_states_in_any_float_and_layout(head, mode, dtype):
    states = held(6).astype(np.float16).astype(dtype)
    expected = head.topk(states.astype(np.float32), mode=mode)
    frozen = states.copy()
    frozen.setflags(write=False)
    apart = np.zeros((6, 3 * DIM), dtype)
    apart[:, ::3] = states
    raw = np.frombuffer(b"x" + states.tobytes(), np.uint8)[1:].view(dtype).reshape(6, DIM)  # nowhere aligned
    for given in (states, frozen, np.asfortranarray(states), apart[:, ::3], raw, states.tolist()):
        top = head.topk(given, mode=mode)
        for row in range(6):
            require_same(top, row, expected, row)
    one = head.topk(states[2], mode=mode)
    assert len(one) == 1
    require_same(one, 0, expected, 2)


@pytest.mark.parametrize("mode", MODES)
def test_no_states_at_all(head, mode):
    top = head.topk(np.empty((0, DIM), np.float32), mode=mode, score_ids=[3])
    assert len(top) == 0 and top.token_ids.shape == (0, 10) and top.requested_logits.shape == (0, 1)
    assert len(head.sample(np.empty((0, DIM), np.float32), mode=mode)) == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("constraints", [None, Constraints(banned=[3], logit_bias={5: 1.0})])
def test_bad_rows_fail_alone_where_asked_for(head, mode, constraints):
    states = held(5).copy()
    good = head.topk(states[[0, 2, 4]], mode=mode, constraints=constraints, score_ids=[1])
    states[1, 3], states[3] = np.inf, np.nan
    with pytest.raises(BadHiddenError) as caught:
        head.topk(states, mode=mode, constraints=constraints)
    assert caught.value.rows == [1, 3]
    top = head.topk(states, mode=mode, constraints=constraints, score_ids=[1], on_bad="mark")
    assert top.failed.tolist() == [False, True, False, True, False] and top.counts[[1, 3]].tolist() == [0, 0]
    for place, row in enumerate([0, 2, 4]):
        require_same(top, row, good, place)
    assert (top.token_ids[[1, 3]] == -1).all() and (top.logits[[1, 3]] == -np.inf).all()
    nothing = head.topk(np.full((2, DIM), np.nan, np.float32), mode=mode, constraints=constraints, on_bad="mark")
    assert nothing.failed.all() and not nothing.counts.any()
    drawn = head.sample(states, mode=mode, constraints=constraints, sampling=SamplingOptions(seed=1), on_bad="mark")
    assert drawn.token_ids[[1, 3]].tolist() == [-1, -1] and (drawn.token_ids[[0, 2, 4]] >= 0).all()
    assert (drawn.logprobs[[1, 3]] == -np.inf).all()


@pytest.mark.parametrize("mode", MODES)
def test_states_whose_logits_overflow_are_named(head, mode):
    states = held(4).copy()
    states[2] *= np.float32(1e38)
    with pytest.raises(BadHiddenError, match="overflow") as caught:
        head.topk(states, mode=mode)
    assert caught.value.rows == [2]


@pytest.mark.parametrize("constraints", [None, Constraints(banned=[3])])
@pytest.mark.parametrize("mode", MODES)
def test_states_whose_logits_overflow_fail_alone_where_asked_for(head, mode, constraints):
    states = held(6).copy()
    states[[1, 4]] = np.clip(states[[1, 4]].astype(np.float64) * 1e38, -3e38, 3e38)
    states[2, 0] = np.nan
    rest, asked = [0, 3, 5], {"mode": mode, "constraints": constraints}
    top, alone = head.topk(states, on_bad="mark", **asked), head.topk(states[rest], **asked)
    assert np.flatnonzero(top.failed).tolist() == [1, 2, 4] and top.counts.tolist() == [10, 0, 0, 10, 0, 10]
    for place, row in enumerate(rest):
        require_same(top, row, alone, place)
    drawn = head.sample(states, on_bad="mark", sampling=SamplingOptions(seed=1), **asked)
    assert (drawn.token_ids >= 0).tolist() == [True, False, False, True, False, True]
    with pytest.raises(BadHiddenError, match="hidden row 1 of 6" if constraints else "hidden rows 1, 4 of 6") as caught:
        head.topk(np.nan_to_num(states), **asked)
    assert caught.value.rows == ([1] if constraints else [1, 4])


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"k": 0}, "k is 0"), ({"k": 2.0}, "k is 2.0"), ({"mode": "fast"}, "mode is 'fast'"),
        ({"normalize": "softmax"}, "normalize is"), ({"recall": 0.0}, "recall is"), ({"recall": 1.5}, "recall is"),
        ({"on_bad": "skip"}, "on_bad is"), ({"logprobs": "cooked"}, "logprobs is"),
        ({"warm": [[V]]}, f"token id {V} in warm"), ({"warm": [[-2]]}, "token id -2 in warm"),
        ({"warm": [[1], [2]]}, "warm has shape"), ({"warm": [[0.5]]}, "warm has shape"),
        ({"score_ids": [[1]]}, "token ids have shape"), ({"threads": 0}, "threads is 0"),
        ({"threads": "2"}, "threads is '2'"), ({"threads": 1.5}, "threads is 1.5"), ({"threads": True}, "threads is True"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(head, asked, said):
    with pytest.raises(DecoderOptionsError, match=said):
        head.topk(held(1), **asked)


@pytest.mark.parametrize("step", [-1, 1.5, "a", None])
def test_what_is_no_step(head, step):
    with pytest.raises(DecoderOptionsError, match="step is"):
        head.sample(held(1), sampling=SamplingOptions(seed=1), step=step)


@pytest.mark.parametrize("hidden", [np.ones((2, DIM + 1)), np.ones((1, 1, DIM)), "state", [["a"] * DIM], None])
def test_what_is_no_state(head, hidden):
    with pytest.raises(BadHiddenError):
        head.topk(hidden)


def test_a_closed_decoder_says_so():
    head = open_decoder(toy().folder)
    head.close()
    for call in (head.topk, head.sample, lambda states: head.logprobs_of(states, [0])):
        with pytest.raises(DecoderClosedError, match="was closed"):
            call(held(1))
    assert issubclass(DecoderClosedError, DecoderError)


def test_stats_say_what_it_is(head):
    stats = head.stats()
    assert (
        (stats["vocab_size"], stats["dim"], stats["dtype"])
        == (V, DIM, "float16")
        == (head.vocab_size, head.dim, "float16")
    )
    assert stats["weights_hash"] == toy().layer.weights_hash() and stats["promise"]["recall"] == 0.99
    assert sum(stats["resident_bytes"].values()) > 0 and stats["disk_bytes"] > 0 and stats["format_version"] == 1
    assert {point["mode"] for point in stats["operating_points"]} == {"walk", "screen"}
    assert {"walk", "screen", "exact"} <= stats["timings"].keys()


# --- company (S64) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_s64_a_state_at_each_place_of_a_batch(head, mode):
    others = toy().held_out[100:]
    state = held(1)
    alone = head.topk(state, mode=mode)
    for size in (2, 7, 32, 64):
        for place in range(size):
            batch = others[:size].copy()
            batch[place] = state[0]
            top = head.topk(batch, mode=mode)
            assert top.mode == mode
            require_same(top, place, alone, 0)


@pytest.mark.parametrize("mode", MODES)
def test_s64_under_44_threads_and_with_threads_of_its_own(head, mode):
    states = held(44)
    alone = [head.topk(states[row : row + 1], mode=mode) for row in range(44)]
    begin = threading.Barrier(44)

    def ask(row: int) -> list[TopK]:
        begin.wait()
        return [head.topk(states[row : row + 1], mode=mode) for _ in range(50)]

    with ThreadPoolExecutor(44) as pool:
        for row, answers in enumerate(pool.map(ask, range(44))):
            for top in answers:
                require_same(top, 0, alone[row], 0)
    for threads in (2, 3, 64):
        top = head.topk(states, mode=mode, threads=threads)
        for row in range(44):
            require_same(top, row, alone[row], 0)


@pytest.mark.parametrize("mode", MODES)
def test_s64_with_constraints_of_others(head, mode):
    """A state without constraints in a batch where others have some: the same tokens, the same bits."""
    alone = head.topk(held(3), mode=mode)
    mixed = head.topk(held(3), mode=mode, constraints=[None, Constraints(banned=[5, 9]), None])
    for row in (0, 2):
        for name in ("token_ids", "logits", "logprobs", "logprob_stderr", "counts"):
            assert getattr(mixed, name)[row].tobytes() == getattr(alone, name)[row].tobytes(), name


def test_s64_scratch_of_a_wide_call_changes_nothing():
    """A walk ends when its table of visited rows is full: how large that is must not depend on who asked before."""
    layer, states = random_layer(3000, 16), random_states(4, 16)
    fresh = opened(layer, "walk").topk(states, k=3)
    opened(layer, "walk").topk(states, k=700)
    again = opened(layer, "walk").topk(states, k=3)
    for row in range(4):
        require_same(again, row, fresh, row)


# --- warm starts ------------------------------------------------------------------------------------------------------


def test_warm_starts_lose_nothing(head):
    states = held(200)
    before = head.topk(states, mode="walk")
    warm = head.topk(states, mode="walk", warm=before.token_ids)
    exact = exact_topk(toy().layer, states, 10)
    assert shares(warm, exact).mean() >= shares(before, exact).mean() - 1e-9
    none = head.topk(states, mode="walk", warm=np.full((200, 3), -1))
    assert none.token_ids.tobytes() == before.token_ids.tobytes() and none.logits.tobytes() == before.logits.tobytes()
    assert head.topk(states[:1], mode="screen", warm=[3, 4]).mode == "screen"  # which has no use for it
