"""The demo: whole runs, what they leave behind (nothing), and what they say where something is missing or damaged."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from service.cli import main
from service.demo.app import QUESTIONS
from service.demo.data import MARIAN, POINTS, QUERIES, SAMPLE_QUERIES, WORDNET, find_data
from service.demo.decoder_data import CALIBRATION, HEAD, HELDOUT, SHOWN, SHOWN_STATES, WORDS, read_head
from service.demo.decoder_measure import DecoderFigures, WayFigures
from service.demo.show import Show


@pytest.fixture
def scratch(tmp_path):
    """Where the demo's temporary folder goes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def small_data(wordnet, tmp_path):
    """The bundled data with fewer rows, queries, tokens and states."""
    folder, source = tmp_path / "small", wordnet.points.parents[1]
    (folder / WORDNET).mkdir(parents=True)
    (folder / MARIAN).mkdir()
    pq.write_table(pq.read_table(source / POINTS).slice(0, 1500), folder / POINTS)
    queries = pq.read_table(source / QUERIES)
    chosen = [i for i, text in enumerate(wordnet.query_texts) if text in QUESTIONS or i < 40]
    pq.write_table(queries.take(pa.array(chosen)), folder / QUERIES)
    shutil.copy(source / SAMPLE_QUERIES, folder / SAMPLE_QUERIES)
    shrink_head(source / MARIAN, folder / MARIAN)
    return folder


def shrink_head(source: Path, out: Path) -> None:
    """The tokens of the sentences and the first 1,200; 300 calibration states."""
    shown = json.loads((source / SHOWN).read_text())
    used = np.unique(np.concatenate([np.arange(1200), *(sentence["token_ids"] for sentence in shown)]))
    with np.load(source / HEAD) as arrays:
        np.savez(out / HEAD, codes=arrays["codes"][used], scale=arrays["scale"], bias=arrays["bias"][used])
    words = json.loads((source / WORDS).read_text())
    (out / WORDS).write_text(json.dumps([words[token_id] for token_id in used]))
    for sentence in shown:
        sentence["token_ids"] = np.searchsorted(used, sentence["token_ids"]).tolist()
    (out / SHOWN).write_text(json.dumps(shown))
    shutil.copy(source / SHOWN_STATES, out / SHOWN_STATES)
    np.save(out / CALIBRATION, np.load(source / CALIBRATION)[:300])
    np.save(out / HELDOUT, np.load(source / HELDOUT)[:40])


def start_demo(scratch: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "service.cli", "demo", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    )


def is_gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=30).close()
    except ConnectionError:  # refused, or reset by a server that is just ending
        return False
    return True


@pytest.mark.timeout(900)
def test_the_demo_on_the_bundled_data(scratch):
    process = start_demo(scratch, "--json")
    said, shown = process.communicate(timeout=880)
    assert process.returncode == 0, shown
    found = json.loads(said)
    assert is_gone(found["server_process"])
    assert not list(scratch.iterdir())
    assert (found["rows"], found["dim"], found["queries"], found["k"]) == (24_000, 384, 500, 10)
    assert found["recall"] >= found["promised_recall"] == 0.95
    assert found["recall_low"] <= found["recall"] <= found["recall_high"] <= 1.0
    assert found["raw_float32_bytes"] == 24_000 * 384 * 4
    assert sum(found["resident_bytes"].values()) == found["resident_bytes_total"] < found["budget_bytes"]
    assert found["resident_bytes_total"] < found["raw_float32_bytes"] / 3
    assert 1.0 <= found["pages_per_query"] <= 20.0
    assert found["bytes_per_query"] == pytest.approx(found["pages_per_query"] * 4096)
    assert 0 < found["rows_scored_per_query"] < 24_000 / 4
    assert 0 < found["latency_us_p50_library"] < found["latency_us_p50_http"]
    assert 0 < found["build_seconds"] < found["seconds"]
    assert [answer["question"] for answer in found["answers"]] == list(QUESTIONS)
    for answer in found["answers"]:
        scores = [hit["score"] for hit in answer["hits"]]
        assert (
            len(scores) == 3 and scores == sorted(scores, reverse=True) and all(hit["text"] for hit in answer["hits"])
        )
    assert "penguin" in found["answers"][0]["hits"][0]["text"]
    assert "POST /v1/admin/builds" in shown and "How to go on" in shown
    check_decoder(found["decoder"])
    assert "POST /v1/decoders/translate/topk" in shown and "Ele consertou o relógio com uma ..." in shown


def check_decoder(found):
    """Answers with words, and figures that a decoder of this size and promise has."""
    assert (found["vocab_size"], found["dim"], found["states"], found["k"]) == (32_000, 256, 500, 10)
    assert found["promised_recall"] == 0.99 and found["chosen"] in ("walk", "screen", "exact")
    walk, screen = found["ways"]
    assert (walk["mode"], screen["mode"]) == ("walk", "screen")
    for way in (walk, screen):
        assert way["recall"] >= 0.98 and way["best_found"] >= 0.99
        assert way["logprob_error"] < 0.02 and way["covered"] > 0.8 and way["us_p50"] > 0
    assert 0 < walk["rows_scored"] < 16_000 < screen["rows_scored"] <= 32_000
    assert found["resident_bytes"]["layer"] == 32_000 * (256 * 2 + 4)
    spring = found["answers"][0]
    assert [token["text"] for token in spring["tokens"]] == ["mola", "fonte", "primavera"]
    assert [token["probability"] for token in spring["tokens"]] == pytest.approx([0.494, 0.270, 0.184], abs=0.005)
    assert all(token["error"] >= 0 for answer in found["answers"] for token in answer["tokens"])


def test_keep_leaves_the_server_and_says_how_to_end_it(scratch, small_data):
    process = start_demo(scratch, "--keep", "--json", "--data", str(small_data))
    said, shown = process.communicate(timeout=280)
    assert process.returncode == 0, shown
    found = json.loads(said)
    try:
        assert f"kill {found['server_process']} && rm -r {found['folder']}" in shown
        address = urlsplit(found["url"])
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        connection.request("GET", "/collections/wordnet")
        assert json.loads(connection.getresponse().read())["result"]["points_count"] == 1500
        connection.request("GET", "/v1/decoders/translate")
        assert json.loads(connection.getresponse().read())["vocab_size"] == found["decoder"]["vocab_size"]
        connection.close()
    finally:
        os.kill(found["server_process"], signal.SIGTERM)
    until = time.monotonic() + 30
    while accepts(address.hostname, address.port):
        assert time.monotonic() < until, "the server goes on"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_its_server(scratch, small_data, number):
    process = start_demo(scratch, "--data", str(small_data))
    server = None
    for line in process.stdout:
        server = server or re.search(r"process (\d+), http", line)
        if "POST /v1/admin/builds" in line:
            break
    process.send_signal(number)
    said, complained = process.communicate(timeout=60)
    assert process.returncode == 130, complained
    assert f"process {server[1]}) was ended, exit code 0" in said
    assert is_gone(int(server[1]))
    assert not list(scratch.iterdir())


def test_damaged_data_is_named_and_nothing_stays(small_data, scratch, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    (small_data / POINTS).write_bytes(b"PAR1 but no more")
    assert main(["demo", "--data", str(small_data)]) == 1
    printed = capsys.readouterr()
    assert POINTS in printed.err
    server = re.search(r"process (\d+)\) was ended", printed.out)
    assert is_gone(int(server[1]))
    assert not list(scratch.iterdir())


def test_missing_data_says_what_is_needed(small_data, tmp_path, capsys):
    assert main(["demo", "--data", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert str(tmp_path) in printed and POINTS in printed and "--data CHECKOUT/tests/data" in printed
    (small_data / MARIAN / WORDS).unlink()
    assert main(["demo", "--data", str(small_data)]) == 2
    assert ": marian/words.json is needed." in capsys.readouterr().err.replace("\n", " ")


def test_data_is_found_in_the_checkout(wordnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find_data(None)
    assert found.folder == wordnet.points.parents[1]
    assert found.vectors.shape == (500, 384) and (found.vectors == wordnet.queries).all()
    assert found.texts == wordnet.query_texts
    assert found.head.weight.shape == (32_000, 256)


def test_a_smaller_head_says_the_same_words(small_data):
    head = read_head(small_data / MARIAN)
    assert 1200 < len(head.words) < 1500 and head.weight.shape == (len(head.words), 256)
    assert (
        head.text_of(head.shown[0].token_ids[:-1]) == "Ele consertou o relógio com uma mola de um brinquedo quebrado."
    )


def test_figures_of_a_decoder_are_said_for_every_mode_that_may_have_been_chosen():
    way = {"best_found": 0.998, "recall": 0.9912, "rows_scored": 6543.2, "us_p50": 310.0}
    way |= {"logprob_error": 0.00021, "covered": 0.951, "half_width": 0.0007}
    resident = {"layer": 16_512_000, "codes": 8_448_000, "links": 8_192_000, "frame": 1000}
    for chosen in ("walk", "exact"):
        written = io.StringIO()
        figures = DecoderFigures(
            vocab_size=32_000, dim=256, states=500, k=10, promised_recall=0.99,
            ways=[WayFigures(mode=mode, **way) for mode in ("walk", "screen")], chosen=chosen, us_p50_exact=600.0,
            us_p50_numpy=550.0, us_p50_http=900.0, resident_bytes=resident, build_seconds=20.0, build_phases={},
        )  # fmt: skip
        Show(Console(file=written, width=120)).decoder_figures(figures)
        said = " ".join(written.getvalue().split())
        assert "0.31 ms a state: the best token is right for 99.8% of 500 states, recall@10 0.9912" in said
        assert "exact 0.60 ms: all 32,000 rows" in said and f"served by {chosen}," in said
        assert ("holds the truth for 95.1% of the states" in said) == (chosen == "walk")
        assert "16.6 MB beside the layer's own 16.5 MB: codes 8.4 MB, links 8.2 MB, the rest 0.0 MB" in said


def test_progress_is_bars_on_a_terminal_and_lines_elsewhere():
    jobs = [{"phase": None, "done": 0, "total": 0}] + [
        {"phase": phase, "done": done, "total": 10} for phase in ("scan", "graph") for done in (0, 5, 10)
    ]
    for is_terminal in (True, False):
        written = io.StringIO()
        show = Show(Console(file=written, force_terminal=is_terminal, width=100))
        with show.build() as progress:
            for job in jobs:
                progress.show(job)
        assert written.getvalue().count("scan") >= 1
        if not is_terminal:
            assert [line.split()[-1] for line in written.getvalue().splitlines()] == ["scan", "graph"]
