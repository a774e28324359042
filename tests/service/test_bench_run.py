"""The protocol and whole runs on small data, with hnswlib from this environment; every peer where it can be installed."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from service.bench.datasets import open_dataset
from service.bench.display import Display
from service.bench.environments import PeerUnavailableError, cache_folder, environment_of
from service.bench.measure import Effort
from service.bench.numbers import recalls_of, threads_of
from service.bench.peers import PEERS, Contender, peers_named
from service.bench.report import print_results, write_files
from service.bench.run import Plan, run
from service.bench.worker_process import WorkerError, WorkerProcess
from service.bench.workers.searcher import Job
from service.cli import main

HERE = Path(sys.executable)
ROWS, DIM, QUERIES = 1500, 24, 60


@pytest.fixture(scope="module")
def small_set(tmp_path_factory):
    """Clustered vectors, so that graphs have something to follow."""
    folder = tmp_path_factory.mktemp("small")
    generator = np.random.default_rng(8)
    centres = generator.standard_normal((30, DIM))
    rows = centres[generator.integers(0, 30, ROWS + QUERIES)] + 0.4 * generator.standard_normal((ROWS + QUERIES, DIM))
    np.save(folder / "base.npy", rows[:ROWS].astype(np.float32))
    np.save(folder / "queries.npy", rows[ROWS:].astype(np.float32))
    return folder


def job_of(small_set, folder, **changed):
    fields = {
        "folder": str(folder),
        "base": str(small_set / "base.npy"),
        "queries": str(small_set / "queries.npy"),
        "metric": "l2",
        "threads": 2,
        "budget": "1/4",
        "budget_bytes": ROWS * DIM,
    }
    return Job(**{**fields, **changed})


def quiet():
    return Display(Console(file=io.StringIO()))


def test_protocol_from_build_to_search(small_set, tmp_path):
    job, events = job_of(small_set, tmp_path, parameters={"m": 8, "ef_construction": 60}), []
    with WorkerProcess("hnswlib", HERE, tmp_path / "log") as worker:
        assert set(worker.ask("hello")["versions"]) == {"hnswlib", "numpy"}
        worker.ask("prepare", job=job)
        built = worker.ask("build", job=job, on_progress=lambda *event: events.append(event))
        assert built["seconds"] > 0 and built["notes"] == ["M 8, ef_construction 60"] and worker.peak > 0
        assert events[-1] == ("build", ROWS, ROWS)
    with WorkerProcess("hnswlib", HERE, tmp_path / "log") as worker:
        worker.ask("warm", job=job)
        worker.ask("open", job=job)
        setting = worker.ask("settings")["settings"][-1]
        rows = tmp_path / "rows.npy"
        found = worker.ask("batch", k=10, setting=setting, threads=2, seconds=0.01, rows=str(rows))
        assert found["qps"] > 0 and found["cpu_us"] > 0 and found["passes"] >= 1
        base, queries = np.load(job.base), np.load(job.queries)
        true = ((queries[:, None] - base[None]) ** 2).sum(axis=2).argsort(axis=1)[:, :10]
        assert np.mean([len(set(a) & set(b)) for a, b in zip(true, np.load(rows))]) > 9.5
        single = worker.ask("single", k=10, setting=setting, count=30)
        assert 0 < single["p50_us"] <= single["p95_us"] <= single["p99_us"] and single["queries"] == 30


def test_worker_that_fails_says_why_and_goes_on(small_set, tmp_path):
    with WorkerProcess("hnswlib", HERE, tmp_path / "log") as worker:
        with pytest.raises(WorkerError, match=r"hnswlib, open: .*[Cc]annot open file"):
            worker.ask("open", job=job_of(small_set, tmp_path))
        with pytest.raises(WorkerError, match="no command 'sing'"):
            worker.ask("sing")
        assert "versions" in worker.ask("hello")


def test_worker_that_ends_is_told_of_with_its_last_words(tmp_path):
    why = r"nothing ended with code 1 while it was asked to hello.*No module"
    with WorkerProcess("nothing", HERE, tmp_path / "log") as worker, pytest.raises(WorkerError, match=why):
        worker.ask("hello")


def test_leaving_with_an_error_ends_the_process(tmp_path):
    worker = WorkerProcess("hnswlib", HERE, tmp_path / "log")
    worker.ask("hello")
    assert worker.memory().total > 0
    worker.__exit__(KeyboardInterrupt)
    assert worker.memory().total == 0


def plan_of(small_set, tmp_path, **changed):
    fields = {
        "dataset": open_dataset(
            str(small_set), data=Path(), metric="cosine", queries_for_build="20", most_queries=None
        ),
        "budget": "1/1",
        "effort": Effort(threads=(1, 2), seconds=0.01, singles=10, repeat=1),
        "recalls": (0.9,),
        "peers": tuple(peers_named("hnswlib")),
        "all_variants": False,
        "build_threads": 2,
        "cache": tmp_path / "cache",
        "work": tmp_path / "work",
        "keep": tmp_path / "kept",
        "pythons": {"hnswlib": HERE},
    }
    return Plan(**{**fields, **changed})


def test_run_measures_both_and_leaves_nothing_but_what_is_kept(small_set, tmp_path):
    plan = plan_of(small_set, tmp_path)
    results = run(plan, quiet())
    ours, theirs = results.contests
    assert (ours.name, theirs.name, results.missing) == ("fullview", "hnswlib", {})
    assert max(p.recall for p in ours.points) > 0.95 and max(p.recall for p in theirs.points) > 0.95
    for point in ours.points:
        assert set(point.qps) == {1, 2} and point.pages > 0 and point.rows_scored > 0
        assert point.pages_device is None or point.pages_device in (0.0, pytest.approx(point.pages))
    assert ours.resident_parts and ours.build_peak_bytes >= 0 and ours.report["rows"] == ROWS
    assert theirs.points[0].pages == 0.0 and not theirs.build_reused
    (found,) = results.comparisons
    assert found.ratio[2] > 0 and found.pages_ratio is None
    assert list(plan.work.iterdir()) == []
    again = run(plan, quiet())
    assert again.contests[1].build_reused and again.contests[1].build_seconds == theirs.build_seconds

    written = write_files(results, tmp_path / "out")
    with written[0].open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(ours.points) + len(theirs.points) and float(lines[0]["qps_2_threads"]) > 0
    assert json.loads(written[1].read_text())["dataset"]["rows"] == ROWS
    shown = io.StringIO()
    print_results(results, Console(file=shown, width=200))
    assert "fullview against each peer" in shown.getvalue() and "codes" in shown.getvalue()


def test_run_names_peers_that_cannot_be_had(small_set, tmp_path):
    dataset = open_dataset(str(small_set), data=Path(), metric="dot", queries_for_build=None, most_queries=20)
    peers = (*peers_named("diskann"), Contender(name="hnswlib", worker="absent"))
    plan = plan_of(small_set, tmp_path, dataset=dataset, peers=peers, keep=None)
    results = run(plan, quiet())
    assert results.missing["diskann"] == "it has no dot here"
    assert "absent ended with code 1" in results.missing["hnswlib"]
    assert len(results.contests) == 1 and list(plan.work.iterdir()) == []


def test_environment_that_cannot_be_made_says_why_and_leaves_nothing(tmp_path):
    peer = Contender(name="nobody", worker="nobody", requirements=(str(tmp_path / "no-such-folder"),))
    with pytest.raises(PeerUnavailableError, match="no-such-folder"):
        environment_of(peer, tmp_path / "cache", quiet())
    assert list((tmp_path / "cache").iterdir()) == []


def test_interrupted_run_ends_its_children_and_removes_its_files(small_set, tmp_path):
    command = [sys.executable, "-m", "service.cli", "bench", "index", "--dataset", str(small_set), "--metric", "l2"]
    command += ["--peers", "none", "--out", str(tmp_path / "out")]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        # The line comes when the worker has got ready: it lives, and the run is in the middle.
        assert any("getting ready to build" in line for line in child.stderr)
        workers = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 130
    assert workers and not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--metric", "l2", "--memory-budget", "0.01"], 2, " is 0.0 MB, the least that works here is"),
        ([], 2, "Say --metric"),
        (["--metric", "l2", "--peers", "annoy"], 2, "peer 'annoy' is not known"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, code, sentence, small_set, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["bench", "index", "--dataset", str(small_set), "--out", str(out), *options]) == code
    assert sentence in capsys.readouterr().err.replace("\n", " ") and not out.exists()


def test_command_prints_json(small_set, tmp_path, capsys):
    options = ["--metric", "l2", "--peers", "none", "--seconds", "0.01", "--queries", "20", "--json"]
    assert main(["bench", "index", "--dataset", str(small_set), "--out", str(tmp_path / "out"), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["queries"] == 20 and found["contests"][0]["points"][0]["qps"]["1"] > 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"results.csv", "results.json"}


def test_threads_and_recalls():
    cores = len(os.sched_getaffinity(0))
    assert threads_of("N,1") == tuple(sorted({1, cores})) and threads_of("4, 2") == (2, 4)
    assert recalls_of("0.9,0.99") == (0.9, 0.99)
    for wrong in ("0", "x", "1,,2"):
        with pytest.raises(ValueError, match="threads is"):
            threads_of(wrong)
    for wrong in ("1.0", "x", "0.9,"):
        with pytest.raises(ValueError, match="recall is"):
            recalls_of(wrong)
    with pytest.raises(ValueError, match="peer 'annoy' is not known"):
        peers_named("hnswlib,annoy")


@pytest.mark.long
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_is_measured_in_its_own_environment(name, small_set, tmp_path):
    peer = PEERS[name]
    try:
        environment_of(peer, cache_folder(), quiet())
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    # faiss's product quantiser warns on stderr of its worker below 9,984 rows; recall is not hurt by it.
    plan = plan_of(small_set, tmp_path, peers=(peer,), cache=cache_folder(), pythons={}, keep=None, all_variants=True)
    results = run(plan, quiet())
    assert not results.missing
    for contest in results.contests[1:]:
        assert max(p.recall for p in contest.points) > 0.9, contest.title
        assert contest.build_seconds > 0 and contest.resident_bytes > 0
        # DiskANN caches all nodes of so small a set in the least budget that there is.
        assert peer.on_disk or max(p.pages for p in contest.points) == 0
