"""/v1/decoders over HTTP with a stand-in for the decoder: forms of states and answers, options, limits, refusals."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest
from fake_decoder import open_fake_decoder, put_fake_decoder
from starlette.testclient import TestClient

from decoder.errors import CorruptDecoderError
from service.app import create_app
from service.settings import Settings

RAW = {"content-type": "application/octet-stream"}
WEIGHT = np.random.default_rng(58).standard_normal((61, 8)).astype(np.float32)
WORDS = [f"word{i}" for i in range(61)]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    settings = Settings(data_dir=tmp_path_factory.mktemp("decoders") / "data", decoder_k_max=100, query_batch_max=8)
    with TestClient(create_app(settings, decoder_opener=open_fake_decoder)) as running:
        decoders = running.app.state.parts.decoders
        running.head = put_fake_decoder(decoders, "d", WEIGHT, words=json.dumps(WORDS))
        # Logits 1, 0, -1, -2 of the state [1].
        put_fake_decoder(decoders, "four", [[1.0], [0.0], [-1.0], [-2.0]])
        yield running


@pytest.fixture
def states():
    return np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


def ask(client, body, *, name="d", route="topk", status=200):
    answer = client.post(f"/v1/decoders/{name}/{route}", json=body)
    assert answer.status_code == status, answer.text
    if status == 200:
        return json.loads(answer.text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    return answer.json()["status"]["error"]


def arrays_of(content):
    line, _, rest = content.partition(b"\n")
    header, at, arrays = json.loads(line), 0, {}
    for name, dtype in header["dtypes"].items():
        shape = header["shapes"][name]
        arrays[name] = np.frombuffer(rest, dtype, math.prod(shape), offset=at).reshape(shape)
        at += arrays[name].nbytes
    assert at == len(rest)
    return header, arrays


def packed(states, dtype):
    if dtype == "bfloat16":
        return (states.view(np.uint32) >> 16).astype("<u2").tobytes()
    return states.astype(dtype).tobytes()


def test_the_best_tokens_of_each_state(client, states):
    answer = ask(client, {"hidden": states.tolist(), "k": 5})
    logits = states @ WEIGHT.T
    assert answer["token_ids"] == np.argsort(-logits, axis=1)[:, :5].tolist()
    assert np.allclose(answer["logits"], -np.sort(-logits, axis=1)[:, :5], rtol=1e-5)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert np.allclose(answer["logprobs"], -np.sort(-logprobs, axis=1)[:, :5], rtol=1e-5)
    assert answer["logprob_stderr"] == [0.0] * 3
    assert (answer["exact"], answer["mode"], answer["rows_scored"], answer["failed"]) == (True, "exact", 183, [])
    assert answer["time_us"] > 0
    assert set(answer) == {
        *("token_ids", "logits", "logprobs", "logprob_stderr", "exact", "mode", "rows_scored", "failed", "time_us")
    }


def test_one_state_needs_no_list_of_lists(client, states):
    alone = ask(client, {"hidden": states[0].tolist()})
    assert alone["token_ids"] == ask(client, {"hidden": states[:1].tolist()})["token_ids"]
    assert len(alone["token_ids"][0]) == 10


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_form_of_states_means_the_same(client, states, dtype):
    if dtype == "bfloat16":
        states = (states.view(np.uint32) & 0xFFFF0000).view(np.float32)
    else:
        states = states.astype(dtype).astype(np.float32)
    content = packed(states, dtype)
    expected = ask(client, {"hidden": states.tolist(), "k": 4})
    encoded = {"base64": base64.b64encode(content).decode(), "shape": [3, 8], "dtype": dtype}
    found = ask(client, {"hidden": encoded, "k": 4})
    raw = client.post(f"/v1/decoders/d/topk?k=4&dtype={dtype}", content=content, headers=RAW)
    header, arrays = arrays_of(raw.content)
    assert raw.headers["content-type"] == RAW["content-type"]
    assert header["shape"] == [3, 4]
    assert header["dtypes"] == dict(zip(arrays, ["<i4", "<f4", "<f4", "<f4", "<i4"]))
    for name in ("token_ids", "logits", "logprobs", "logprob_stderr"):
        assert expected[name] == found[name] == arrays[name].tolist()
    assert arrays["counts"].tolist() == [4, 4, 4]
    assert {name: header[name] for name in ("exact", "mode", "rows_scored", "failed")} == {
        name: expected[name] for name in ("exact", "mode", "rows_scored", "failed")
    }
    assert (raw.content.index(b"\n") + 1) % 8 == 0


def test_options_reach_the_decoder(client, states):
    body = {
        "hidden": states.tolist(),
        "k": 3,
        "normalize": "topk",
        "mode": "walk",
        "recall": 0.999,
        "logit_bias": {"7": 1.5, "3": -100},
        "allowed_token_ids": [1, 2, 3, 7],
        "banned_token_ids": [2],
        "logprob_token_ids": [7, 1],
        "logprobs_mode": "processed",
        "on_bad": "mark",
    }
    answer = ask(client, body)
    call = client.head.calls[-1]
    query = (
        "k=3&normalize=topk&mode=walk&recall=0.999&logit_bias=7:1.5,3:-100&allowed_token_ids=1,2,3,7&banned_token_ids=2"
        "&logprob_token_ids=7,1&logprobs_mode=processed&on_bad=mark&timeout=9"
    )
    raw = client.post(f"/v1/decoders/d/topk?{query}", content=states.tobytes(), headers=RAW)
    raw_call = client.head.calls[-1]
    for each in (call, raw_call):
        assert each["constraints"].logit_bias == {7: 1.5, 3: -100.0}
        assert list(each["constraints"].allowed) == [1, 2, 3, 7]
        assert list(each["constraints"].banned) == [2]
        assert list(each["score_ids"]) == [7, 1]
        chosen = {name: each[name] for name in ("k", "normalize", "mode", "recall", "logprobs", "on_bad")}
        assert chosen == {
            "k": 3, "normalize": "topk", "mode": "walk", "recall": 0.999, "logprobs": "processed", "on_bad": "mark",
        }  # fmt: skip
    _, arrays = arrays_of(raw.content)
    assert answer["mode"] == "walk"
    assert answer["requested_logits"] == arrays["requested_logits"].tolist()
    assert answer["requested_logprobs"] == arrays["requested_logprobs"].tolist()
    assert answer["token_ids"] == arrays["token_ids"].tolist()


def test_k_beyond_the_vocabulary_is_the_whole_vocabulary(client):
    for k in (3, 4, 5, 50):
        answer = ask(client, {"hidden": [1.0], "k": k}, name="four")
        assert answer["token_ids"] == [[0, 1, 2, 3][:k]]
    assert sum(math.exp(each) for each in answer["logprobs"][0]) == pytest.approx(1.0, abs=1e-6)


def test_s62_impossible_entries_are_left_out(client):
    body = {"hidden": [1.0], "k": 5, "allowed_token_ids": [0, 1]}
    raw = ask(client, body, name="four")
    processed = ask(client, body | {"logprobs_mode": "processed"}, name="four")
    assert raw["token_ids"] == processed["token_ids"] == [[0, 1]]
    assert raw["logprobs"][0] == pytest.approx([-0.4402, -1.4402], abs=1e-4)
    assert processed["logprobs"][0] == pytest.approx([-0.3133, -1.3133], abs=1e-4)


def test_s62_where_a_place_counts_it_is_null(client):
    body = {"hidden": [1.0], "allowed_token_ids": [0], "logprob_token_ids": [3, 0], "logprobs_mode": "processed"}
    assert ask(client, body, name="four")["requested_logprobs"] == [[None, 0.0]]


def test_s62_log_probabilities_end_at_9999(client):
    answer = ask(client, {"hidden": [20_000.0], "logprob_token_ids": [3]}, name="four")
    assert answer["logprobs"] == [[0.0, -9999.0, -9999.0, -9999.0]]
    assert answer["requested_logprobs"] == [[-9999.0]]
    assert answer["logits"] == [[20_000.0, 0.0, -20_000.0, -40_000.0]]


def test_s61_a_bad_state_fails_alone(client, states):
    states[2, 3] = np.nan
    encoded = {"base64": base64.b64encode(states.tobytes()).decode(), "shape": [3, 8]}
    said = ask(client, {"hidden": encoded}, status=400)
    assert "2" in said and "NaN" in said
    marked = ask(client, {"hidden": encoded, "on_bad": "mark", "k": 2})
    assert marked["failed"] == [2]
    assert marked["token_ids"][2] == marked["logits"][2] == marked["logprobs"][2] == []
    assert marked["token_ids"][:2] == ask(client, {"hidden": states[:2].tolist(), "k": 2})["token_ids"]
    sampled = ask(client, {"hidden": encoded, "on_bad": "mark", "temperature": 0}, route="next")
    assert sampled["token_ids"][2] is sampled["logprobs"][2] is None


def test_without_log_probabilities(client):
    answer = ask(client, {"hidden": [1.0], "normalize": "none", "logprob_token_ids": [1]}, name="four")
    assert (answer["logprobs"], answer["logprob_stderr"]) == (None, None)
    assert answer["requested_logits"] == [[0.0]]
    assert "requested_logprobs" not in answer
    content = client.post("/v1/decoders/four/topk?normalize=none", content=np.float32(1).tobytes(), headers=RAW).content
    assert list(arrays_of(content)[1]) == ["token_ids", "logits", "counts"]


def test_words_of_tokens(client, states):
    answer = ask(client, {"hidden": states.tolist(), "k": 2, "with_tokens": True})
    assert answer["tokens"] == [[f"word{i}" for i in row] for row in answer["token_ids"]]
    sampled = ask(client, {"hidden": states.tolist(), "with_tokens": True, "seed": 1}, route="next")
    assert sampled["tokens"] == [f"word{i}" for i in sampled["token_ids"]]
    assert "tokens" in sampled["candidates"]
    said = ask(client, {"hidden": [1.0], "with_tokens": True}, name="four", status=400)
    assert "'four'" in said and "words.json" in said


def test_one_sampled_token_a_state(client, states):
    greedy = ask(client, {"hidden": states.tolist(), "temperature": 0, "k": 2}, route="next")
    best = ask(client, {"hidden": states.tolist(), "k": 2})
    assert greedy["token_ids"] == [row[0] for row in best["token_ids"]]
    assert greedy["logprobs"] == [row[0] for row in best["logprobs"]]
    assert greedy["candidates"]["token_ids"] == best["token_ids"]
    body = {"hidden": [states[0].tolist()] * 8, "seed": 3, "temperature": 1.5, "top_p": 0.9, "top_k": -1, "min_p": 0.01}
    drawn = ask(client, body, route="next")
    assert drawn["token_ids"] == ask(client, body, route="next")["token_ids"]
    assert len(set(drawn["token_ids"])) > 1
    content = client.post("/v1/decoders/d/next?temperature=0&k=2", content=states.tobytes(), headers=RAW).content
    _, arrays = arrays_of(content)
    assert arrays["sampled_token_ids"].tolist() == greedy["token_ids"]
    assert arrays["token_ids"].tolist() == best["token_ids"]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"k": 0}, 422, ["k", "0", "100"]),
        ({"k": -2}, 422, ["k", "-2"]),
        ({"k": 101}, 422, ["k", "101", "100"]),
        ({"k": 10**30}, 422, ["k"]),
        ({"k": 0.01}, 400, ["k"]),
        ({"k": "5"}, 400, ["k"]),
        ({"k": None}, 400, ["k"]),
        ({"k": True}, 400, ["k"]),
        ({"normalize": "softmax"}, 400, ["softmax", "estimate", "topk", "exact", "none"]),
        ({"mode": "fast"}, 400, ["fast", "walk", "screen"]),
        ({"recall": 1.5}, 422, ["recall", "1.5"]),
        ({"recall": "high"}, 400, ["recall"]),
        ({"logit_bias": "abc"}, 400, ["logit_bias"]),
        ({"logit_bias": {"abc": 1}}, 400, ["logit_bias", "abc"]),
        ({"logit_bias": {"-1": 1}}, 400, ["logit_bias", "-1"]),
        ({"logit_bias": {"61": 1}}, 400, ["logit_bias", "61", "0 to 60"]),
        ({"logit_bias": {"1": "x"}}, 400, ["logit_bias"]),
        ({"logit_bias": {"9" * 5000: 1}}, 400, ["logit_bias"]),
        ({"logit_bias": [1]}, 400, ["logit_bias"]),
        ({"allowed_token_ids": []}, 400, ["no token allowed", "row 0"]),
        ({"allowed_token_ids": [62]}, 400, ["allowed_token_ids", "62", "61"]),
        ({"allowed_token_ids": [-1]}, 400, ["allowed_token_ids", "-1"]),
        ({"allowed_token_ids": [10**40]}, 400, ["allowed_token_ids"]),
        ({"allowed_token_ids": [1.5]}, 400, ["allowed_token_ids"]),
        ({"allowed_token_ids": [5], "banned_token_ids": [5]}, 400, ["no token allowed"]),
        ({"banned_token_ids": list(range(61))}, 400, ["no token allowed"]),
        ({"banned_token_ids": [61]}, 400, ["banned_token_ids", "61"]),
        ({"banned_token_ids": "all"}, 400, ["banned_token_ids"]),
        ({"logprob_token_ids": [61]}, 400, ["logprob_token_ids", "61"]),
        ({"logprobs_mode": "cooked"}, 400, ["cooked", "processed"]),
        ({"on_bad": "skip"}, 400, ["skip", "mark"]),
        ({"with_tokens": 1}, 400, ["with_tokens"]),
        ({"temprature": 1}, 400, ["temprature"]),
        ({"top_k": 3}, 400, ["top_k"]),
        ({"hidden": []}, 400, ["$.hidden holds no state", "0", "8"]),
        ({"hidden": {"base64": "", "shape": [0, 8]}}, 400, ["$.hidden holds no state"]),
        ({"hidden": [[]]}, 400, ["hidden", "0", "8"]),
        ({"hidden": [1.0] * 7}, 400, ["hidden", "7", "8"]),
        ({"hidden": [[1.0] * 8, [1.0] * 9]}, 400, ["hidden[1]", "9"]),
        ({"hidden": [[1.0] * 7 + ["1"]]}, 400, ["hidden"]),
        ({"hidden": [[1.0] * 7 + [None]]}, 400, ["hidden"]),
        ({"hidden": [1.0] * 7 + [[1.0]]}, 400, ["hidden"]),
        ({"hidden": "abc"}, 400, ["hidden"]),
        ({"hidden": None}, 400, ["hidden"]),
        ({"hidden": 7}, 400, ["hidden"]),
        ({"hidden": [[0.0] * 8] * 9}, 413, ["9", "8", "query_batch_max"]),
        ({"hidden": {"base64": "AAAA"}}, 400, ["shape"]),
        ({"hidden": {"base64": "!", "shape": [1, 8]}}, 400, ["base64"]),
        ({"hidden": {"base64": "AAAA", "shape": [1, 8]}}, 400, ["3", "32"]),
        ({"hidden": {"base64": "AAAA", "shape": [1, 8], "dtype": "int8"}}, 400, ["int8", "bfloat16"]),
        ({"hidden": {"base64": "AAAA", "shape": [8, 1]}}, 400, ["shape", "[n, 8]"]),
        ({"hidden": {"base64": "AAAA", "shape": [2**62, 8]}}, 400, ["bytes"]),
        ({"hidden": {"base64": "AAAA", "shape": [-1, 8]}}, 400, ["shape"]),
        ({"hidden": {"base64": "AAAA", "shape": [1, 8], "size": 1}}, 400, ["size"]),
    ],
)
def test_what_is_refused(client, changes, status, words):
    said = ask(client, {"hidden": [0.0] * 8} | changes, status=status)
    for each in words:
        assert each in said, said
    assert ask(client, {"hidden": [0.0] * 8})["mode"] == "exact"


@pytest.mark.parametrize(
    ("changes", "status", "word"),
    [
        ({"top_k": 0.01}, 400, "top_k"),
        ({"top_k": -2}, 422, "top_k"),
        ({"top_p": 0}, 422, "top_p"),
        ({"top_p": 1.1}, 422, "top_p"),
        ({"min_p": -0.1}, 422, "min_p"),
        ({"temperature": -1}, 422, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"seed": -1}, 422, "seed"),
        ({"seed": 2**64}, 422, "seed"),
        ({"seed": 1.5}, 400, "seed"),
        ({"normalize": "exact"}, 400, "normalize"),
    ],
)
def test_what_sampling_refuses(client, changes, status, word):
    assert word in ask(client, {"hidden": [0.0] * 8} | changes, route="next", status=status)


MALFORMED = [
    b"",
    b"null",
    b"[]",
    b"{",
    b'"x"',
    b"\xff\xfe",
    b"[" * 10_000,
    b'{"hidden":' * 5000,
    b'{"hidden": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"hidden": [[NaN, 0, 0, 0, 0, 0, 0, 0]]}',
    b'{"hidden": [[Infinity, 0, 0, 0, 0, 0, 0, 0]]}',
    b'{"hidden": [[1e999, 0, 0, 0, 0, 0, 0, 0]]}',
    b'{"hidden": [[1e39, 0, 0, 0, 0, 0, 0, 0]]}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "recall": 1e999}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "recall": NaN}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "k": 1e999}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "logit_bias": {"1": 1e999}}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "logit_bias": {"1": NaN}}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "logit_bias": {"\\u0661": 1}}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "logit_bias": {"": 1}}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "allowed_token_ids": [1e999]}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "allowed_token_ids": [18446744073709551616]}',
    b'{"hidden": [[0, 0, 0, 0, 0, 0, 0, 0]], "k": 1' + b"0" * 5000 + b"}",
    b'{"hidden": {"base64": "\\ud800", "shape": [1, 8]}}',
    b'{"hidden": {"base64": "", "shape": []}}',
    b'{"hidden": {"base64": "", "shape": [0, 8]}}',
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
@pytest.mark.parametrize("route", ["topk", "next"])
def test_s47_malformed_bodies_never_fail_the_server(client, body, route):
    answer = client.post(f"/v1/decoders/d/{route}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in {400, 422}, answer.text
    assert answer.json()["status"]["error"]
    assert ask(client, {"hidden": [0.0] * 8, "k": 1})["token_ids"] == [[0]]


@pytest.mark.parametrize(
    ("query", "size", "status", "words"),
    [
        ("", 31, 400, ["31", "32"]),
        ("", 0, 400, ["0 bytes"]),
        ("dtype=float16", 8, 400, ["float16", "16"]),
        ("dtype=float8", 32, 400, ["float8", "bfloat16"]),
        ("k=0", 32, 422, ["k"]),
        ("k=0.01", 32, 400, ["k"]),
        ("k=", 32, 400, ["k"]),
        ("recall=nan", 32, 422, ["recall"]),
        ("recall=x", 32, 400, ["recall"]),
        ("limit=3", 32, 400, ["limit"]),
        ("with_tokens=true", 32, 400, ["with_tokens"]),
        ("normalize=softmax", 32, 400, ["softmax"]),
        ("logit_bias=abc", 32, 400, ["logit_bias", "abc"]),
        ("logit_bias=1:x", 32, 400, ["logit_bias"]),
        ("logit_bias=61:1", 32, 400, ["logit_bias", "61"]),
        ("allowed_token_ids=1,x", 32, 400, ["allowed_token_ids"]),
        ("allowed_token_ids=", 32, 400, ["no token allowed"]),
        ("allowed_token_ids=99", 32, 400, ["99"]),
        ("timeout=never", 32, 400, ["timeout"]),
        ("", 32 * 9, 413, ["9", "8"]),
    ],
)
def test_what_the_raw_form_refuses(client, query, size, status, words):
    answer = client.post(f"/v1/decoders/d/topk?{query}", content=bytes(size), headers=RAW)
    assert answer.status_code == status, answer.text
    for each in words:
        assert each in answer.json()["status"]["error"]


def test_raw_states_that_are_compressed_are_refused(client):
    headers = RAW | {"content-encoding": "gzip"}
    assert client.post("/v1/decoders/d/topk", content=bytes(32), headers=headers).status_code == 415
    headers = {"content-type": "text/plain"}
    assert client.post("/v1/decoders/d/topk", content=b"{}", headers=headers).status_code == 415


def test_many_entries_at_once_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("service.decoder_answers.ENTRIES_MAX", 100)
    with TestClient(create_app(Settings(data_dir=tmp_path), decoder_opener=open_fake_decoder)) as client:
        put_fake_decoder(client.app.state.parts.decoders, "d", WEIGHT)
        said = ask(client, {"hidden": [[0.0] * 8] * 3, "k": 50}, status=413)
        assert "150" in said and "100" in said
        assert len(ask(client, {"hidden": [[0.0] * 8], "k": 99})["token_ids"][0]) == 61


def test_unknown_decoders(client):
    assert "'none'" in ask(client, {"hidden": [0.0]}, name="none", status=404)
    for method, path in (("GET", "/v1/decoders/none"), ("DELETE", "/v1/admin/decoders/none")):
        answer = client.request(method, path)
        assert answer.status_code == 404
        assert "'none'" in answer.json()["status"]["error"]


def test_a_deadline(client, states):
    import threading

    client.head.blocked = threading.Event()
    try:
        answer = client.post("/v1/decoders/d/topk?timeout=0.05", json={"hidden": states.tolist()})
        assert answer.status_code == 408
    finally:
        client.head.blocked.set()
        client.head.blocked = None


def test_a_failure_of_ours_is_no_users_error(client, states, monkeypatch):
    found = client.head.topk(states, k=2)
    found.logits[0, 0] = np.nan
    monkeypatch.setattr(client.head, "topk", lambda *_, **__: found)
    assert client.post("/v1/decoders/d/topk", json={"hidden": states.tolist()}).status_code == 500


def test_what_is_found_damaged_is_shown(tmp_path, states):
    with TestClient(create_app(Settings(data_dir=tmp_path), decoder_opener=open_fake_decoder)) as client:
        head = put_fake_decoder(client.app.state.parts.decoders, "d", WEIGHT)
        head.damage = CorruptDecoderError(path=head.path / "links.npy", expected="1", found="2")
        said = ask(client, {"hidden": states.tolist()}, status=503)
        assert "links.npy" in said
        assert client.get("/v1/decoders").json()["decoders"][0]["state"] == "damaged"
        assert "links.npy" in client.get("/v1/decoders/d").json()["reason"]
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert list(ready.json()["decoders_damaged"]) == ["d"]
        assert "fullview_decoders_damaged 1.0" in client.get("/metrics").text


def test_what_a_decoder_says_of_itself(client):
    rows = client.get("/v1/decoders").json()["decoders"]
    assert [(row["name"], row["state"], row["vocab_size"], row["dim"]) for row in rows] == [
        ("d", "ready", 61, 8),
        ("four", "ready", 4, 1),
    ]
    info = client.get("/v1/decoders/d").json()
    assert info["weights_hash"] == client.head.layer.weights_hash()
    assert (info["builds"], info["device"], info["serve"], info["has_words"]) == (1, "cpu", None, True)
    assert info["repeats"]["logits"] == "identical"
    assert client.get("/v1/decoders/four").json()["has_words"] is False


def test_metrics_count_states_by_mode(tmp_path, states):
    with TestClient(create_app(Settings(data_dir=tmp_path), decoder_opener=open_fake_decoder)) as client:
        put_fake_decoder(client.app.state.parts.decoders, "d", WEIGHT)
        ask(client, {"hidden": states.tolist()})
        ask(client, {"hidden": states.tolist(), "mode": "walk"})
        ask(client, {"hidden": states.tolist(), "mode": "walk"}, route="next")
        ask(client, {"hidden": states.tolist(), "k": 0}, status=422)
        text = client.get("/metrics").text
        assert 'fullview_decoder_tokens_total{decoder="d",mode="exact"} 3.0' in text
        assert 'fullview_decoder_tokens_total{decoder="d",mode="walk"} 6.0' in text
        assert 'fullview_decoder_seconds_count{decoder="d",mode="walk"} 2.0' in text
        assert client.delete("/v1/admin/decoders/d").json() == {"deleted": True}
        assert 'decoder="d"' not in client.get("/metrics").text
