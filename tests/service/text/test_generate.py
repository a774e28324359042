"""One answer, step by step: which tokens come, what their text is, why it ends; S66 to S70 without HTTP."""

from __future__ import annotations

import json

import numpy as np
import pytest
from exact_head import ExactHead
from table_model import TableModel, TableTokenizer

from decoder.constraints import Constraints
from decoder.errors import ConstraintError
from decoder.exact import exact_logits
from decoder.output_layer import OutputLayer
from decoder.sampling import SamplingOptions
from service.text.generate import BLOCK, SCORED_AT_ONCE, generate
from service.text.openai_answers import CompletionShape
from service.text.parts import GenerateOptions
from service.text.prompt import prompt_of

GREEDY = SamplingOptions(temperature=0.0)


def chain(pieces, *, end=None, after_last=0):
    """A model that says its tokens in order: token i is followed by i + 1, the last one by `after_last`."""
    count = len(pieces)
    states = np.zeros((count, count), np.float32)
    for token_id in range(count):
        states[token_id, token_id + 1 if token_id + 1 < count else after_last] = 5.0
    model = TableModel(states, TableTokenizer(pieces), end_ids=() if end is None else (end,))
    return model, ExactHead(OutputLayer(np.eye(count, dtype=np.float32)))


def run(model, head, ids, **options):
    text = options.pop("prompt", None)
    pieces = model.tokenizer.pieces
    made = GenerateOptions(**{"max_tokens": 16, "sampling": GREEDY, **options})
    return list(generate(model, head, pieces, prompt_of(ids, pieces, text=text), made))


def joined(steps):
    return "".join(step.text for step in steps)


def tokens(steps):
    return sum(step.generated for step in steps)


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        ([b".", b"DEF", b"G", b"HI", b"J"], ["DEFGHIJ"], ""),
        ([b".", b"col", b"or?\n", b"x"], ["\n"], "color?"),
        ([b".", b"The quick br", b"own", b" fox", b"!"], ["own fox"], "The quick br"),
        ([b".", b"ab!c", b"d"], ["b!"], "a"),
        ([b".", b"one ", b"two", b"three"], ["tw", "two", "three", "\n"], "one "),
    ],
)
@pytest.mark.parametrize("echo", [False, True])
def test_stop_strings_end_an_answer_before_them(pieces, stop, text, echo):
    model, head = chain(pieces)
    steps = run(model, head, [0], stop=tuple(stop), echo=echo, top_logprobs=0)
    assert joined(steps) == ("." if echo else "") + text
    assert steps[-1].finish_reason == "stop"
    assert sum(len(step.scores) for step in steps) == tokens(steps) + echo


def test_a_stop_string_that_never_comes_to_its_end_is_given_out():
    model, head = chain([b".", b"DEF", b"G", b"HI"])
    steps = run(model, head, [0], stop=("DEFGHIJ",), max_tokens=3)
    assert (joined(steps), steps[-1].finish_reason) == ("DEFGHI", "length")


def test_the_end_token_ends_the_answer_and_has_no_text():
    model, head = chain([b"a", b"b", b"c", b""], end=3)
    steps = run(model, head, [0])
    assert (joined(steps), tokens(steps), steps[-1].finish_reason) == ("bc", 3, "stop")


def test_characters_split_over_tokens_come_whole():
    model, head = chain([b".", b"\xf0\x9f", b"\x98\x80", b"e", b"\xcc\x81", b"x", b""], end=6)
    steps = run(model, head, [0], top_logprobs=0)
    assert [step.text for step in steps[1:]] == ["", "😀", "e", "\u0301", "x", ""]
    assert [step.scores[0].offset for step in steps[1:]] == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_a_character_that_is_cut_off_is_one_replacement(stop):
    model, head = chain([b"a", b"b", b"\xf0\x9f"])
    assert joined(run(model, head, [0], max_tokens=2, stop=stop)) == "b\ufffd"


def test_a_replacement_character_at_the_end_may_be_a_stop_string():
    model, head = chain([b"a", b"b", b"\xf0\x9f"])
    steps = run(model, head, [0], max_tokens=2, stop=("\ufffd",))
    assert (joined(steps), steps[-1].finish_reason) == ("b", "stop")


def test_constraints_that_become_empty_end_the_answer_with_a_reason_of_their_own():
    """S66: the first three tokens, and no other token ever."""
    model, head = chain([b"a", b"b", b"c", b"d", b"e"])

    def constraints(so_far):
        return Constraints(allowed=[2]) if len(so_far) < 3 else Constraints(allowed=[5 - 1], banned=[4])

    steps = run(model, head, [0], constraints=constraints, top_logprobs=1)
    assert (joined(steps), tokens(steps), steps[-1].finish_reason) == ("ccc", 3, "constraint")
    assert [score.token_id for step in steps for score in step.scores] == [2, 2, 2]


def test_a_piece_of_a_character_held_back_is_not_lost_when_constraints_end_the_answer():
    model, head = chain([b"a", b"\xf0\x9f"])

    def constraints(so_far):
        return Constraints(allowed=[] if so_far else [1])

    assert joined(run(model, head, [0], constraints=constraints)) == "\ufffd"


@pytest.mark.parametrize("constraints", [Constraints(allowed=[]), Constraints(allowed=[1], banned=[1])])
def test_constraints_that_are_empty_from_the_start_are_refused(constraints):
    model, head = chain([b"a", b"b"])
    with pytest.raises(ConstraintError, match="row 0: no token allowed"):
        run(model, head, [0], constraints=constraints)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingOptions(seed=3)])
@pytest.mark.parametrize("constraints", [Constraints(banned=[17]), Constraints(logit_bias={17: -np.inf})])
def test_banned_tokens_never_come(sampling, constraints):
    """S67: 1,000 tokens, greedy and sampled, where 17 would be the one that comes."""
    states = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    states[:, 17] = 4.0
    model = TableModel(states, TableTokenizer([f" {at}".encode() for at in range(64)]))
    head = ExactHead(OutputLayer(np.eye(64, dtype=np.float32)))
    free = run(model, head, [0], max_tokens=50, sampling=sampling)
    assert " 17" in joined(free)
    steps = run(model, head, [0], max_tokens=1000, sampling=sampling, constraints=constraints)
    assert tokens(steps) == 1000 and " 17 " not in joined(steps) + " "


def test_the_same_seed_gives_the_same_text_and_another_one_another():
    states = np.random.default_rng(1).standard_normal((50, 50)).astype(np.float32)
    model = TableModel(states, TableTokenizer([f" {at}".encode() for at in range(50)]))
    head = ExactHead(OutputLayer(np.eye(50, dtype=np.float32)))
    one, two, other = (joined(run(model, head, [0], sampling=SamplingOptions(seed=seed))) for seed in (1, 1, 2))
    assert one == two != other


def test_echo_scores_every_token_of_the_prompt_exactly_and_in_blocks():
    """S70, with a prompt of several blocks: entries, offsets, values; and never more rows at once than a few."""
    generator = np.random.default_rng(2)
    layer = OutputLayer(generator.standard_normal((300, 8)).astype(np.float32))
    pieces = [f"<{at}>".encode() for at in range(300)]
    model = TableModel(generator.standard_normal((300, 8)).astype(np.float32), TableTokenizer(pieces))
    ids = generator.integers(0, 300, 3 * BLOCK + 5).tolist()
    head = ExactHead(layer)
    steps = run(model, head, ids, echo=True, top_logprobs=5, max_tokens=3)
    scores = [score for step in steps for score in step.scores]
    text = joined(steps)
    assert len(scores) == len(ids) + 3 and model.blocks == [BLOCK, BLOCK, BLOCK, 5, 1, 1]
    assert scores[0].logprob is None and scores[0].top == ()
    logits = exact_logits(layer, model.states[ids])
    expected = logits - np.logaddexp.reduce(logits.astype(np.float64), axis=1, keepdims=True)
    for place, score in enumerate(scores[1 : len(ids)]):
        assert score.token_id == ids[place + 1] and score.stderr == 0.0
        assert score.logprob == pytest.approx(expected[place, score.token_id], abs=1e-5)
        assert [token_id for token_id, _ in score.top] == np.argsort(-expected[place], kind="stable")[:5].tolist()
    for score in scores:
        name = model.tokenizer.pieces.name(score.token_id)
        assert text[score.offset : score.offset + len(name)] == name
    assert max(rows for what, rows in head.calls) <= SCORED_AT_ONCE


def test_echo_without_tokens_scores_the_prompt_alone():
    model, head = chain([b"a", b"b", b"c"])
    steps = run(model, head, [0, 1, 2], echo=True, top_logprobs=0, max_tokens=0)
    assert (joined(steps), tokens(steps), steps[-1].finish_reason) == ("abc", 0, "length")
    assert sum(len(step.scores) for step in steps) == 3 and ("sample", 1) not in head.calls


def test_nothing_asked_runs_nothing():
    model, head = chain([b"a", b"b"])
    assert joined(run(model, head, [0], max_tokens=0, echo=True)) == "a" and model.blocks == []


@pytest.mark.parametrize("options", [{}, {"stop": ("z",)}, {"sampling": SamplingOptions(seed=1, top_k=1)}])
def test_impossible_candidates_are_left_out(options):
    """S62, before it is JSON: two tokens are possible, five are asked for."""
    states = np.tile(np.array([1, 0, -1, -2], np.float32), (4, 1))
    model = TableModel(states, TableTokenizer([b"a", b"b", b"c", b"d"]))
    head = ExactHead(OutputLayer(np.eye(4, dtype=np.float32)))
    allowed = Constraints(allowed=[0, 1])
    (step,) = run(model, head, [2], constraints=allowed, top_logprobs=5, max_tokens=1, **options)[1:]
    (score,) = step.scores
    assert dict(score.top) == pytest.approx({0: -0.4402, 1: -1.4402}, abs=1e-4)
    shape = CompletionShape(id="", created=0, model="", pieces=model.tokenizer.pieces, logprobs=True)
    assert json.loads(json.dumps(shape.chunk(0, step), allow_nan=False))
