"""The oracle against float64: top-K, log Z, ranks, whatever the batch and the threads; and what is refused at its door."""

from __future__ import annotations

import os
import threading
import tracemalloc

import numpy as np
import pytest
from layer_oracle import DTYPES, log_sum, logits64, logprobs64, random_layer, random_states, require_best

from decoder.constraints import Constraints, plan
from decoder.errors import BadHiddenError, DecoderOptionsError
from decoder.exact import STATES_AT_ONCE, exact_logits, exact_logprobs, exact_topk
from decoder.hidden import as_states, bad_rows
from decoder.kernels.exact import PIECE
from decoder.output_layer import OutputLayer
from decoder.threads import each_part
from index.errors import BuildCancelledError

# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"softcap": 4.0, "scale": 0.5}, {"vocab_size": 777}])
def test_equals_float64(dtype, options):
    layer, states = random_layer(900, 41, dtype, **options), random_states(5, 41)
    answer = exact_topk(layer, states, 20)
    require_best(layer, states, answer.token_ids, answer.logits, 20)
    assert answer.token_ids.dtype == np.int32 and answer.logits.dtype == np.float32
    np.testing.assert_allclose(answer.log_partition, log_sum(logits64(layer, states)), atol=1e-5)
    np.testing.assert_array_equal(answer.log_partition, answer.log_partition_processed)
    np.testing.assert_array_equal(answer.logits, answer.raw_logits)
    table = exact_logits(layer, states)
    assert table.shape == (5, layer.vocab_size) and table.dtype == np.float32
    np.testing.assert_allclose(table, logits64(layer, states), atol=1e-4)
    np.testing.assert_array_equal(np.take_along_axis(table, answer.token_ids, axis=1), answer.logits)


def test_equals_torch():
    torch = pytest.importorskip("torch", reason="log_softmax and topk are torch's")
    layer, states = random_layer(5000, 64, "float32"), random_states(9, 64)
    truth = torch.log_softmax(
        torch.nn.functional.linear(
            torch.from_numpy(states), torch.from_numpy(layer.weight), torch.from_numpy(layer.bias)
        ),
        -1,
    ).topk(10)
    answer = exact_topk(layer, states, 10)
    np.testing.assert_array_equal(answer.token_ids, truth.indices.numpy())
    np.testing.assert_allclose(answer.logits - answer.log_partition[:, None], truth.values.numpy(), atol=1e-4)


def test_chosen_tokens_have_the_bits_of_the_table():
    layer, states = random_layer(300, 33, softcap=5.0), random_states(4, 33)
    table = exact_logits(layer, states)
    ids = [299, 0, 17, 17]
    np.testing.assert_array_equal(exact_logits(layer, states, ids=ids), table[:, ids])
    assert exact_logits(layer, states, ids=[]).shape == (4, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_s64_an_answer_does_not_depend_on_its_batch(dtype):
    layer, states = random_layer(1000, 100, dtype, softcap=9.0), random_states(70, 100)
    together = exact_topk(layer, states, 12)
    for size in (1, 2, 3, 7, 32):
        for at in range(0, 70, size):
            part = slice(at, at + size)
            some = exact_topk(layer, states[part], 12)
            for name in ("token_ids", "logits", "log_partition"):
                assert getattr(some, name).tobytes() == getattr(together, name)[part].tobytes(), (name, size, at)


@pytest.mark.parametrize("threads", [2, 3, 8, 1000])
def test_an_answer_does_not_depend_on_threads(threads):
    layer, states = random_layer(3 * PIECE + 17, 8), random_states(3, 8)
    for k in (1, 50, 10**6):
        one, many = exact_topk(layer, states, k), exact_topk(layer, states, k, threads=threads)
        for name in ("token_ids", "logits", "counts", "log_partition"):
            np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
    constraints = plan(Constraints(allowed=[1, 2 * PIECE, 3 * PIECE + 16]), layer.vocab_size)
    one, many = (exact_topk(layer, states, 5, plan=constraints, threads=count) for count in (1, threads))
    for name in ("token_ids", "logits", "counts", "log_partition", "log_partition_processed"):
        np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
    assert one.counts.tolist() == [3, 3, 3]
    one, many = (exact_logprobs(layer, states, [5, 6, 3 * PIECE], threads=count) for count in (1, threads))
    np.testing.assert_array_equal(one, many)


def test_many_callers_at_once():
    layer, states = random_layer(2 * PIECE, 16), random_states(8, 16)
    expected = exact_topk(layer, states, 10)
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(5):
            answer = exact_topk(layer, states[number : number + 1], 10, threads=2)
            if answer.logits.tobytes() != expected.logits[number].tobytes():
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_constraints_equal_the_reference():
    layer, states = random_layer(400, 20), random_states(3, 20)
    generator = np.random.default_rng(0)
    bias = {int(token): float(generator.normal()) for token in generator.choice(400, 60, replace=False)}
    banned = generator.choice(400, 200, replace=False)
    answer = exact_topk(layer, states, 300, plan=plan(Constraints(logit_bias=bias, banned=banned), 400))
    moved = logits64(layer, states)
    moved[:, list(bias)] += list(bias.values())
    moved[:, banned] = -np.inf
    assert answer.counts.tolist() == [200] * 3
    assert (answer.token_ids[:, 200:] == -1).all() and (answer.logits[:, 200:] == -np.inf).all()
    np.testing.assert_array_equal(answer.token_ids[:, :200], np.argsort(-moved, axis=1, kind="stable")[:, :200])
    np.testing.assert_allclose(answer.log_partition, log_sum(logits64(layer, states)), atol=1e-5)
    np.testing.assert_allclose(answer.log_partition_processed, log_sum(moved), atol=1e-5)
    table, found = exact_logits(layer, states), answer.token_ids[:, :200]
    np.testing.assert_array_equal(answer.raw_logits[:, :200], np.take_along_axis(table, found, axis=1))
    assert (answer.raw_logits[:, 200:] == -np.inf).all()


def test_logprobs_and_ranks_of_given_tokens():
    layer, states = random_layer(500, 24, softcap=6.0), random_states(STATES_AT_ONCE + 9, 24)
    ids = np.random.default_rng(4).integers(0, 500, len(states))
    logprobs, ranks = exact_logprobs(layer, states, ids)
    truth = logprobs64(layer, states)
    own = np.take_along_axis(truth, ids[:, None], axis=1)
    np.testing.assert_allclose(logprobs, own[:, 0], atol=1e-5)
    np.testing.assert_array_equal(ranks, 1 + (truth > own).sum(axis=1))
    assert logprobs.dtype == np.float32 and ranks.dtype == np.int32
    best = exact_topk(layer, states, 1).token_ids[:, 0]
    assert (exact_logprobs(layer, states, best)[1] == 1).all()


def test_ranks_of_equal_logits_follow_ids():
    layer = OutputLayer(np.zeros((6, 3), np.float32), [0, 1, 1, 1, 0, 2])
    ranks = exact_logprobs(layer, np.zeros((6, 3)), range(6))[1]
    assert ranks.tolist() == [5, 2, 3, 4, 6, 1]


def test_the_table_of_logits_is_never_made():
    layer, states = random_layer(8 * PIECE, 4), random_states(STATES_AT_ONCE, 4)
    exact_topk(layer, states, 10), exact_logprobs(layer, states, np.zeros(len(states), int))
    tracemalloc.start()
    exact_topk(layer, states, 10)
    exact_logprobs(layer, states, np.zeros(len(states), int))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(states) * layer.vocab_size * 4 / 20


# --- the door -------------------------------------------------------------------------------------------------------


def test_one_state_may_come_without_its_batch():
    layer, state = random_layer(50, 7), random_states(1, 7)
    for given in (state[0], state, state[0].tolist(), state.astype(np.float64), np.asfortranarray(state)):
        np.testing.assert_array_equal(exact_topk(layer, given, 5).token_ids, exact_topk(layer, state, 5).token_ids)
    assert as_states(state, 7) is not None and np.shares_memory(as_states(state, 7), state)


def test_states_of_other_dtypes_are_widened():
    layer, state = random_layer(50, 7), np.round(random_states(3, 7) * 8)
    expected = exact_topk(layer, state, 5).logits
    bits = (state.view(np.uint32) >> 16).astype(np.uint16).view([("bfloat16", np.uint16)])
    for given in (state.astype(np.float16), bits, state.astype(np.int64)):
        np.testing.assert_array_equal(exact_topk(layer, given, 5).logits, expected)


def test_torch_states():
    torch = pytest.importorskip("torch", reason="tensors are torch's")
    layer, state = random_layer(50, 7), np.round(random_states(3, 7) * 8)
    expected = exact_topk(layer, state, 5).logits
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        given = torch.from_numpy(state).to(dtype).requires_grad_()
        np.testing.assert_array_equal(exact_topk(layer, given, 5).logits, expected)
    with pytest.raises(BadHiddenError, match=r"tensor\.cpu"):
        exact_topk(layer, torch.empty(3, 7, device="meta"), 5)


def test_no_states():
    layer = random_layer(50, 7)
    answer = exact_topk(layer, np.empty((0, 7)), 5)
    assert answer.token_ids.shape == (0, 5) and len(answer) == 0
    assert exact_logits(layer, np.empty((0, 7))).shape == (0, 50)
    assert exact_logprobs(layer, np.empty((0, 7)), [])[1].shape == (0,)


@pytest.mark.parametrize(
    "hidden, said",
    [
        (np.zeros((2, 6)), r"shape \(2, 6\), needed \[n, 7\]"),
        (np.zeros((2, 7, 1)), r"shape \(2, 7, 1\)"),
        (np.float32(1), r"shape \(\)"),
        ([["a"] * 7], "dtype <U1"),
        (np.zeros((2, 7), bool), "dtype bool"),
        ([[1.0], [1.0, 2.0]], "no array of numbers"),
        (None, "dtype object"),
    ],
)
def test_states_of_no_use(hidden, said):
    with pytest.raises(BadHiddenError, match=said) as caught:
        exact_topk(random_layer(50, 7), hidden, 5)
    assert caught.value.rows == []


def test_bad_rows_are_named():
    states = random_states(9, 7)
    states[2, 3], states[5, 0], states[7] = np.nan, -np.inf, np.inf
    states[8] = 3e38
    assert bad_rows(states) == [2, 5, 7]
    for call in (
        lambda: exact_topk(random_layer(50, 7), states, 5),
        lambda: exact_logits(random_layer(50, 7), states),
        lambda: exact_logprobs(random_layer(50, 7), states, [0] * 9),
    ):
        with pytest.raises(BadHiddenError, match="rows 2, 5, 7 of 9") as caught:
            call()
        assert caught.value.rows == [2, 5, 7]


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_logits_past_float32_are_an_error_not_a_guess(softcap, sign):
    layer = OutputLayer(np.full((50, 7), 2.0, np.float32), softcap=softcap)
    states = random_states(4, 7)
    states[1] = sign * 1e38
    for call in (
        lambda: exact_topk(layer, states, 50),
        lambda: exact_logprobs(layer, states, [0] * 4),
        lambda: exact_logits(layer, states),
    ):
        with pytest.raises(BadHiddenError, match="row 1 of 4: the logits overflow") as caught:
            call()
        assert caught.value.rows == [1]


@pytest.mark.parametrize(
    "ids, said", [([50], "id 50 is not"), ([-1], "id -1"), ([0.5], "whole numbers"), ([[1]], "shape")]
)
def test_ids_that_are_no_tokens(ids, said):
    layer = random_layer(50, 7)
    with pytest.raises(DecoderOptionsError, match=said):
        exact_logits(layer, np.zeros(7), ids=ids)
    with pytest.raises(DecoderOptionsError, match=said):
        exact_logprobs(layer, np.zeros(7), ids)


def test_one_token_a_state():
    with pytest.raises(DecoderOptionsError, match="2 entries, needed one for each of the 1 states"):
        exact_logprobs(random_layer(50, 7), np.zeros(7), [1, 2])


def test_a_search_can_be_cancelled():
    cancel = threading.Event()
    layer, states = random_layer(50, 7), random_states(3, 7)
    assert len(exact_topk(layer, states, 5, cancel=cancel)) == 3
    cancel.set()
    with pytest.raises(BuildCancelledError, match="after 0 of 3 states"):
        exact_topk(layer, states, 5, cancel=cancel)


# --- threads --------------------------------------------------------------------------------------------------------


def test_parts_come_in_order_and_the_first_on_the_callers_thread():
    names = each_part(lambda part: (part, threading.current_thread().name), 5)
    assert [part for part, _ in names] == list(range(5))
    assert names[0][1] == threading.current_thread().name and names[1][1].startswith("decoder")


@pytest.mark.parametrize("failing", [0, 2])
def test_an_error_comes_after_all_have_ended(failing):
    ended = []

    def work(part: int) -> None:
        if part == failing:
            raise ValueError(f"part {part}")
        ended.append(part)

    with pytest.raises(ValueError, match=f"part {failing}"):
        each_part(work, 4)
    assert sorted(ended) == [part for part in range(4) if part != failing]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    assert each_part(lambda part: part, 2) == [0, 1]
    child = os.fork()
    if child == 0:
        os._exit(0 if each_part(lambda part: part, 2) == [0, 1] else 1)
    assert os.waitpid(child, 0)[1] == 0
