"""Decoder jobs that are refused at once: names, paths, shapes, options, malformed bodies; each says what was wrong."""

from __future__ import annotations

import numpy as np
import pytest
from decoder_application import WEIGHT, application, body_of, import_root, refused
from starlette.testclient import TestClient

from service.settings import Settings


@pytest.fixture
def client(settings):
    import_root(settings)
    with TestClient(application(settings)) as running:
        yield running


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """An application that no job ever reaches."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("refusing") / "data")
    import_root(settings)
    with TestClient(application(settings)) as running:
        yield running
        assert running.get("/v1/admin/builds").json() == {"builds": []}


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"name": ""}, 400, ["decoder name"]),
        ({"name": "a/b"}, 400, ["a/b"]),
        ({"name": ".."}, 400, [".."]),
        ({"name": "x" * 256}, 400, ["256"]),
        ({"name": 5}, 400, ["name"]),
        ({"weight": {}}, 400, ["weight", "path", "model"]),
        ({"weight": "good.npy"}, 400, ["weight"]),
        ({"weight": {"path": "none.npy"}}, 404, ["weight.path", "none.npy"]),
        ({"weight": {"path": "../good.npy"}}, 400, ["weight.path"]),
        ({"weight": {"path": "good.npy", "model": "m"}}, 400, ["model", "path"]),
        ({"weight": {"model": "none"}}, 404, ["weight.model"]),
        ({"weight": {"path": "good.npy", "tensor": "x"}}, 400, ["tensor"]),
        ({"weight": {"path": "good.npy", "dtype": "int8"}}, 400, ["int8", "bfloat16"]),
        ({"weight": {"path": "good.npy", "tenser": "x"}}, 400, ["tenser", "tensor"]),
        ({"weight": {"path": "flat.npy"}}, 400, ["flat.npy", "[20]"]),
        ({"weight": {"path": "notes.txt"}}, 400, ["notes.txt"]),
        ({"weight": {"path": "junk.npy"}}, 400, ["junk.npy"]),
        ({"weight": {"path": "junk.safetensors"}}, 400, ["junk.safetensors"]),
        ({"weight": {"path": "junk.gguf"}}, 400, ["junk.gguf"]),
        ({"weight": {"model": "junk"}}, 400, ["config.json"]),
        ({"weight": {"upload": "x"}}, 404, ["x"]),
        ({"bias": "none.npy"}, 404, ["bias.path"]),
        ({"bias": {"path": "short.npy"}}, 400, ["short.npy", "[19]", "20"]),
        ({"bias": 7}, 400, ["bias"]),
        ({"vocab_size": 21}, 400, ["21", "20"]),
        ({"vocab_size": 0}, 422, ["vocab_size"]),
        ({"vocab_size": 1.5}, 400, ["vocab_size"]),
        ({"scale": 0}, 422, ["scale"]),
        ({"scale": "big"}, 400, ["scale"]),
        ({"softcap": -1}, 422, ["softcap"]),
        ({"recall": 0}, 422, ["recall"]),
        ({"recall": 1.1}, 422, ["recall", "1.1"]),
        ({"recall": "high"}, 400, ["recall"]),
        ({"seed": -1}, 422, ["seed"]),
        ({"threads": 0}, 422, ["threads"]),
        ({"device": "tpu"}, 400, ["tpu", "cuda"]),
        ({"device": "cuda"}, 501, ["cuda", "cpu"]),
        ({"calibration": {"path": "wide.npy"}}, 400, ["wide.npy", "7", "4"]),
        ({"calibration": {"path": "few.npy"}}, 400, ["few.npy", "199", "200"]),
        ({"calibration": {"path": "none.npy"}}, 404, ["calibration.path"]),
        ({"calibration": {"path": "junk.npy"}}, 400, ["junk.npy"]),
        ({"calibration": "states.npy"}, 400, ["calibration"]),
        ({"serve": "none"}, 404, ["serve"]),
        ({"serve": "good.npy"}, 400, ["serve", "config.json", ".gguf"]),
        ({"serve": "bare"}, 400, ["serve", "bare", "tokenizer.json"]),
        ({"serve": "long"}, 400, ["serve", "long", "7", "4"]),
        ({"serve": "junk.gguf"}, 400, ["junk.gguf"]),
        ({"words": {"path": "none.json"}}, 404, ["words.path"]),
        ({"words": {"path": "junk.json"}}, 400, ["junk.json"]),
        ({"words": {"path": "many.json"}}, 400, ["many.json", "21 words", "20 tokens", "another model"]),
        ({"words": {"path": "exact.json"}, "vocab_size": 19}, 400, ["exact.json", "20 words", "19 tokens"]),
        ({"mode": "append"}, 400, ["append"]),
        ({"calibratoin": {}}, 400, ["calibratoin", "calibration"]),
    ],
)
def test_what_can_be_refused_at_once(refusing, changes, status, words):
    refused(refusing, body_of() | changes, status, *words)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{", "[" * 10_000, '{"name": "good", "weight": {"path": "good.npy"}, "scale": 1e999}']
)
def test_s47_malformed_bodies_never_fail_the_server(refusing, text):
    answer = refusing.post("/v1/admin/decoders", content=text, headers={"content-type": "application/json"})
    assert answer.status_code in {400, 422}, answer.text


@pytest.mark.parametrize("member", ["weight", "calibration", "bias", "words", "serve", "model"])
def test_s50_links_that_lead_out_are_refused(client, settings, tmp_path, member):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    np.save(outside / "a.npy", WEIGHT)
    (settings.import_folder / "out.npy").symlink_to(outside / "a.npy")
    (settings.import_folder / "out").symlink_to(outside)
    path = {"path": "out.npy"}
    changes = {
        "weight": {"weight": path},
        "calibration": {"calibration": path},
        "bias": {"bias": "out.npy"},
        "words": {"words": path},
        "serve": {"serve": "out"},
        "model": {"weight": {"model": "out"}},
    }[member]
    refused(client, body_of() | changes, 400, "link that leads out")
