"""The official `openai` client against a real server: models, completions with logprobs and echo, chats, streams, errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from live import live_server, wait_for
from text_server import FOUR, ReadyDecoders, always, chain

from service.app import create_app
from service.settings import Settings

openai = pytest.importorskip("openai", reason="the client is not installed")
uvicorn = pytest.importorskip("uvicorn")

SAYS = [b".", b"Hel", b"lo \xf0\x9f", b"\x98\x80", b" there", b"!"]
KEY = "sesame"


@pytest.fixture(scope="module")
def decoders() -> ReadyDecoders:
    return ReadyDecoders(says=chain(SAYS), four=always(FOUR, [b"a", b"b", b"c", b"d"]))


@pytest.fixture(scope="module")
def server(tmp_path_factory, decoders) -> Iterator[str]:
    """The address of a server on a free port."""
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("served") / "data", api_key=KEY))
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="on", ws="none"))
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        wait_for(lambda: running.started, 30)
        app.state.parts.decoders = decoders
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        running.should_exit = True
        thread.join(30)


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server, api_key=KEY, max_retries=0) as made:
        yield made


def test_models(client):
    assert [model.id for model in client.models.list()] == ["says", "four"]
    assert client.models.retrieve("says").owned_by == "fullview"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("nothing")


def test_a_completion_with_logprobs_and_echo(client):
    answer = client.completions.create(model="says", prompt=".", max_tokens=5, temperature=0, logprobs=2, echo=True)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (".Hello 😀 there!", "length")
    shown = choice.logprobs
    assert shown.tokens == [".", "Hel", "bytes:\\x6c\\x6f\\x20\\xf0\\x9f", "bytes:\\x98\\x80", " there", "!"]
    assert shown.text_offset == [0, 1, 4, 7, 8, 14] and shown.token_logprobs[0] is None
    assert all(value == pytest.approx(-0.0332, abs=1e-3) for value in shown.token_logprobs[1:])
    assert shown.top_logprobs[0] is None and len(shown.top_logprobs[1]) == 2
    assert shown.model_extra["logprob_stderr"][1:] == [0.0] * 5
    assert answer.usage.total_tokens == 6


def test_a_prompt_is_scored_without_generating(client):
    answer = client.completions.create(model="four", prompt="abcd", max_tokens=0, logprobs=4, echo=True)
    shown = answer.choices[0].logprobs
    assert shown.token_logprobs[1:] == pytest.approx([-1.4402, -2.4402, -3.4402], abs=1e-4)
    assert answer.choices[0].text == "abcd" and answer.usage.completion_tokens == 0


def test_a_streamed_completion(client):
    stream = client.completions.create(
        model="says", prompt=".", max_tokens=5, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello 😀 there!"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 5


def test_a_chat(client):
    answer = client.chat.completions.create(
        model="says",
        messages=[{"role": "system", "content": "."}, {"role": "user", "content": "!."}],
        max_completion_tokens=3,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        stop=["😀"],
    )
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello ", "stop")
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == "Hello 😀"
    assert [len(entry.top_logprobs) for entry in entries] == [3, 3, 3]


def test_a_streamed_chat(client):
    stream = client.chat.completions.create(
        model="says", messages=[{"role": "user", "content": "."}], max_tokens=5, temperature=0, stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Hello 😀 there!"


def test_extensions_go_through_extra_body(client):
    answer = client.completions.create(
        model="four",
        prompt="a",
        max_tokens=1,
        logprobs=5,
        extra_body={"allowed_token_ids": [3], "top_k": 2, "min_p": 0.1, "return_tokens_as_token_ids": True},
    )
    assert answer.choices[0].logprobs.top_logprobs == [{"token_id:3": pytest.approx(-3.4402, abs=1e-4)}]


def test_errors_are_the_client_s_own(client, server):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="four", prompt="a", n=2)
    assert caught.value.param == "n" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "a"}])
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with (
        openai.OpenAI(base_url=server, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_a_client_that_stops_reading_ends_its_answer(client, decoders):
    lease = decoders.leases["says"]
    before = len(lease.text.blocks)
    with client.completions.create(model="says", prompt=".", max_tokens=4096, stream=True) as stream:
        next(iter(stream))
    wait_for(lambda: lease.open == 0)
    assert len(lease.text.blocks) - before < 4096


def test_a_decoder_that_was_built_over_http_answers_the_client(tmp_path):
    """A model folder in the import root, a job that builds its decoder, completions of it: nothing but HTTP."""
    from tiny_llama import byte_tokenizer, make_model, oracle_logprobs, oracle_of

    folder = make_model(tmp_path / "data" / "import" / "llama", byte_tokenizer())
    oracle = oracle_of(folder)
    with live_server(tmp_path / "data") as running:
        body = {"name": "llama", "weight": {"model": "llama"}, "serve": "llama", "threads": 1}
        submitted = running.client.post("/v1/admin/decoders", json=body)
        assert submitted.status_code == 202, submitted.text
        ended = running.wait_job(submitted.json()["job"])
        assert ended["state"] == "done", ended
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["llama"]
            ids = [84, 72, 69, 220, 67, 65, 84]
            answer = client.completions.create(
                model="llama",
                prompt=ids,
                max_tokens=5,
                temperature=0,
                logprobs=2,
                echo=True,
                extra_body={"return_tokens_as_token_ids": True},
            )
            shown = answer.choices[0].logprobs
            tokens = [int(name.removeprefix("token_id:")) for name in shown.tokens]
            assert tokens[:7] == ids and len(tokens) == 12
            expected = oracle_logprobs(oracle, tokens)
            assert tokens[7:] == expected[6:-1].argmax(axis=1).tolist()
            truth = [expected[at, token] for at, token in enumerate(tokens[1:])]
            assert shown.token_logprobs[1:7] == pytest.approx(truth[:6], abs=1e-3)
            assert shown.token_logprobs[7:] == pytest.approx(truth[6:], abs=0.1)
            stream = client.chat.completions.create(
                model="llama", messages=[{"role": "user", "content": "the"}], max_tokens=8, temperature=0, stream=True
            )
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert running.client.get("/readyz").status_code == 200
