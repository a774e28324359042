"""Decoders built over HTTP, by command line and from Python, with real builds in real processes: the same answers."""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from decoder_layers import PATIENCE_S, arrays_of, ended, layer_and_states
from live import live_server, wait_for
from starlette.testclient import TestClient

from decoder import DecoderOptions, OutputLayer, build_decoder, open_decoder
from decoder.exact import exact_logits
from service import cli
from service.app import create_app
from service.settings import Settings

RAW = {"content-type": "application/octet-stream"}
ROWS, DIM, SEED = 3000, 24, 7


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """import/: weight.npy, bias.npy, states.npy, words.json; asked.npy: states that no build sees."""
    place = tmp_path_factory.mktemp("decoders")
    weight, bias, hidden = layer_and_states()
    root = place / "data" / "import"
    root.mkdir(parents=True)
    np.save(root / "weight.npy", weight.astype(np.float16))
    np.save(root / "bias.npy", bias)
    np.save(root / "states.npy", hidden[:1400].astype(np.float16))
    (root / "words.json").write_text(json.dumps([f"w{i}" for i in range(ROWS)]))
    np.save(place / "asked.npy", hidden[1400:])
    return place


@pytest.fixture(scope="module")
def client(place):
    with TestClient(create_app(Settings(data_dir=place / "data"))) as running:
        yield running


@pytest.fixture(scope="module")
def asked(place):
    return np.load(place / "asked.npy")


@pytest.fixture(scope="module")
def by_http(client):
    body = {
        "name": "layer",
        "weight": {"path": "weight.npy"},
        "bias": "bias.npy",
        "softcap": 30.0,
        "calibration": {"path": "states.npy"},
        "recall": 0.98,
        "seed": SEED,
    }
    answer = client.post("/v1/admin/decoders", json=body)
    assert answer.status_code == 202, answer.text
    job = answer.json()["job"]
    state = ended(client, job)
    assert state["state"] == "done", state
    return state


@pytest.fixture(scope="module")
def by_command(place):
    root, out = place / "data" / "import", place / "by_command"
    command = ["decoder", "build", root / "weight.npy", out, "--bias", root / "bias.npy", "--softcap", 30]
    command += ["--calibration", root / "states.npy", "--recall", 0.98, "--seed", SEED, "--json"]
    assert cli.main([str(part) for part in command]) == 0
    return out


@pytest.fixture(scope="module")
def by_python(place):
    root, out = place / "data" / "import", place / "by_python"
    layer = OutputLayer(np.load(root / "weight.npy"), np.load(root / "bias.npy"), softcap=30.0)
    build_decoder(layer, out, calibration=np.load(root / "states.npy"), options=DecoderOptions(recall=0.98, seed=SEED))
    return out


def bits_of(found, names=("token_ids", "logits", "logprobs", "logprob_stderr", "counts")):
    return [getattr(found, name).tobytes() for name in names]


@pytest.mark.parametrize("mode", ["walk", "screen", "exact"])
def test_built_over_http_by_command_and_from_python_they_answer_the_same(
    client, by_http, by_command, by_python, asked, mode
):
    with open_decoder(by_python) as head, open_decoder(by_command) as other:
        expected = head.topk(asked, k=20, mode=mode)
        assert bits_of(other.topk(asked, k=20, mode=mode)) == bits_of(expected)
        assert other.layer.weights_hash() == head.layer.weights_hash()
    answer = client.post(f"/v1/decoders/layer/topk?k=20&mode={mode}", content=asked.tobytes(), headers=RAW)
    assert answer.status_code == 200, answer.text
    arrays = arrays_of(answer.content)
    for name in ("token_ids", "logits", "logprobs", "logprob_stderr", "counts"):
        assert arrays[name].tobytes() == getattr(expected, name).tobytes(), name
    assert client.get("/v1/decoders/layer").json()["weights_hash"] == head.layer.weights_hash()


def test_json_carries_the_same_bits(client, by_http, by_python, asked):
    body = {"hidden": asked[:5].tolist(), "k": 7, "mode": "walk"}
    answer = client.post("/v1/decoders/layer/topk", json=body).json()
    with open_decoder(by_python) as head:
        expected = head.topk(asked[:5], k=7, mode="walk")
    assert np.array(answer["token_ids"], np.int32).tobytes() == expected.token_ids.tobytes()
    assert np.array(answer["logits"], np.float32).tobytes() == expected.logits.tobytes()
    assert np.array(answer["logprobs"], np.float32).tobytes() == expected.logprobs.tobytes()
    assert answer["mode"] == "walk"


def test_sampling_is_the_librarys(client, by_http, by_python, asked):
    from decoder.sampling import SamplingOptions

    body = {"hidden": asked[:6].tolist(), "seed": 5, "temperature": 1.3, "top_p": 0.95, "mode": "walk"}
    answer = client.post("/v1/decoders/layer/next", json=body).json()
    with open_decoder(by_python) as head:
        options = SamplingOptions(temperature=1.3, top_p=0.95, seed=5)
        expected = head.sample(asked[:6], sampling=options, mode="walk")
    assert answer["token_ids"] == expected.token_ids.tolist()
    assert np.array(answer["logprobs"], np.float32).tobytes() == expected.logprobs.tobytes()


def test_s64_an_answer_does_not_depend_on_the_batch(client, by_http, asked):
    state = asked[3]
    for mode in ("walk", "screen", "exact"):
        seen = set()
        for size, at in ((1, 0), (2, 1), (7, 3), (32, 0), (64, 63)):
            batch = asked[:size].copy()
            batch[at] = state
            raw = client.post(f"/v1/decoders/layer/topk?k=10&mode={mode}", content=batch.tobytes(), headers=RAW).content
            arrays = arrays_of(raw)
            seen.add((arrays["token_ids"][at].tobytes(), arrays["logits"][at].tobytes()))
        assert len(seen) == 1, mode


def test_s64_answers_stay_the_same_while_44_others_are_asked(client, by_http, asked):
    def ask(batch):
        url = "/v1/decoders/layer/topk?k=10&mode=walk"
        arrays = arrays_of(client.post(url, content=batch.tobytes(), headers=RAW).content)
        return arrays["token_ids"][0].tobytes(), arrays["logits"][0].tobytes()

    alone = ask(asked[:1])
    batches = [asked[: 1 + number % 7] for number in range(50)]
    with ThreadPoolExecutor(44) as crowd:
        assert set(crowd.map(ask, batches)) == {alone}


def test_s66_s67_constraints(client, by_http, by_python, asked):
    def ask(**changes):
        answer = client.post("/v1/decoders/layer/topk", json={"hidden": asked[0].tolist(), "k": 3} | changes)
        assert answer.status_code == 200, answer.text
        return answer.json()

    with open_decoder(by_python) as head:
        logits = exact_logits(head.layer, asked[:1])[0]
    best, worst = int(np.argmax(logits)), int(np.argmin(logits))
    plain = ask()
    assert plain["token_ids"][0][0] == best
    assert best not in ask(banned_token_ids=[best])["token_ids"][0]
    assert best not in ask(logit_bias={str(best): -100})["token_ids"][0]
    boosted = ask(logit_bias={str(worst): 100})
    assert boosted["token_ids"][0][0] == worst
    only = ask(allowed_token_ids=[5], normalize="exact")
    assert (only["token_ids"], len(only["logprobs"][0])) == ([[5]], 1)
    assert ask(allowed_token_ids=[5], logprobs_mode="processed")["logprobs"] == [[0.0]]
    asked_for = ask(logprob_token_ids=[5], normalize="exact")
    assert asked_for["requested_logprobs"][0][0] == only["logprobs"][0][0]


def test_s61_a_bad_state_fails_alone(client, by_http, asked):
    states = asked[:4].copy()
    states[2, 0] = np.nan
    url = "/v1/decoders/layer/topk?k=3&mode=walk"
    answer = client.post(url, content=states.tobytes(), headers=RAW)
    assert answer.status_code == 400
    assert "2" in answer.json()["status"]["error"]
    marked = arrays_of(client.post(url + "&on_bad=mark", content=states.tobytes(), headers=RAW).content)
    others = arrays_of(client.post(url, content=states[[0, 1, 3]].tobytes(), headers=RAW).content)
    assert marked["counts"].tolist() == [3, 3, 0, 3]
    for name in ("token_ids", "logits", "logprobs"):
        assert marked[name][[0, 1, 3]].tobytes() == others[name].tobytes()


def test_what_a_decoder_says_of_itself(client, by_http):
    info = client.get("/v1/decoders/layer").json()
    assert (info["state"], info["vocab_size"], info["dim"], info["builds"]) == ("ready", ROWS, DIM, 1)
    assert info["has_words"] is True
    assert info["promise"]["recall"] == 0.98
    assert info["promise"]["points"]["walk"]["recall"]["10"] > 0.9
    assert 'fullview_resident_bytes{part="decoder_links"}' in client.get("/metrics").text
    assert info["repeats"]["logits"] == "identical"
    assert by_http["report"]["vocab_size"] == ROWS
    answer = client.post("/v1/decoders/layer/topk", json={"hidden": [0.0] * DIM, "k": 2, "with_tokens": True}).json()
    assert answer["tokens"] == [[f"w{i}" for i in answer["token_ids"][0]]]


def test_the_jobs_phases_are_reported(by_http):
    assert by_http["phase"] is not None
    assert by_http["done"] == by_http["total"]
    assert by_http["peak_memory_bytes"] > 0


def test_s61_nan_in_a_weight_fails_the_job_and_names_the_token(client, place):
    weight, _, _ = layer_and_states(rows=100)
    weight[17, 3] = np.nan
    np.save(place / "data" / "import" / "nan.npy", weight)
    answer = client.post("/v1/admin/decoders", json={"name": "nan", "weight": {"path": "nan.npy"}})
    job = answer.json()["job"]
    state = ended(client, job)
    assert (state["state"], state["error"]["code"]) == ("failed", "bad_weights")
    assert "17" in state["error"]["message"]
    assert client.get("/v1/decoders/nan").status_code == 404
    assert list((place / "data" / "building").iterdir()) == []


def test_s58_padding_rows_are_no_tokens(client, place):
    weight = np.random.default_rng(58).standard_normal((64, 8)).astype(np.float32)
    weight[61:] *= 1000
    np.save(place / "data" / "import" / "padded.npy", weight)
    body = {"name": "padded", "weight": {"path": "padded.npy"}, "vocab_size": 61}
    job = client.post("/v1/admin/decoders", json=body).json()["job"]
    state = ended(client, job)
    assert state["state"] == "done"
    # Beside it lie words of the other layer.
    assert any("words.json has 3,000 words, the layer has 61 tokens" in warning for warning in state["warnings"])
    assert client.get("/v1/decoders/padded").json()["has_words"] is False
    answer = client.post("/v1/decoders/padded/topk", json={"hidden": [0.0] * 8, "k": 64, "normalize": "exact"}).json()
    assert sorted(answer["token_ids"][0]) == list(range(61))
    assert np.allclose(answer["logprobs"], -4.110874, atol=1e-6)
    for member in ({"allowed_token_ids": [62]}, {"logit_bias": {"62": 1}}, {"logprob_token_ids": [62]}):
        refused = client.post("/v1/decoders/padded/topk", json={"hidden": [0.0] * 8} | member)
        assert refused.status_code == 400
        assert "62" in refused.json()["status"]["error"] and "61" in refused.json()["status"]["error"]


def test_a_byte_that_changed_on_the_disk_is_found_and_named(tmp_path):
    settings = Settings(data_dir=tmp_path / "data")
    settings.import_folder.mkdir(parents=True)
    np.save(settings.import_folder / "small.npy", layer_and_states(rows=100, dim=16)[0])
    with TestClient(create_app(settings)) as client:
        job = client.post("/v1/admin/decoders", json={"name": "d", "weight": {"path": "small.npy"}}).json()["job"]
        assert ended(client, job)["state"] == "done"
        assert client.post("/v1/decoders/d/topk", json={"hidden": [0.0] * 16}).status_code == 200
    (weights,) = (settings.data_dir / "decoders").glob("*/head/weights.npy")
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with TestClient(create_app(settings)) as client:
        wait_for(lambda: client.get("/readyz").status_code == 200, 30)
        answer = client.post("/v1/decoders/d/topk", json={"hidden": [0.0] * 16})
        assert (answer.status_code, answer.json()["code"]) == (503, "damaged")
        assert "weights.npy: expected xxh3 " in answer.json()["status"]["error"]
        assert client.delete("/v1/admin/decoders/d").json() == {"deleted": True}
        assert list((settings.data_dir / "decoders").iterdir()) == []


# --- a server as a process ----------------------------------------------------


def big_layer(root: Path) -> None:
    weight, _, hidden = layer_and_states(rows=40_000, dim=64, states=4000, seed=3)
    root.mkdir(parents=True, exist_ok=True)
    np.save(root / "big.npy", weight)
    np.save(root / "big_states.npy", hidden)


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def test_s14_a_crash_leaves_the_old_decoder_or_nothing(tmp_path):
    data_dir = tmp_path / "data"
    root = data_dir / "import"
    big_layer(root)
    np.save(root / "small.npy", layer_and_states(rows=200, dim=64)[0])
    small = {"weight": {"path": "small.npy"}}
    large = {"weight": {"path": "big.npy"}, "calibration": {"path": "big_states.npy"}}
    question = {"hidden": [0.5] * 64, "k": 5, "mode": "exact"}

    def submit(server, **body):
        answer = server.client.post("/v1/admin/decoders", json=body)
        assert answer.status_code == 202, answer.text
        return answer.json()["job"]

    with live_server(data_dir) as server:
        assert server.wait_job(submit(server, name="old", **small), PATIENCE_S)["state"] == "done"
        expected = server.client.post("/v1/decoders/old/topk", json=question).json()
        job = submit(server, name="old", mode="replace", **large)
        queued = submit(server, name="new", **small)
        wait_for(lambda: server.job(job)["phase"] is not None and server.job(job)["done"] > 0, PATIENCE_S)
        workers = children_of(server.process.pid)
        server.kill()
    assert workers
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers), 10)
    assert list((data_dir / "building").iterdir())
    with live_server(data_dir) as server:
        assert server.job(job)["state"] == "interrupted"
        assert list((data_dir / "building").glob(f"{job}*")) == []
        again = server.client.post("/v1/decoders/old/topk", json=question).json()
        assert (again["token_ids"], again["logits"]) == (expected["token_ids"], expected["logits"])
        assert server.wait_job(queued, PATIENCE_S)["state"] == "done"
        assert len(list((data_dir / "decoders").iterdir())) == 2
        assert server.client.post(f"/v1/admin/builds/{job}/restart").status_code == 202
        wait_for(lambda: server.job(job)["phase"] is not None, PATIENCE_S)
        begun = time.monotonic()
        server.client.post(f"/v1/admin/builds/{job}/cancel")
        assert server.wait_job(job)["state"] == "cancelled"
        assert time.monotonic() - begun < 5
        assert list((data_dir / "building").iterdir()) == []
        assert server.terminate() == 0
        assert "Traceback" not in server.errors
