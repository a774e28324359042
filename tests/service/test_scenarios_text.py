"""S47, S58, S62, S63, S66 to S69 over HTTP, with a model whose logits are known; no package of models is needed."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from table_model import TableModel, TableTokenizer
from text_server import FOUR, always, built, chain, chatted, completed, layer_of, refused, serving, streamed, top_of

from decoder.errors import ConstraintError
from decoder.output_layer import OutputLayer

ABCD = [b"a", b"b", b"c", b"d"]
RAW = {"a": -0.4402, "b": -1.4402, "c": -2.4402, "d": -3.4402}
MESSAGES = [{"role": "user", "content": "c"}]


@pytest.fixture(scope="module")
def four_head(tmp_path_factory):
    """A real decoder of four tokens."""
    with built(layer_of(4), tmp_path_factory.mktemp("built") / "four") as head:
        yield head


@pytest.fixture
def four(tmp_path, four_head):
    """Always the logits 1, 0, -1, -2."""
    _, model = always(FOUR, ABCD)
    with serving(tmp_path / "data", four=(four_head, model)) as running:
        yield running


def near(expected):
    return pytest.approx(expected, abs=1e-4)


def one_token(client, **options):
    """The only choice of a completion of one token, plain and streamed, which have to agree."""
    body = {"model": "four", "prompt": "c", "max_tokens": 1, "seed": 5, "logprobs": 5, **options}
    whole = completed(client, **body)["choices"][0]
    chunks = [chunk["choices"][0] for chunk in streamed(client, **body)]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert list(itertools.chain.from_iterable(chunk["logprobs"][name] for chunk in chunks)) == values
    return whole


# --- S62 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"echo": True}, {"temperature": 0}])
def test_s62_impossible_entries_are_left_out(four, options):
    choice = one_token(four, allowed_token_ids=[0, 1], **options)
    assert top_of(choice, -1) == near({"a": -0.4402, "b": -1.4402})
    if "echo" in options:
        assert choice["logprobs"]["top_logprobs"][0] is None


def test_s62_processed_log_probabilities_are_over_what_is_possible(four):
    choice = one_token(four, allowed_token_ids=[0, 1], logprobs_mode="processed")
    assert top_of(choice) == near({"a": -0.3133, "b": -1.3133})
    choice = one_token(four, allowed_token_ids=[0, 1], logprobs_mode="processed", top_k=1)
    assert top_of(choice) == near({"a": 0.0}) and choice["logprobs"]["token_logprobs"] == near([0.0])


def test_s62_chats_leave_them_out_too(four):
    body = {"model": "four", "messages": MESSAGES, "max_tokens": 1, "logprobs": True, "top_logprobs": 5}
    (entry,) = chatted(four, **body, allowed_token_ids=[0, 1])["choices"][0]["logprobs"]["content"]
    assert {top["token"]: top["logprob"] for top in entry["top_logprobs"]} == near({"a": -0.4402, "b": -1.4402})


def test_s62_what_is_nearly_impossible_is_written_as_the_least_number(tmp_path):
    with serving(tmp_path / "data", four=always(np.array([20000.0, 0, 0, 0], np.float32), ABCD)) as client:
        choice = one_token(client, logprobs=3)
        assert set(top_of(choice).values()) == {0.0, -9999.0}
        choice = one_token(client, prompt="ab", echo=True, max_tokens=0, logprobs=0)
        assert choice["logprobs"]["token_logprobs"] == [None, -9999.0]


# --- S63 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": value} for value in (0, 0.5, 2)),
        *({"top_p": value} for value in (0.01, 0.5)),
        *({"top_k": value} for value in (1, 2)),
        {"min_p": 0.9},
        {"logit_bias": {"3": 50.0}},
        {"logit_bias": {"0": -0.5, "1": 0.5}},
    ],
)
def test_s63_log_probabilities_are_raw_whatever_is_asked(four, options):
    choice = one_token(four, **options)
    assert top_of(choice) == near(RAW)
    assert choice["logprobs"]["token_logprobs"] == near([RAW[choice["text"]]])
    assert choice["logprobs"]["logprob_stderr"] == [0.0]


def test_s63_processed_ones_are_after_the_temperature(four):
    choice = one_token(four, temperature=0.5, logprobs_mode="processed")
    assert top_of(choice) == near({"a": -0.1451, "b": -2.1451, "c": -4.1451, "d": -6.1451})


# --- S66 --------------------------------------------------------------------------------------------------------------


def test_s66_constraints_without_a_token_are_400(four):
    for options in ({"allowed_token_ids": []}, {"allowed_token_ids": [2], "logit_bias": {"2": -100}}):
        for stream in (False, True):
            message = refused(four, model="four", prompt="a", stream=stream, **options)["message"]
            assert "no token allowed" in message and "row 0" in message


def test_s66_one_allowed_token_is_the_only_entry(four):
    choice = one_token(four, allowed_token_ids=[3], logprobs=3)
    assert (choice["text"], top_of(choice)) == ("d", near({"d": -3.4402}))
    choice = one_token(four, allowed_token_ids=[3], logprobs=3, logprobs_mode="processed")
    assert top_of(choice) == near({"d": 0.0})


def test_s66_constraints_that_become_empty_end_the_answer_after_three_tokens(four, four_head, monkeypatch):
    sample = four_head.sample

    def until_the_fourth(hidden, *, step, **options):
        if step == 3:
            raise ConstraintError("row 0: no token allowed", row=0)
        return sample(hidden, step=step, **options)

    monkeypatch.setattr(four_head, "sample", until_the_fourth)
    body = {"model": "four", "temperature": 0, "max_tokens": 9}
    answer = completed(four, prompt="c", **body)
    assert answer["choices"][0]["text"] == "aaa" and answer["choices"][0]["finish_reason"] == "constraint"
    assert answer["usage"]["completion_tokens"] == 3
    chunks = streamed(four, prompt="c", **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "aaa"
    assert chunks[-1]["choices"][0]["finish_reason"] == "constraint"
    assert chatted(four, messages=MESSAGES, **body)["choices"][0]["finish_reason"] == "constraint"


# --- S58 --------------------------------------------------------------------------------------------------------------


def test_s58_rows_that_pad_the_layer_can_neither_be_asked_for_nor_come(tmp_path):
    pieces = [f"<{at}>".encode() for at in range(64)]
    weight = np.eye(64, dtype=np.float32)
    weight[61:] *= 1000
    states = np.tile(np.linspace(0.5, 1.0, 64, dtype=np.float32), (64, 1))
    head = built(OutputLayer(weight, vocab_size=61), tmp_path / "padded")
    model = TableModel(states, TableTokenizer(pieces))
    with serving(tmp_path / "data", padded=(head, model)) as client:
        for options in ({"allowed_token_ids": [62]}, {"logit_bias": {"62": 1}}, {"prompt": [62]}, {"prompt": "<62>"}):
            message = refused(client, **{"model": "padded", "prompt": "<1>", **options})["message"]
            assert "62" in message and "61" in message
        answer = completed(client, model="padded", prompt="<60>", max_tokens=500, seed=1, logprobs=20)["choices"][0]
        seen = set(answer["logprobs"]["tokens"]).union(*answer["logprobs"]["top_logprobs"])
        assert not seen & {"<61>", "<62>", "<63>"}


# --- S67 --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many_head(tmp_path_factory):
    """A real decoder of 64 tokens."""
    with built(layer_of(64), tmp_path_factory.mktemp("built") / "many") as head:
        yield head


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "seed": 11}])
@pytest.mark.parametrize("stream", [False, True])
def test_s67_a_banned_token_never_comes(tmp_path, many_head, options, stream):
    states = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    states[:, 17] = 4.0
    model = TableModel(states, TableTokenizer([f" {at}".encode() for at in range(64)]))
    with serving(tmp_path / "data", many=(many_head, model)) as client:

        def words(**more):
            body = {"model": "many", "prompt": [0], "max_tokens": 1000, **options, **more}
            if not stream:
                return completed(client, **body)["choices"][0]["text"].split()
            return "".join(chunk["choices"][0]["text"] for chunk in streamed(client, **body)).split()

        assert "17" in words()
        banned = words(logit_bias={"17": -100})
        assert len(banned) == 1000 and "17" not in banned


def test_s67_a_boosted_token_comes_from_the_very_end(four):
    choice = one_token(four, logit_bias={"3": 100}, logprobs=1)
    assert (choice["text"], top_of(choice)) == ("d", near({"d": -3.4402}))


# --- S68 --------------------------------------------------------------------------------------------------------------

SMILE = [b".", b"\xf0\x9f", b"\x98\x80", b"e", b"\xcc\x81", b"x"]
FAMILY = "👩‍👩‍👧‍👦🇩🇪🏳️‍🌈"


def said(client, model, **body):
    """The text of an answer, plain and streamed, which have to be the same."""
    body = {"model": model, "prompt": [0], "temperature": 0, **body}
    (choice,) = completed(client, **body)["choices"]
    chunks = [chunk["choices"][0] for chunk in streamed(client, **body)]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]
    chat = {"model": model, "messages": [{"role": "user", "content": "."}], **body, "max_tokens": body["max_tokens"]}
    chat = {name: value for name, value in chat.items() if name not in ("prompt", "echo")}
    spoken = chatted(client, **chat)["choices"][0]["message"]["content"]
    deltas = [
        chunk["choices"][0]["delta"].get("content", "") for chunk in streamed(client, "/v1/chat/completions", **chat)
    ]
    assert "".join(deltas) == spoken == choice["text"].removeprefix("." if body.get("echo") else "")
    return choice["text"], choice["finish_reason"]


def test_s68_characters_split_over_tokens(tmp_path):
    with serving(tmp_path / "data", smile=chain(SMILE)) as client:
        assert said(client, "smile", max_tokens=5) == ("😀e\u0301x", "length")
        assert said(client, "smile", max_tokens=1) == ("\ufffd", "length")
        assert said(client, "smile", max_tokens=2) == ("😀", "length")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_s68_every_chunking(tmp_path, size):
    raw = FAMILY.encode()
    portions = [raw[at : at + size] for at in range(0, len(raw), size)]
    with serving(tmp_path / "data", family=chain([b".", *portions])) as client:
        assert said(client, "family", max_tokens=len(portions)) == (FAMILY, "length")


def test_s68_what_a_token_is_by_itself_is_told_exactly(tmp_path):
    with serving(tmp_path / "data", smile=chain(SMILE)) as client:
        body = {"model": "smile", "max_tokens": 2, "temperature": 0}
        chosen = completed(client, prompt=[0], logprobs=0, **body)["choices"][0]["logprobs"]
        assert chosen["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x80"] and chosen["text_offset"] == [0, 0]
        ids = completed(client, prompt=[0], logprobs=1, return_tokens_as_token_ids=True, **body)["choices"][0][
            "logprobs"
        ]
        assert ids["tokens"] == ["token_id:1", "token_id:2"] and list(ids["top_logprobs"][0]) == ["token_id:1"]
        spoken = chatted(client, messages=[{"role": "user", "content": "."}], logprobs=True, **body)["choices"][0]
        assert [entry["bytes"] for entry in spoken["logprobs"]["content"]] == [[0xF0, 0x9F], [0x98, 0x80]]


# --- S69 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        ([b"DEF", b"G", b"HI", b"J"], "DEFGHIJ", ""),
        ([b"col", b"or?\n", b"x"], "\n", "color?"),
        ([b"The quick br", b"own", b" fox", b"!"], ["own fox"], "The quick br"),
        ([b"ab!c", b"d"], ["b!"], "a"),
        ([b"one ", b"two", b"three"], ["tw", "two", "three", "\n"], "one "),
    ],
)
@pytest.mark.parametrize("echo", [False, True])
def test_s69_stop_strings(tmp_path, pieces, stop, text, echo):
    with serving(tmp_path / "data", says=chain([b".", *pieces])) as client:
        found = said(client, "says", max_tokens=len(pieces), stop=stop, echo=echo)
        assert found == (("." if echo else "") + text, "stop")


def test_s69_a_stop_string_that_is_never_complete_costs_no_text(tmp_path):
    with serving(tmp_path / "data", says=chain([b".", b"DEF", b"G", b"HI"])) as client:
        assert said(client, "says", max_tokens=3, stop="DEFGHIJ") == ("DEFGHI", "length")


# --- S47 --------------------------------------------------------------------------------------------------------------

WRONG = [
    '"abc"', "{}", "[]", "[[]]", "[[[1]]]", "1e999", "-1", "1e18", "0.01", "NaN", "Infinity", "true", '"\\ud800"', "[null]",
    '{"a":' * 500 + "1" + "}" * 500, "[" * 10_000, '"' + "x" * 2_000_000 + '"', "[99999999999999999999999]", '{"9":"x"}',
]  # fmt: skip
MEMBERS = (
    "model prompt messages max_tokens temperature top_p top_k min_p seed stop stream logit_bias allowed_token_ids logprobs "
    "top_logprobs echo stream_options logprobs_mode n tools response_format"
).split()


def test_s47_malformed_requests_change_nothing(four):
    good = {"model": "four", "prompt": "abc", "max_tokens": 3, "seed": 4, "logprobs": 2}
    before = completed(four, **good)["choices"]
    pairs = list(itertools.product(MEMBERS, WRONG))
    random.Random(0).shuffle(pairs)
    counted = 0
    for member, wrong in pairs[:300]:
        for path, other in (("completions", '"prompt": "a"'), ("chat/completions", '"messages": []')):
            body = f'{{"model": "four", "max_tokens": 1, {other}, "{member}": {wrong}}}'
            answer = four.post(f"/v1/{path}", content=body.encode(), headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400, 404), (answer.status_code, member, wrong[:50], answer.text[:300])
            counted += answer.status_code != 200
            assert answer.status_code == 200 or answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert counted > 500
    assert completed(four, **good)["choices"] == before
    assert four.decoders.leases["four"].open == 0
