"""Models that completions run, loaded in the background: once, one at a time, in nobody's way, or not at all."""

from __future__ import annotations

import logging
import sys
import threading
import types

import pytest
from decoder_application import WEIGHT, WORKER
from fake_decoder import open_fake_decoder, put_fake_decoder
from fake_index import open_fake
from live import wait_for
from starlette.testclient import TestClient

from index.errors import SourceError
from service.app import create_app
from service.settings import Settings
from service.settings_cli import with_setting_flags


class Library:
    """Stands in for service.text.model. go: loads wait for it; loads: names, in their order."""

    def __init__(self):
        self.go, self.loads, self.running, self.most = threading.Event(), [], 0, 0
        self.go.set()

    def load_text_model(self, path):
        self.running += 1
        self.most = max(self.most, self.running)
        self.loads.append(path.name)
        self.go.wait(20)
        self.running -= 1
        if path.name == "broken":
            raise SourceError(f"{path}: its tokenizer cannot be read")
        return f"model {path.name}"


@pytest.fixture
def library(settings, monkeypatch):
    for name in ("one", "two", "broken"):
        (settings.import_folder / name).mkdir(parents=True)
    library = Library()
    module = types.SimpleNamespace(load_text_model=library.load_text_model)
    monkeypatch.setitem(sys.modules, "service.text.model", module)
    yield library
    library.go.set()


def application(settings, opener=open_fake, decoder_opener=open_fake_decoder):
    return TestClient(create_app(settings, opener=opener, decoder_opener=decoder_opener, worker_command=WORKER))


def put(client, *names):
    for name in names:
        put_fake_decoder(client.app.state.parts.decoders, name, WEIGHT, words='["a"]', serve=name)


def text_of(client, name):
    lease = client.app.state.parts.decoders.lease(name)
    try:
        return lease.text
    finally:
        lease.release()


def test_a_published_decoder_s_model_is_loaded_before_anybody_asks(settings, library):
    with application(settings) as client:
        put(client, "one")
        wait_for(lambda: library.loads == ["one"], 10)
        assert text_of(client, "one") == "model one"
        put_fake_decoder(client.app.state.parts.decoders, "plain", WEIGHT)
    assert library.loads == ["one"]


def test_one_model_at_a_time_and_nobody_else_waits(settings, library):
    library.go.clear()
    with application(settings) as client:
        put(client, "one", "two")
        wait_for(lambda: library.loads == ["one"], 10)
        assert client.get("/readyz").status_code == 200
        answer = client.post("/v1/decoders/one/topk", json={"hidden": [1.0] * 4, "k": 1, "with_tokens": True})
        assert answer.status_code == 200, answer.text
        answers = []
        asking = threading.Thread(target=lambda: answers.append(text_of(client, "one")))
        asking.start()
        assert not answers
        library.go.set()
        asking.join(10)
        assert answers == ["model one"]
        wait_for(lambda: library.loads == ["one", "two"], 10)
    assert library.most == 1


def test_models_are_loaded_when_a_server_starts_but_after_everything_else(settings, library):
    with application(settings.model_copy(update={"preload_models": False})) as client:
        put(client, "one")
    assert library.loads == []
    go = threading.Event()

    def slow(path):
        go.wait(20)
        return open_fake_decoder(path)

    with application(settings, decoder_opener=slow) as client:
        assert client.get("/readyz").status_code == 503
        assert library.loads == []
        go.set()
        wait_for(lambda: library.loads == ["one"], 10)
        assert client.get("/readyz").status_code == 200


def test_a_model_that_cannot_be_loaded_is_logged_and_told_again(settings, library, caplog):
    caplog.set_level(logging.INFO, logger="fullview.decoders")
    with application(settings) as client:
        put(client, "broken", "one")
        wait_for(lambda: library.loads == ["broken", "one"], 10)
        wait_for(lambda: "decoder one: its model is there" in caplog.text, 10)
        assert "no model was loaded in the background: Decoder 'broken' runs the model 'broken'" in caplog.text
        answer = client.post("/v1/completions", json={"model": "broken", "prompt": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_unreadable")
        assert client.get("/readyz").json()["decoders_damaged"] == {}


def test_a_decoder_that_is_deleted_before_its_turn_is_not_loaded(settings, library):
    library.go.clear()
    with application(settings) as client:
        put(client, "one", "two")
        wait_for(lambda: library.loads == ["one"], 10)
        assert client.delete("/v1/admin/decoders/two").json() == {"deleted": True}
        assert client.delete("/v1/admin/decoders/one").json() == {"deleted": True}
        library.go.set()
        wait_for(lambda: list((settings.data_dir / "decoders").iterdir()) == [], 10)
    assert library.loads == ["one"]


def test_a_server_that_ends_waits_for_the_load_that_is_under_way_and_begins_no_other(settings, library):
    library.go.clear()
    with application(settings) as client:
        put(client, "one", "two")
        wait_for(lambda: library.loads == ["one"], 10)
        threading.Timer(0.5, library.go.set).start()
    assert (library.loads, library.running) == (["one"], 0)


def test_loading_can_be_turned_off(settings, library):
    with application(settings.model_copy(update={"preload_models": False})) as client:
        put(client, "one")
        assert not any(thread.name == "fullview-model-loader" for thread in threading.enumerate())
        assert text_of(client, "one") == "model one"


@pytest.mark.parametrize(
    ("flags", "value"), [([], None), (["--no-preload-models"], False), (["--preload-models"], True)]
)
def test_the_setting_is_a_flag_with_two_forms(flags, value):
    import typer
    from typer.testing import CliRunner

    seen = []
    app = typer.Typer()
    app.command()(with_setting_flags(lambda *, flags: seen.append(flags["preload_models"])))
    assert CliRunner().invoke(app, flags).exit_code == 0
    assert seen == [value] and Settings().preload_models is True
