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

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from service.cli import main
from service.demo.app import QUESTIONS
from service.demo.data import POINTS, QUERIES, SAMPLE_QUERIES, find_data
from service.demo.show import Show


@pytest.fixture
def scratch(tmp_path):
    """Where the demo's temporary folder goes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def small_data(wordnet, tmp_path):
    """The bundled data with fewer rows and queries."""
    folder = tmp_path / "small"
    folder.mkdir()
    source = wordnet.points.parent
    pq.write_table(pq.read_table(source / POINTS).slice(0, 1500), folder / POINTS)
    queries = pq.read_table(source / QUERIES)
    chosen = [i for i, text in enumerate(wordnet.query_texts) if text in QUESTIONS or i < 40]
    pq.write_table(queries.take(pa.array(chosen)), folder / QUERIES)
    shutil.copy(source / SAMPLE_QUERIES, folder)
    return folder


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


def test_the_demo_on_the_bundled_data(scratch):
    process = start_demo(scratch, "--json")
    said, shown = process.communicate(timeout=280)
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


def test_keep_leaves_the_server_and_says_how_to_end_it(scratch, small_data):
    process = start_demo(scratch, "--keep", "--json", "--data", str(small_data))
    said, shown = process.communicate(timeout=120)
    assert process.returncode == 0, shown
    found = json.loads(said)
    try:
        assert f"kill {found['server_process']} && rm -r {found['folder']}" in shown
        address = urlsplit(found["url"])
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        connection.request("GET", "/collections/wordnet")
        assert json.loads(connection.getresponse().read())["result"]["points_count"] == 1500
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


def test_missing_data_says_what_is_needed(tmp_path, capsys):
    assert main(["demo", "--data", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert str(tmp_path) in printed and POINTS in printed and "--data CHECKOUT/tests/data/wordnet" in printed


def test_data_is_found_in_the_checkout(wordnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find_data(None)
    assert found.folder == wordnet.points.parent
    assert found.vectors.shape == (500, 384) and (found.vectors == wordnet.queries).all()
    assert found.texts == wordnet.query_texts


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
