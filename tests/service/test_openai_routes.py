"""/v1/models, /v1/completions, /v1/chat/completions: what they answer, what they refuse, and in which words."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading

import numpy as np
import pytest
from httpx2 import ASGITransport, AsyncClient
from live import wait_for
from text_server import FOUR, always, chain, chatted, completed, refused, serving, streamed

from service.text.openai_options import COMPLETION_TOKENS

ABC = [b"a", b"b", b"c", b"d"]


@pytest.fixture
def client(tmp_path):
    """`four`: always the same four logits; `abc`: says its letters in order; `bare`: no model."""
    with serving(
        tmp_path / "data",
        {"completion_tokens_max": 2000, "query_batch_max": 8},
        four=always(FOUR, ABC, context_length=2100),
        abc=chain(ABC),
        bare=(chain(ABC)[0], None),
    ) as running:
        yield running


def test_models_lists_decoders_that_have_a_model(client):
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["four", "abc"]
    assert client.get("/v1/models/abc").json() == {
        "id": "abc",
        "object": "model",
        "created": 1500000000,
        "owned_by": "fullview",
    }


@pytest.mark.parametrize("name", ["nothing", "bare"])
def test_unknown_models_are_404_in_openai_s_shape(client, name):
    error = client.get(f"/v1/models/{name}").json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        error = refused(client, 404, f"/v1/{path}", model=name, **body)
        assert (error["code"], error["param"], error["type"]) == ("model_not_found", "model", "invalid_request_error")
    assert client.decoders.leases["bare"].open == 0


def test_a_completion(client):
    answer = completed(client, model="abc", prompt="a", max_tokens=2, temperature=0)
    assert answer["object"] == "text_completion" and answer["model"] == "abc" and answer["id"].startswith("cmpl-")
    assert answer["choices"] == [{"index": 0, "text": "bc", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert client.decoders.leases["abc"].open == 0


def test_completions_without_max_tokens_have_sixteen(client):
    assert completed(client, model="abc", prompt="a")["usage"]["completion_tokens"] == COMPLETION_TOKENS


def test_a_chat(client):
    answer = chatted(
        client,
        model="abc",
        messages=[{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
        max_completion_tokens=3,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "cda", "refusal": None}
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == ("c", [99]) and len(first["top_logprobs"]) == 2
    assert first["top_logprobs"][0]["logprob"] == first["logprob"] == pytest.approx(-np.log1p(3 * np.exp(-5)), abs=1e-5)
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_a_chat_without_max_tokens_goes_on_to_the_limit_of_the_context(client):
    messages = [{"role": "user", "content": "a" * 2090}]
    answer = chatted(client, model="four", messages=messages)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (10, "length")


@pytest.mark.parametrize("prompt", ["ab", [0, 1], ["ab"], [[0, 1]]])
def test_prompts_as_text_and_as_ids(client, prompt):
    answer = completed(client, model="abc", prompt=prompt, max_tokens=1, temperature=0, echo=True)
    assert answer["choices"][0]["text"] == "abc"


def test_several_prompts_are_several_choices(client):
    body = {"model": "abc", "prompt": ["a", [1], "bc"], "max_tokens": 1, "temperature": 0}
    answer = completed(client, **body)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "b"), (1, "c"), (2, "d")]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    chunks = streamed(client, **body)
    assert [(chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in chunks] == [
        (0, "b"),
        (1, "c"),
        (2, "d"),
    ]


def test_without_a_seed_equal_prompts_get_texts_of_their_own(client):
    body = {"model": "four", "prompt": ["a"] * 3, "max_tokens": 40}
    assert len({choice["text"] for choice in completed(client, **body)["choices"]}) == 3
    assert len({choice["text"] for choice in completed(client, **body, seed=-3)["choices"]}) == 1


def test_a_streamed_completion_joined_is_the_whole_one(client):
    body = {"model": "abc", "prompt": "a", "max_tokens": 3, "temperature": 0, "logprobs": 1, "echo": True}
    whole = completed(client, **body)["choices"][0]
    chunks = [chunk["choices"][0] for chunk in streamed(client, **body)]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"] == "abcd"
    for name, values in whole["logprobs"].items():
        assert list(itertools.chain.from_iterable(chunk["logprobs"][name] for chunk in chunks)) == values
    assert [chunk["finish_reason"] for chunk in chunks][-2:] == [None, "length"]
    assert whole["logprobs"]["text_offset"] == [0, 1, 2, 3]


def test_usage_comes_last_where_it_is_asked_for(client):
    body = {"model": "abc", "prompt": "a", "max_tokens": 2}
    *chunks, last = streamed(client, **body, stream_options={"include_usage": True})
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all("usage" not in chunk for chunk in streamed(client, **body, stream_options={}))


def test_a_streamed_chat_opens_with_the_role(client):
    messages = [{"role": "user", "content": "a"}]
    chunks = streamed(
        client, "/v1/chat/completions", model="abc", messages=messages, max_tokens=2, temperature=0, logprobs=True
    )
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:]] == [{"content": "b"}, {"content": "c"}]
    assert [len(choice["logprobs"]["content"]) for choice in choices[1:]] == [1, 1]
    assert choices[-1]["finish_reason"] == "length"


def test_neutral_values_and_what_changes_nothing_are_taken(client):
    body = {
        "model": "abc", "prompt": "a", "max_tokens": 1, "temperature": 0, "n": 1, "best_of": 1, "presence_penalty": 0,
        "frequency_penalty": 0.0, "repetition_penalty": 1.0, "suffix": None, "user": "u", "metadata": {"a": "b"},
        "stop": None, "logit_bias": {}, "seed": None, "top_k": -1, "min_p": 0, "ignore_eos": False, "what_is_this": None,
        "skip_special_tokens": True, "stop_token_ids": [], "response_format": {"type": "text"}, "stream": False,
    }  # fmt: skip
    assert completed(client, **body)["choices"][0]["text"] == "b"
    chat = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "store": False, "modalities": ["text"]}
    messages = [{"role": "user", "content": "a", "tool_calls": None, "name": "me"}]
    assert chatted(client, model="abc", messages=messages, max_tokens=1, **chat)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *[("n", 2), ("n", True), ("best_of", 3), ("presence_penalty", 0.5), ("frequency_penalty", -1), ("suffix", "x")],
        *[("repetition_penalty", 1.1), ("ignore_eos", True), ("min_tokens", 1), ("stop_token_ids", [1])],
        *[("response_format", {"type": "json_object"}), ("prompt_logprobs", 1), ("use_beam_search", True)],
        *[("guided_json", {}), ("temprature", 0.3), ("max_token", 3), ("tools", [])],
        *[("temperature", -0.1), ("temperature", 2.5), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.5)],
        *[("top_k", 0.01), ("top_k", -2), ("min_p", 2), ("seed", 1 << 64), ("seed", 0.5), ("logprobs", 21)],
        *[("logprobs", -1), ("logprobs", True), ("max_tokens", -1), ("max_tokens", 2001), ("max_tokens", 1.5)],
        *[("stop", ""), ("stop", ["a", "b", "c", "d", "e"]), ("stop", 3), ("stream", "yes"), ("echo", 1)],
        *[("logit_bias", "abc"), ("logit_bias", {"x": 1}), ("logit_bias", {"1": 101}), ("logit_bias", {"4": 1})],
        *[("logit_bias", {"-1": 1}), ("logit_bias", {str(at): -100 for at in range(4)}), ("logprobs_mode", "best")],
        *[
            ("allowed_token_ids", []),
            ("allowed_token_ids", [4]),
            ("allowed_token_ids", [-1]),
            ("allowed_token_ids", "a"),
        ],
        *[("stream_options", {"include_usage": True}), ("prompt", []), ("prompt", [[]]), ("prompt", ""), ("prompt", 7)],
        *[
            ("prompt", [0, "a"]),
            ("prompt", [4]),
            ("prompt", [-1]),
            ("prompt", ["a"] * 9),
            ("model", None),
            ("model", 3),
        ],
    ],
)
def test_what_cannot_be_taken_is_400_and_names_the_member(client, param, value):
    body = {"model": "abc", "prompt": "a", param: value}
    for stream in (False, True):
        if param not in ("stream", "stream_options"):
            body["stream"] = stream
        error = refused(client, **body)
        assert error["param"] == param and param in error["message"]
        assert error["type"] == "invalid_request_error"
    assert client.decoders.leases["abc"].open == 0


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("messages", {"messages": []}),
        ("messages", {"messages": "hello"}),
        ("messages[0].role", {"messages": [{"role": "tool", "content": "a"}]}),
        ("messages[0].role", {"messages": [{"content": "a"}]}),
        ("messages[1].content", {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": None}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ("messages[0].tool_calls", {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}),
        ("messages[0].name", {"messages": [{"role": "user", "content": "a", "name": 3}]}),
        ("tools", {"tools": [{}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 3, "max_completion_tokens": 4}),
        ("echo", {"echo": True}),
        ("reasoning_effort", {"reasoning_effort": "low"}),
    ],
)
def test_the_same_of_chats(client, param, body):
    asked = {"model": "abc", "messages": [{"role": "user", "content": "a"}], **body}
    error = refused(client, path="/v1/chat/completions", **asked)
    assert error["param"] == param


def test_what_does_not_fit_into_the_context_is_400_and_names_it(client):
    error = refused(client, model="four", prompt="a" * 200, max_tokens=1999)
    assert error["param"] == "max_tokens" and all(part in error["message"] for part in ("2100", "200", "1999"))
    assert "2100" in refused(client, model="four", prompt="a" * 2101)["message"]
    assert refused(client, model="four", prompt=[0] * 2101)["param"] == "prompt"
    assert completed(client, model="four", prompt="a" * 2100, max_tokens=0, echo=True, logprobs=0)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"\\ud800"', b"\xff", b'{"model": "abc", "prompt": ' + b"[" * 10_000]
)
def test_what_is_no_json_object_is_400(client, body):
    answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_a_model_of_other_states_than_the_decoder_s_is_named(tmp_path):
    head, _ = chain(ABC)
    _, model = chain(ABC[:3])
    with serving(tmp_path / "data", odd=(head, model)) as client:
        message = refused(client, 409, model="odd", prompt="a")["message"]
        assert "4" in message and "3" in message


def test_a_deadline_ends_an_answer(tmp_path):
    head, model = chain(ABC, wait=threading.Event())
    with serving(tmp_path / "data", abc=(head, model)) as client:
        answer = client.post("/v1/completions?timeout=0.05", json={"model": "abc", "prompt": "a"})
        assert answer.status_code == 408 and "0.05 s" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
        streaming = client.post("/v1/completions?timeout=0.05", json={"model": "abc", "prompt": "a", "stream": True})
        assert streaming.status_code == 200 and "[DONE]" not in streaming.text
        assert json.loads(streaming.text.removeprefix("data: "))["error"]["code"] == "deadline"
        model.wait.set()
        wait_for(lambda: client.decoders.leases["abc"].open == 0)
        assert client.post("/v1/completions?timeout=x", json={"model": "abc", "prompt": "a"}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_when_the_client_goes_away_the_answer_ends(client, stream):
    """Asked of the application itself: a client that leaves after its first tokens."""
    body = json.dumps({"model": "abc", "prompt": "a", "max_tokens": 2000, "stream": stream}).encode()
    model = client.decoders.leases["abc"].text

    async def leave():
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            while len(model.blocks) < 20:
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

        async def send(message):
            pass

        headers = [(b"content-type", b"application/json")]
        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions", "headers": headers,
            "query_string": b"", "http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
        }  # fmt: skip
        await client.app(scope, receive, send)

    client.portal.call(leave)
    wait_for(lambda: client.decoders.leases["abc"].open == 0)
    assert 20 <= len(model.blocks) < 1000


def test_a_failure_in_a_stream_is_an_event(client, caplog):
    def fail(*_, **__):
        raise ZeroDivisionError("by nobody foreseen")

    client.decoders.leases["abc"].head.sample = fail
    answer = client.post("/v1/completions", json={"model": "abc", "prompt": "a", "stream": True})
    assert answer.status_code == 200 and "[DONE]" not in answer.text
    error = json.loads(answer.text.removeprefix("data: "))["error"]
    assert error["type"] == "server_error" and answer.headers["x-request-id"] in error["message"]
    assert "by nobody foreseen" in caplog.text


def test_decoder_metrics_count_what_completions_ask(client):
    completed(client, model="abc", prompt="ab", max_tokens=3, echo=True, logprobs=0)
    exposed = client.get("/metrics").text
    assert 'fullview_decoder_tokens_total{decoder="abc",mode="exact"} 4.0' in exposed


def test_searches_get_their_turn_between_the_tokens_of_an_answer(tmp_path):
    """One thread, an answer of 2,000 tokens under way: the pool answers others at once."""
    with serving(tmp_path / "data", {"threads": 1}, abc=chain(ABC)) as client:
        model = client.decoders.leases["abc"].text
        pool = client.app.state.parts.engine.pool

        async def both():
            async def ask():
                async with AsyncClient(transport=ASGITransport(client.app), base_url="http://test") as asking:
                    body = {"model": "abc", "prompt": "a", "max_tokens": 2000}
                    return await asking.post("/v1/completions", json=body, timeout=60)

            answering = asyncio.create_task(ask())
            while len(model.blocks) < 5:
                await asyncio.sleep(0.001)
            during = await pool.run(lambda: len(model.blocks), timeout_s=10, release=lambda: None)
            return during, await answering

        during, answer = client.portal.call(both)
        assert answer.status_code == 200 and during < 1000


def test_completions_beyond_those_that_may_run_wait_for_their_turn(tmp_path):
    head, model = chain(ABC, wait=threading.Event())
    with serving(tmp_path / "data", {"completions_parallel": 1, "threads": 2}, abc=(head, model)) as client:

        async def ask(path):
            async with AsyncClient(transport=ASGITransport(client.app), base_url="http://test") as asking:
                body = {"model": "abc", "prompt": "a", "max_tokens": 3, "temperature": 0}
                return await asking.post(path, json=body, timeout=60)

        async def three():
            first = asyncio.create_task(ask("/v1/completions"))
            while not model.blocks:
                await asyncio.sleep(0.001)
            second = asyncio.create_task(ask("/v1/completions"))
            late = await ask("/v1/completions?timeout=0.05")
            begun = len(model.blocks)
            model.wait.set()
            return late, begun, await first, await second

        late, begun, first, second = client.portal.call(three)
        assert late.status_code == 408 and begun == 1
        assert first.json()["choices"] == second.json()["choices"]
        assert client.decoders.leases["abc"].open == 0
