"""S63, S68 to S70 over HTTP with a small Llama, against transformers itself; the memory of S70 with a large vocabulary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from text_server import built, chatted, completed, refused, serving, streamed
from tiny_llama import byte_tokenizer, make_model, oracle_logprobs, oracle_of

from decoder.output_layer import OutputLayer
from service.text.model import load_text_model

CONTEXT = "the cat and the naïve 😀 "
CONTINUATION = "dog and the other one"
MB = 1_000_000
ROUNDING = 5e-4
"""Of a model that reads in one piece against one that reads token by token."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """(folder, transformers' own model of it)."""
    folder = make_model(tmp_path_factory.mktemp("llama"), byte_tokenizer(), max_position_embeddings=2048)
    return folder, oracle_of(folder)


@pytest.fixture(scope="module")
def client(llama, tmp_path_factory):
    """With a decoder that was built for the model, from states of its own."""
    folder, _ = llama
    model = load_text_model(folder)
    generator = np.random.default_rng(5)
    states = np.concatenate([model.read().hidden(generator.integers(0, 256, 50).tolist()) for _ in range(20)])
    head = built(OutputLayer.load(folder), tmp_path_factory.mktemp("built") / "llama", calibration=states)
    made = head, model
    with serving(tmp_path_factory.mktemp("served") / "data", {"completion_tokens_max": 1500}, llama=made) as running:
        yield running


def ids_of(client, text):
    return client.decoders.leases["llama"].text.tokenizer.encode(text)


def test_greedy_text_is_what_transformers_generates(client, llama):
    import torch

    _, oracle = llama
    ids = ids_of(client, CONTEXT)
    with torch.inference_mode():
        expected = oracle.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0, len(ids) :].tolist()
    body = {"model": "llama", "prompt": CONTEXT, "max_tokens": 40, "temperature": 0, "logprobs": 0}
    found = completed(client, **body, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["tokens"]
    assert found == [f"token_id:{token_id}" for token_id in expected]


def test_s63_log_probabilities_are_those_of_the_model(client, llama):
    """1,000 states, sampled on the way, with filters that must not show."""
    body = {"model": "llama", "prompt": CONTEXT, "max_tokens": 1000, "seed": 3, "top_p": 0.9, "temperature": 1.3}
    (end,) = client.decoders.leases["llama"].text.end_ids
    body |= {"logprobs": 5, "return_tokens_as_token_ids": True, "logit_bias": {str(end): -100}}
    choice = completed(client, **body)["choices"][0]
    shown = choice["logprobs"]
    tokens = [int(name.removeprefix("token_id:")) for name in shown["tokens"]]
    prompt = ids_of(client, CONTEXT)
    expected = oracle_logprobs(llama[1], prompt + tokens)[len(prompt) - 1 : -1]
    stderr = np.array(shown["logprob_stderr"])
    errors = np.abs(np.array(shown["token_logprobs"]) - expected[np.arange(1000), tokens])
    assert np.mean(errors <= 1.96 * stderr + ROUNDING) >= 0.93 and errors.max() < 0.1
    for at, top in enumerate(shown["top_logprobs"]):
        truth = [expected[at, int(name.removeprefix("token_id:"))] for name in top]
        assert list(top.values()) == pytest.approx(truth, abs=0.1)


def test_s70_a_continuation_is_scored_as_the_model_scores_it(client, llama):
    body = {"model": "llama", "prompt": CONTEXT + CONTINUATION, "echo": True, "max_tokens": 0, "logprobs": 5}
    choice = completed(client, **body)["choices"][0]
    shown, ids = choice["logprobs"], ids_of(client, CONTEXT + CONTINUATION)
    assert choice["text"] == CONTEXT + CONTINUATION and choice["finish_reason"] == "length"
    assert len(shown["tokens"]) == len(ids) and shown["token_logprobs"][0] is None and shown["top_logprobs"][0] is None
    expected = oracle_logprobs(llama[1], ids)
    first = next(at for at, offset in enumerate(shown["text_offset"]) if offset >= len(CONTEXT))
    ours = sum(shown["token_logprobs"][first:])
    assert ours == pytest.approx(sum(expected[at - 1, ids[at]] for at in range(first, len(ids))), abs=1e-3)
    for at in range(1, len(ids)):
        best = sorted(shown["top_logprobs"][at].values(), reverse=True)[:5]
        assert best == pytest.approx(np.sort(expected[at - 1])[::-1][:5], abs=1e-3)


def test_s70_offsets_are_places_in_the_text(client):
    body = {"model": "llama", "prompt": CONTEXT, "echo": True, "max_tokens": 30, "logprobs": 0, "temperature": 0}
    choice = completed(client, **body)["choices"][0]
    shown = choice["logprobs"]
    assert len(shown["tokens"]) == len(ids_of(client, CONTEXT)) + 30
    for name, offset in zip(shown["tokens"], shown["text_offset"]):
        if not name.startswith(("bytes:", "<|")):
            assert choice["text"][offset : offset + len(name)] == name
    chunks = [chunk["choices"][0] for chunk in streamed(client, **body)]
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert [value for chunk in chunks for value in chunk["logprobs"]["token_logprobs"]] == shown["token_logprobs"]


def test_s70_prompts_of_many_blocks_are_scored_as_short_ones_are(client, llama):
    ids = np.random.default_rng(0).integers(0, 256, 700).tolist()
    body = {"model": "llama", "prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 1}
    shown = completed(client, **body)["choices"][0]["logprobs"]
    expected = oracle_logprobs(llama[1], ids)
    assert shown["token_logprobs"][1:] == pytest.approx([expected[at, ids[at + 1]] for at in range(699)], abs=2e-3)


def test_s68_random_bytes_stream_as_they_are_whole(client):
    for seed in range(3):
        body = {"model": "llama", "prompt": "the", "max_tokens": 60, "temperature": 2.0, "seed": seed}
        whole = completed(client, **body)["choices"][0]["text"]
        assert "".join(chunk["choices"][0]["text"] for chunk in streamed(client, **body)) == whole
        chat = {**body, "messages": [{"role": "user", "content": body.pop("prompt")}]}
        del chat["prompt"]
        spoken = chatted(client, **chat)["choices"][0]["message"]["content"]
        deltas = [
            chunk["choices"][0]["delta"].get("content", "")
            for chunk in streamed(client, "/v1/chat/completions", **chat)
        ]
        assert "".join(deltas) == spoken


def test_s69_stop_strings_from_what_the_model_says(client):
    body = {"model": "llama", "prompt": "the", "max_tokens": 60, "temperature": 0}
    whole = completed(client, **body)["choices"][0]["text"]
    for start, end in ((3, 6), (10, 17), (20, 21)):
        stop = whole[start:end]
        stopped = completed(client, **body, stop=[stop, stop + "\0"])["choices"][0]
        assert (stopped["text"], stopped["finish_reason"]) == (whole[: whole.index(stop)], "stop")
        chunks = [chunk["choices"][0] for chunk in streamed(client, **body, stop=[stop, stop + "\0"])]
        assert "".join(chunk["text"] for chunk in chunks) == stopped["text"] and chunks[-1]["finish_reason"] == "stop"


def test_the_end_token_ends_a_chat(client):
    model = client.decoders.leases["llama"].text
    (end,) = model.end_ids
    body = {"model": "llama", "messages": [{"role": "user", "content": "the"}], "temperature": 0}
    answer = chatted(client, **body, logit_bias={str(end): 100}, logprobs=True)
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert choice["logprobs"]["content"][0]["token"] == "<|end|>" and answer["usage"]["completion_tokens"] == 1


def test_what_does_not_fit_is_refused_before_it_starts(client):
    error = refused(client, model="llama", prompt=[1] * 2049)
    assert error["param"] == "prompt" and "2048" in error["message"]
    assert "2048" in refused(client, model="llama", prompt="a" * 1_000_000)["message"]


MEASURE = """
import json, sys
import numpy as np
from exact_head import ExactHead
from table_model import TableModel, TableTokenizer
from text_server import serving, completed, streamed
from decoder.output_layer import OutputLayer
from index.progress import peak_bytes

tokens, vocabulary, dim = map(int, sys.argv[2:5])
generator = np.random.default_rng(0)
weight = generator.standard_normal((vocabulary, dim)).astype(np.float32)
states = generator.standard_normal((vocabulary, dim)).astype(np.float32)
model = TableModel(states, TableTokenizer([b"<%d>" % at for at in range(vocabulary)]))
with serving(sys.argv[1], big=(ExactHead(OutputLayer(weight)), model)) as client:
    body = {"model": "big", "echo": True, "logprobs": 5, "max_tokens": 2, "temperature": 0}
    completed(client, prompt=[1, 2, 3], **body)
    before = peak_bytes()
    ids = generator.integers(0, vocabulary, tokens).tolist()
    shown = completed(client, prompt=ids, **body)["choices"][0]["logprobs"]
    print(json.dumps({"grown": peak_bytes() - before, "entries": len(shown["tokens"]), "first": shown["token_logprobs"][0]}))
"""


@pytest.mark.parametrize(
    ("tokens", "vocabulary"), [(512, 150_000), pytest.param(8192, 150_000, marks=pytest.mark.long)]
)
def test_s70_echo_of_a_long_prompt_needs_little_memory(tmp_path, tokens, vocabulary):
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "data"), str(tokens), str(vocabulary), "16"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=here.parents[1],
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parents[1]}"},
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["entries"] == tokens + 2 and measured["first"] is None
    assert measured["grown"] <= 256 * MB
