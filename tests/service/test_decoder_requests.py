"""Requests to decoders, parsed: JSON and query strings say the same; hidden states of each form; warming asks for all."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fake_decoder import FakeHead, write_fake_decoder

from service.decoder_info import REPEATS
from service.decoder_requests import parse_next, parse_raw_next, parse_raw_topk, parse_topk
from service.decoder_warm import warm_head
from service.errors import MalformedError
from service.hidden_states import raw_states
from service.settings import Settings

SETTINGS = Settings()
BODY = {
    "k": 3, "mode": "screen", "recall": 0.9, "logit_bias": {"4": -1.5}, "allowed_token_ids": [1, 4],
    "banned_token_ids": [2], "logprobs_mode": "processed", "on_bad": "mark",
}  # fmt: skip
QUERY = {
    "k": "3", "mode": "screen", "recall": "0.9", "logit_bias": "4:-1.5", "allowed_token_ids": "1,4",
    "banned_token_ids": "2", "logprobs_mode": "processed", "on_bad": "mark",
}  # fmt: skip


def test_both_forms_say_the_same():
    more = {"normalize": "topk", "logprob_token_ids": [7]}
    body = parse_topk(json.dumps({"hidden": [1.0]} | BODY | more).encode(), SETTINGS)
    raw = parse_raw_topk(
        bytes(4), QUERY | {"normalize": "topk", "logprob_token_ids": "7", "dtype": "float16", "timeout": "3"}, SETTINGS
    )
    assert body.limits == raw.limits
    for name in ("k", "mode", "recall", "normalize", "logprobs_mode", "on_bad"):
        assert getattr(body.options, name) == getattr(raw.options, name), name
    assert body.limits.logit_bias == {4: -1.5}


def test_both_forms_of_sampling_say_the_same():
    more = {"temperature": 0.5, "top_k": -1, "top_p": 0.9, "min_p": 0.1, "seed": 7}
    body = parse_next(json.dumps({"hidden": [1.0]} | BODY | more).encode(), SETTINGS)
    raw = parse_raw_next(bytes(4), QUERY | {name: str(value) for name, value in more.items()}, SETTINGS)
    for name in more:
        assert getattr(body.options, name) == getattr(raw.options, name), name
    assert body.limits.scored is raw.limits.scored is None


def test_what_is_left_out_is_the_decoders_choice():
    query = parse_raw_topk(bytes(4), {}, SETTINGS)
    assert (query.options.recall, query.options.mode, query.options.k) == (None, "auto", 10)
    assert query.limits.allowed is None


def test_raw_states_are_not_copied():
    content = np.arange(6, dtype="<f4").tobytes()
    states = raw_states(content, None)(3)
    assert states.shape == (2, 3)
    assert not states.flags.owndata
    with pytest.raises(MalformedError, match="float16"):
        raw_states(content[:-1], "float16")(3)


def test_warming_asks_for_everything(tmp_path):
    write_fake_decoder(tmp_path / "d", np.eye(3))
    head = FakeHead(tmp_path / "d")
    warm_head(head, SETTINGS)
    assert {call["mode"] for call in head.calls} == {"auto", "walk", "screen", "exact"}
    assert {call["normalize"] for call in head.calls} == {"estimate", "topk", "exact", "none"}
    assert any(call["constraints"] is not None for call in head.calls)
    assert {len(np.atleast_2d(call["hidden"])) for call in head.calls} >= {1, 8}
    assert REPEATS["cpu"]["logits"] == "identical"
