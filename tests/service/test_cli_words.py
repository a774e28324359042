"""What the command line says: refusals in the words of its flags, short tables, warnings, and how it is stopped."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from index.operating_points import OperatingPoint, StopByError
from service import cli
from service.build_progress import BuildProgressBar
from service.flags import in_flags
from service.stopping import stop_on_signals
from service.tables import near_promise


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """a.npy: 1,500 rows of 16; index: a graph of 1 bit built from it, whose points do not reach 0.9999."""
    place = tmp_path_factory.mktemp("words")
    np.save(place / "a.npy", np.random.default_rng(0).standard_normal((1500, 16)).astype(np.float32))
    options = ["--preview", "graph", "--bits", "1", "--memory-budget", "1/4"]
    assert cli.main(["build", str(place / "a.npy"), str(place / "index"), *options, "--json"]) == 0
    return place


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    "flags",
    [
        ("--seed", "-1"),
        ("--seed", "99999999999999999999"),
        ("--threads", "-2"),
        ("--recall", "nan"),
        ("--on-bad-rows", "ignore"),
        ("--memory-budget", "lots"),
        ("--bits", "3"),
        ("--bits", "²"),
    ],
)
def test_options_are_refused_in_a_sentence_before_anything_is_opened(folder, capsys, flags):
    code, out, err = run(capsys, "build", folder / "none.npy", folder / "x", *flags)
    assert (code, out) == (2, "")
    assert err.startswith(f"fullview: {flags[0]} is ") and "needed" in err and err.count("\n") == 1


@pytest.mark.parametrize("flags", [("-k", 0), ("--beam", 0), ("--recall", "nan"), ("--io-mode", "x"), ("--rerank", -1)])
def test_options_of_a_query_too(folder, capsys, flags):
    code, _, err = run(capsys, "query", folder / "none", folder / "none.npy", *flags)
    assert code == 2
    assert f"{flags[0].strip('-').replace('io-mode', '--io-mode')} is" in err


@pytest.mark.parametrize("replace", [(), ("--replace",)])
def test_only_an_index_is_replaced(folder, capsys, replace):
    for out in (folder, folder / "a.npy"):
        code, _, err = run(capsys, "build", folder / "a.npy", out, *replace)
        assert code == 1
        assert "replaces only an index: choose another OUT" in err
    assert (folder / "a.npy").is_file()


def test_the_words_are_flags(folder, capsys):
    _, _, err = run(capsys, "build", folder / "a.npy", folder / "index")
    assert "--replace" in err and "replace=" not in err
    sentences = {
        "x exists, or build with replace=True.": "x exists, or build with --replace.",
        "memory_budget is 1.0 MB. Ask for memory_budget=16.5 or more.": "--memory-budget is 1.0 MB. "
        "Ask for --memory-budget 16.5 or more.",
        'Mend the file, or build with on_bad_rows="skip".': "Mend the file, or build with --on-bad-rows skip.",
        "Give sample queries (queries=) to have it cover": "Give sample queries (--queries) to have it cover",
        "beam was given, but": "--beam was given, but",
        "recall 0.95 at k = 10 was not reached; a larger memory_budget": "recall 0.95 at k = 10 was not reached; "
        "a larger --memory-budget",
        "/data/seed=3/memory_budget is no file": "/data/seed=3/memory_budget is no file",
        "the seed is what it is": "the seed is what it is",
        'bits is "pq" with preview=\'auto\', only preview="ivf" has': '--bits is "pq" with --preview auto, '
        "only --preview ivf has",
    }
    assert {sentence: in_flags(sentence) for sentence in sentences} == sentences


def test_a_file_that_is_no_index(folder, capsys):
    code, _, err = run(capsys, "query", folder / "a.npy", folder / "a.npy")
    assert code == 1
    assert "a.npy is not an index but a file" in err


def test_check_says_its_advice_once(folder, capsys, tmp_path):
    code, _, _ = run(capsys, "build", folder / "a.npy", tmp_path / "index", "--json")
    assert code == 0
    content = bytearray((tmp_path / "index" / "vectors.bin").read_bytes())
    content[4096 + 7] ^= 1
    content[3 * 4096 + 7] ^= 1
    (tmp_path / "index" / "vectors.bin").write_bytes(content)
    code, _, err = run(capsys, "check", tmp_path / "index")
    assert code == 1
    assert err.count("\n") == 3 and err.count("build it again") == 1
    assert "lists every bad page" not in err
    _, out, _ = run(capsys, "check", tmp_path / "index", "--json")
    assert "lists every bad page" not in out


def test_tables_of_points_are_short_unless_all_are_asked_for(folder, capsys):
    _, out, _ = run(capsys, "inspect", folder / "index", "--json")
    points = json.loads(out)["stats"]["operating_points"]
    assert len(points) > 20
    code, out, _ = run(capsys, "inspect", folder / "index")
    assert code == 0
    assert f"of {len(points)} operating points" in out.replace("\n", " ") and "--points prints all" in out
    assert "resident in all" in out and "of a budget of 16.0 MB" in out and "2.0 MB (estimate" in out
    assert "graph: a walk along links" in out
    _, everything, _ = run(capsys, "inspect", folder / "index", "--points")
    assert everything.count("\n") > out.count("\n") + 20 and "--points" not in everything
    _, built, _ = run(capsys, "build", folder / "a.npy", folder / "b", "--memory-budget", "1/1000")
    assert "raised to 16 MB, the least that a fraction means" in " ".join(built.split())


def test_points_near_the_promise_hold_it_and_the_best():
    points = [
        OperatingPoint(
            k=k, effort=e, rule=StopByError(z=1.0), recall=e / 100, low=e / 101, high=1.0, pages=1.0, rows_scored=e
        )
        for k in (1, 10, 100)
        for e in range(1, 100)
    ]
    shown = near_promise([p.to_dict() for p in points], 0.5)
    assert [p["effort"] for p in shown] == [48, 49, 50, 51, 52, 53, 54, 99]
    assert {p["k"] for p in shown} == {10}
    assert near_promise([], 0.5) == []


def test_a_recall_that_is_not_reached_is_said_once(folder, capsys):
    code, out, err = run(capsys, "query", folder / "index", folder / "a.npy", "--first", 3, "--recall", 1, "--json")
    assert code == 0 and len(out.splitlines()) == 3
    assert err.count("no operating point reaches recall 1.0 at k = 10") == 1
    _, _, err = run(capsys, "query", folder / "index", folder / "a.npy", "--first", 3, "--recall", 0.5)
    assert err == ""


def test_options_that_do_not_apply_are_refused(folder, capsys):
    code, _, err = run(capsys, "query", folder / "index", folder / "a.npy", "--probes", 3)
    assert code == 2
    assert "--probes was given" in err and "Give beam" in err
    code, _, err = run(capsys, "query", folder / "index", folder / "a.npy", "--payload")
    assert code == 2
    assert "built without payloads" in err


def test_version(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("fullview")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_a_build_and_leaves_nothing(folder, capsys, tmp_path, monkeypatch, number, code):
    monkeypatch.setattr(BuildProgressBar, "show", lambda self, event: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    found, out, err = run(capsys, "build", folder / "a.npy", tmp_path / "out")
    assert (found, out) == (code, "")
    assert "cancelled" in err and "nothing is left behind" in err
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is before


def test_a_second_interrupt_does_not_wait(folder, capsys, monkeypatch):
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set() and stop.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

    def interrupt(path, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr("index.open_index", interrupt)
    code, _, err = run(capsys, "inspect", folder / "index")
    assert (code, err.strip()) == (130, "fullview: interrupted")
