"""`fullview bench decoder`: whole runs on a small head, their files, what is kept, wrong options, an interruption."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from bench_heads import small_head
from rich.console import Console

from decoder import DecoderOptions
from service.bench.decoder.report import print_results, setting_text, write_files
from service.bench.decoder.run import PEERS, Plan, peers_named, run
from service.bench.display import Display
from service.bench.numbers import batches_of, target_of
from service.cli import main


@pytest.fixture
def quiet():
    return Display(Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


def plan_of(tmp_path, kept, **changed):
    fields = {
        "head": small_head(),
        "options": DecoderOptions(recall=0.95),
        "target": (0.9, 0.8),
        "threads": (1, 2),
        "batches": (1, 8),
        "peers": ("scan", "hnswlib", "svd"),
        "seconds": 0.001,
        "turns": 2,
        "build_threads": 2,
        "work": tmp_path / "work",
        "keep": kept,
    }
    return Plan(**(fields | changed))


@pytest.fixture(scope="module")
def results(kept, tmp_path_factory):
    return run(plan_of(tmp_path_factory.mktemp("run"), kept), Display(Console(file=io.StringIO())))


def test_everybody_is_measured_at_every_batch_with_every_number_of_threads(results):
    names = {entrant.name for entrant in results.entrants} | results.missing.keys()
    assert {"fullview", "fullview walk", "fullview screen", "numpy float32", "int8 scan", "hnswlib"} <= names
    assert "torch float32 mv" in names and set(results.missing) <= {name for name in names if name.startswith("torch")}
    for entrant in results.entrants:
        assert [(cell.threads, cell.batch) for cell in entrant.cells] == [
            (threads, batch) for threads in (1, 2) for batch in (1, 8) if batch == 1 or not entrant.name.endswith(" mv")
        ]
        assert entrant.reached and entrant.quality.reaches((0.9, 0.8)) and entrant.memory_bytes > 0
        for cell in entrant.cells:
            assert 0 < cell.us_range[0] <= cell.us <= cell.us_range[1]
            assert cell.speedup_range[0] <= cell.speedup <= cell.speedup_range[1]
    for found in results.fastest_exact:
        cell = results.named(found["name"]).cell(found["threads"], found["batch"])
        assert cell.speedup == 1.0 and results.named(found["name"]).kind == "exact"
    assert results.decoder["links"] and results.decoder["in_degree"] and not results.decoder["reused"]
    assert {found.ours for found in results.comparisons} == {"fullview", "fullview walk"}
    assert results.named("fullview").cells[0].mode in ("walk", "screen", "exact")


def test_files_and_tables(results, tmp_path):
    written = write_files(results, tmp_path / "out")
    with written[0].open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(len(entrant.cells) for entrant in results.entrants)
    ours = next(line for line in lines if line["entrant"] == "fullview walk")
    assert float(ours["us_per_token"]) > 0 and 0.8 <= float(ours["precision_at_10"]) <= 1.0
    assert 0.0 <= float(ours["error_bar_covers"]) <= 1.0 and ours["logprob_error"] and ours["rows_scored"]
    assert json.loads(written[1].read_text())["head"]["vocab_size"] == 1500
    shown = io.StringIO()
    print_results(results, Console(file=shown, width=220))
    said = shown.getvalue()
    assert "batch 8, 2 threads" in said and "1.00x *" in said and "int8 scan" in said and "P@10" in said
    assert setting_text({"width": 64, "rerank": 800}) == "width 64, rerank 800"


def test_the_picture_is_drawn_where_matplotlib_is(results, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra bench")
    written = write_files(results, tmp_path)
    assert written[2].read_bytes().startswith(b"\x89PNG")


def test_nothing_stays_but_what_is_kept_and_that_is_taken_up(results, kept, tmp_path, quiet):
    plan = plan_of(tmp_path, kept, threads=(1,), batches=(1,), peers=("hnswlib",), turns=1)
    again = run(plan, quiet)
    assert again.decoder["reused"] and again.named("hnswlib").build_seconds == results.named("hnswlib").build_seconds
    assert list(plan.work.iterdir()) == [] and (kept / "small" / "decoder" / "manifest.json").is_file()
    other = run(
        plan_of(tmp_path, kept, options=DecoderOptions(recall=0.9), peers=(), threads=(1,), batches=(1,)), quiet
    )
    assert not other.decoder["reused"]


def test_what_no_setting_reaches_is_said(kept, tmp_path, quiet):
    plan = plan_of(tmp_path, kept, target=(1.0, 1.0), peers=("svd",), threads=(1,), batches=(1,), turns=1)
    found = run(plan, quiet)
    assert found.named("numpy float32").reached
    if not found.named("SVD-softmax").reached:
        shown = io.StringIO()
        print_results(found, Console(file=shown, width=220))
        assert "(below target)" in shown.getvalue()


def test_command_prints_json(tmp_path, capsys):
    head = small_head()
    np.save(tmp_path / "layer.npy", head.layer.weight)
    np.save(tmp_path / "calibration.npy", head.calibration)
    np.save(tmp_path / "states.npy", head.states)
    command = ["bench", "decoder", "--head", str(tmp_path / "layer.npy"), "--held-out", str(tmp_path / "states.npy")]
    command += [
        "--calibration",
        str(tmp_path / "calibration.npy"),
        "--states",
        "30",
        "--threads",
        "1",
        "--batches",
        "1,2",
    ]
    command += ["--peers", "none", "--seconds", "0.01", "--repeat", "1", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["head"] | {"states": 30} == found["head"] and found["batches"] == [1, 2]
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"results.csv", "results.json"}
    assert found["command"].startswith("fullview")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--head", "gpt"], "head is 'gpt'"),
        (["--head", "bundled", "--peers", "annoy"], "peer 'annoy' is not known; there are scan, hnswlib, faiss, svd"),
        (["--head", "bundled", "--precision", "0.99"], "precision is '0.99'"),
        (["--head", "bundled", "--batches", "1,0"], "batches is '1,0'"),
        (["--head", "bundled", "--stack", "100"], "stack is 100, but bundled has 32000 tokens"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, sentence, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["bench", "decoder", "--out", str(out), *options]) == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ") and not out.exists()


def test_an_interrupted_run_leaves_nothing(tmp_path):
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "bench",
        "decoder",
        "--head",
        "bundled",
        "--out",
        str(tmp_path / "out"),
    ]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        # The line comes when exact answers are there: the decoder is being built.
        assert any("exact answers of" in line for line in child.stderr)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=120)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode in (130, 143)
    assert list((tmp_path / "out").iterdir()) == []


def test_numbers_of_the_command_line():
    assert batches_of("64,1,8,8") == (1, 8, 64) and target_of("0.995, 0.98") == (0.995, 0.98)
    assert peers_named("all") == tuple(PEERS) and peers_named("svd,svd") == ("svd",) and peers_named("none") == ()
    for wrong in ("", "x,y", "0.9,0", "1.1,0.9", "0.9,0.9,0.9"):
        with pytest.raises(ValueError, match="precision is"):
            target_of(wrong)
