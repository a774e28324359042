"""`fullview decoder`: build, topk, inspect; refusals, signals, and what a build that was ended leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from decoder_layers import layer_and_states
from live import wait_for

from decoder import DecoderOptions, open_decoder
from service import cli
from service.build_progress import BuildProgressBar
from service.decoder_cli import BUILD_DEFAULT


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """weight.npy (800 tokens of 16), bias.npy, states.npy, lists of words, asked.npy, and `built` from them."""
    place = tmp_path_factory.mktemp("decoder_cli")
    weight, bias, hidden = layer_and_states(rows=800, dim=16, states=500)
    np.save(place / "weight.npy", weight)
    np.save(place / "bias.npy", bias)
    np.save(place / "states.npy", hidden[:400])
    np.save(place / "asked.npy", hidden[400:])
    for name, count in (("words.json", 800), ("many.json", 801), ("few.json", 719)):
        (place / name).write_text(json.dumps([f"w{i}" for i in range(count)]))
    command = ["build", place / "weight.npy", place / "built", "--bias", place / "bias.npy", "--json"]
    assert cli.main(["decoder", *map(str, command)]) == 0
    return place


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_topk(place, capsys):
    asked = np.load(place / "asked.npy")
    built = place / "built"
    words = place / "words.json"
    code, out, err = run(
        capsys, "decoder", "topk", built, place / "asked.npy", "-k", 3, "--first", 2, "--mode", "walk", "--json",
        "--words", words,
    )  # fmt: skip
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    with open_decoder(built) as head:
        expected = head.topk(asked[:2], k=3, mode="walk")
    assert [row["token_ids"] for row in rows] == expected.token_ids.tolist()
    assert [row["logits"] for row in rows] == expected.logits.tolist()
    assert rows[0]["tokens"] == [f"w{i}" for i in rows[0]["token_ids"]]
    assert (rows[0]["mode"], rows[0]["state"], rows[1]["failed"]) == ("walk", 0, False)
    code, out, _ = run(capsys, "decoder", "topk", built, place / "asked.npy", "--first", 2, "--words", words)
    assert code == 0
    assert f"'w{expected.token_ids[0, 0]}'" in out
    assert "2 states" in out
    best = int(expected.token_ids[0, 0])
    code, out, _ = run(
        capsys, "decoder", "topk", built, place / "asked.npy", "--first", 1, "--json", "--banned", best,
        "--logit-bias", "5:100", "--normalize", "none",
    )  # fmt: skip
    assert code == 0
    row = json.loads(out)
    assert row["token_ids"][0] == 5 and best not in row["token_ids"]
    assert "logprobs" not in row


def test_words_that_are_clearly_too_few_are_a_warning(place, capsys):
    asked = ("decoder", "topk", place / "built", place / "asked.npy", "--first", 1, "--json", "--words")
    assert run(capsys, *asked, place / "words.json")[2] == ""
    code, out, err = run(capsys, *asked, place / "few.json")
    assert code == 0 and "tokens" in json.loads(out)
    assert "few.json has 719 words for 800 tokens" in err


def test_inspect(place, capsys):
    code, out, _ = run(capsys, "decoder", "inspect", place / "built", "--json")
    assert code == 0
    assert json.loads(out)["vocab_size"] == 800
    code, out, _ = run(capsys, "decoder", "inspect", place / "built")
    assert code == 0
    assert "recall" in out and "800" in out


def test_build_for_people(place, tmp_path, capsys):
    root = place
    command = ("decoder", "build", root / "weight.npy")
    bias, states = ("--bias", root / "bias.npy"), ("--calibration", root / "states.npy")
    code, out, err = run(capsys, *command, tmp_path / "d", *bias, *states, "--recall", 0.95)
    assert (code, err) == (0, "")
    assert "800 tokens of dimension 16 (float32), built in" in out
    assert "400 states" in out and "operating points" in out
    code, out, err = run(capsys, *command, tmp_path / "other")
    assert code == 0
    assert "no states were given" in out and "fullview: no calibration states were given" in err
    code, out, err = run(capsys, "decoder", "inspect", tmp_path / "other")
    assert "fullview: no calibration states were given" in err
    code, _, err = run(capsys, "decoder", "build", root / "weight.npy", tmp_path / "d")
    assert code == 1
    assert "--replace" in err
    assert run(capsys, "decoder", "build", root / "weight.npy", tmp_path / "d", "--replace")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"d", "other"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["build", "{root}/none.npy", "{out}"], 1, ["none.npy"]),
        (["build", "{root}/weight.npy", "{out}", "--recall", "2"], 2, ["recall", "2"]),
        (["build", "{root}/weight.npy", "{out}", "--vocab-size", "9999"], 2, ["--vocab-size", "9999", "800"]),
        (["build", "{root}/weight.npy", "{out}", "--scale", "0"], 2, ["--scale"]),
        (["build", "{root}/weight.npy", "{out}", "--tensor", "x"], 1, ["--tensor x"]),
        (["build", "{root}/weight.npy", "{out}", "--bias", "{root}/states.npy"], 1, ["bias"]),
        (["build", "{root}/weight.npy", "{out}", "--calibration", "{root}/none.npy"], 1, ["none.npy"]),
        (["build", "{root}/weight.npy", "{out}", "--sed", "1"], 2, ["--sed"]),
        (["topk", "{out}", "{asked}"], 1, ["out"]),
        (["topk", "{decoder}", "{root}/none.npy"], 1, ["none.npy"]),
        (["topk", "{decoder}", "{asked}", "-k", "0"], 2, ["k", "0"]),
        (["topk", "{decoder}", "{asked}", "-k", "0.01"], 2, ["-k", "integer"]),
        (["topk", "{decoder}", "{asked}", "--mode", "fast"], 2, ["--mode", "fast", "walk"]),
        (["topk", "{decoder}", "{asked}", "--normalize", "sum"], 2, ["--normalize", "sum"]),
        (["topk", "{decoder}", "{asked}", "--logit-bias", "abc"], 2, ["--logit-bias", "abc"]),
        (["topk", "{decoder}", "{asked}", "--allowed", "800"], 1, ["800"]),
        (["topk", "{decoder}", "{root}/bias.npy"], 1, ["bias.npy"]),
        (["topk", "{decoder}", "{asked}", "--words", "{root}/weight.npy"], 1, ["weight.npy"]),
        (["topk", "{decoder}", "{asked}", "--words", "{root}/many.json"], 1, ["many.json", "801 words", "800 tokens"]),
        (["inspect", "{out}"], 1, ["out"]),
    ],
)
def test_what_the_command_refuses(place, tmp_path, capsys, arguments, code, words):
    names = {
        "root": place,
        "out": tmp_path / "out",
        "asked": place / "asked.npy",
        "decoder": place / "built",
    }
    filled = [argument.format(**names) for argument in arguments]
    found, _, err = run(capsys, "decoder", *filled)
    assert found == code, err
    for word in words:
        assert word in err, err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
    found, out, err = run(capsys, "decoder", *filled, "--json")
    assert (found, err) == (code, "")
    assert json.loads(out)["error"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_a_build_and_leaves_nothing(place, tmp_path, capsys, monkeypatch, number, code):
    monkeypatch.setattr(BuildProgressBar, "show", lambda self, event: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    found, out, err = run(capsys, "decoder", "build", place / "weight.npy", tmp_path / "out")
    assert (found, out) == (code, "")
    assert "cancelled" in err
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is before


def test_defaults_are_those_of_the_options(capsys):
    _, out, _ = run(capsys, "decoder", "build", "--help")
    for name, default in BUILD_DEFAULT.items():
        assert getattr(DecoderOptions(), name) == default
    for name in ("recall", "seed", "threads", "vocab-size", "softcap", "calibration", "replace"):
        assert f"--{name}" in out
    assert "decoder" in run(capsys, "--help")[1]


def test_a_state_with_nan(place, tmp_path, capsys):
    states = np.load(place / "asked.npy")[:3]
    states[1, 0] = np.nan
    np.save(tmp_path / "bad.npy", states)
    code, _, err = run(capsys, "decoder", "topk", place / "built", tmp_path / "bad.npy")
    assert code == 1
    assert "row 1" in err and "--on-bad mark" in err
    code, out, _ = run(capsys, "decoder", "topk", place / "built", tmp_path / "bad.npy", "--on-bad", "mark", "--json")
    assert code == 0
    assert [json.loads(line)["failed"] for line in out.splitlines()] == [False, True, False]


def test_a_build_as_a_process_that_is_ended_leaves_nothing(tmp_path):
    weight, _, _ = layer_and_states(rows=40_000, dim=64, states=1, seed=3)
    np.save(tmp_path / "big.npy", weight)
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "decoder",
        "build",
        str(tmp_path / "big.npy"),
        str(tmp_path / "out"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as build:
        wait_for(lambda: build.poll() is not None or len(list(tmp_path.iterdir())) > 1, 60)
        build.send_signal(signal.SIGTERM)
        _, errors = build.communicate(timeout=30)
    assert build.returncode == 143, errors
    assert "cancelled" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["big.npy"]
