"""Scenarios S11 to S13 and S15 to S16: budgets, progress, cancelling, a full disk, and the same files twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from brute_force import require_reference, same_hits

from index import BuildOptions, SearchOptions, build, check_build, open_index
from index.errors import BudgetTooSmallError, BuildCancelledError, DiskFullError
from index.progress import PHASES


def random_rows(n: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


def contents(folder) -> dict[str, bytes]:
    """Every file of an index but those that hold times."""
    timed = {"manifest.json", "report.json"}
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in timed)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# --- S11 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_s11_a_budget_that_cannot_work_is_refused_at_once_with_the_least_that_does(tmp_path, dtype):
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.dtype(dtype), (1_000_000, 128))
    rows.flush()
    began = time.monotonic()
    with pytest.raises(BudgetTooSmallError) as caught:
        check_build(tmp_path / "rows.npy", options=BuildOptions(memory_budget=1.0))
    assert time.monotonic() - began < 1.0
    least = caught.value.needed_bytes
    assert "memory_budget is 1.0 MB" in str(caught.value)
    # The least that works does work, and a tenth of a megabyte less does not.
    megabytes = -(-least // 100_000) / 10
    assert f"memory_budget={megabytes:.1f}" in str(caught.value)
    check_build(tmp_path / "rows.npy", options=BuildOptions(memory_budget=megabytes))
    with pytest.raises(BudgetTooSmallError):
        check_build(tmp_path / "rows.npy", options=BuildOptions(memory_budget=megabytes - 0.2))


MEASURE = """
import sys, time
import numpy as np
from index import BuildOptions, build, open_index
from index.progress import anonymous_bytes

source, out, megabytes = sys.argv[1], sys.argv[2], float(sys.argv[3])
rows = np.load(source, mmap_mode="r")
# Everything that is compiled or cached by a first build and a first search is there before the level is taken.
warm = np.random.default_rng(0).normal(size=(2000, rows.shape[1])).astype(np.float32)
build(warm, out + ".warm", options=BuildOptions(metric="l2", preview="graph"))
with open_index(out + ".warm") as index:
    index.search(warm[:64], k=10)
del warm
report = build(source, out, options=BuildOptions(metric="l2", memory_budget=megabytes))
level = anonymous_bytes()
with open_index(out) as index:
    for start in range(0, 512, 64):
        index.search(np.asarray(rows[start : start + 64]), k=10)
    print(report.peak_bytes, sum(report.resident_bytes.values()), anonymous_bytes() - level)
"""


@pytest.mark.parametrize(
    "n,megabytes",
    [(12_000, 16.0), pytest.param(1_000_000, 256.0, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_s11_memory_of_building_and_of_serving_is_bounded(tmp_path, n, megabytes):
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float32, (n, 128))
    for start in range(0, n, 50_000):
        rows[start : start + 50_000] = random_rows(min(50_000, n - start), 128, seed=start)
    rows.flush()
    del rows
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "rows.npy"), str(tmp_path / "out"), str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, preview, grown = map(int, done.stdout.split())
    assert peak <= preview + 512 * 2**20
    assert preview <= megabytes * 1e6
    assert grown <= megabytes * 1e6


# --- S12 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preview", ["flat", "graph"])
def test_s12_progress_moves_forward_through_all_phases(tmp_path, preview):
    events = []
    report = build(
        random_rows(3000, 32),
        tmp_path / "out",
        options=BuildOptions(preview=preview),
        on_progress=lambda event: events.append((event, (tmp_path / "out").exists())),
    )
    phases = list(dict.fromkeys(event.phase for event, _ in events))
    assert phases == [phase for phase in PHASES if phase in phases] and {"scan", "codes", "write"} <= set(phases)
    assert phases[-1] == "publish"
    for phase in phases:
        mine = [event for event, _ in events if event.phase == phase]
        assert all(a.done <= b.done and a.total == b.total for a, b in pairwise(mine)), phase
        assert mine[0].done == 0 and 0 <= mine[-1].done <= mine[-1].total
        assert all(event.rate >= 0 and (event.eta_s is None or event.eta_s >= 0) for event in mine)
    # Nothing says that it is finished before it can be opened.
    assert not any(there for event, there in events if (event.phase, event.done) != ("publish", 1))
    with open_index(tmp_path / "out") as index:
        assert index.n == report.rows == 3000
    assert set(report.phases) <= {*PHASES, "lists"} and sum(report.phases.values()) <= report.seconds + 0.1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_s12_no_phase_stands_still(tmp_path):
    times = [time.monotonic()]
    build(random_rows(200_000, 64), tmp_path / "out", on_progress=lambda event: times.append(time.monotonic()))
    assert max(b - a for a, b in pairwise(times)) < 10


# --- S13 --------------------------------------------------------------------------------------------------------


class CancelIn:
    """Set once an event of the phase has come; remembers when."""

    def __init__(self, phase: str) -> None:
        self.phase, self.since = phase, None
        self.lock = threading.Lock()

    def see(self, event) -> None:
        if event.phase == self.phase and self.since is None:
            self.since = time.monotonic()

    def is_set(self) -> bool:
        return self.since is not None


@pytest.mark.parametrize("phase", PHASES)
def test_s13_cancelling_in_any_phase_leaves_nothing(tmp_path, phase):
    rows = random_rows(2500, 16)
    before = random_rows(40, 16, seed=5)
    build(before, tmp_path / "out")
    cancel = CancelIn(phase)
    options = BuildOptions(preview="graph")
    with pytest.raises(BuildCancelledError):
        build(rows, tmp_path / "out", options=options, on_progress=cancel.see, cancel=cancel, replace=True)
    assert cancel.since is not None and time.monotonic() - cancel.since < 5
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with open_index(tmp_path / "out") as index:
        require_reference(index.search(before, k=5), before, before, "cosine", 5)
    assert threading.active_count() < 20


@pytest.mark.parametrize("n", [4000, pytest.param(400_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_s13_cancelling_while_lists_are_made(tmp_path, n):
    pytest.importorskip("faiss", reason="ivf clusters with faiss (extra cpu)")
    cancel = CancelIn("lists")
    options = BuildOptions(preview="ivf")
    with pytest.raises(BuildCancelledError):
        build(random_rows(n, 64), tmp_path / "out", options=options, on_progress=cancel.see, cancel=cancel)
    assert time.monotonic() - cancel.since < 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("phase", PHASES)
def test_s13_cancelling_a_large_build_ends_within_5_s(tmp_path, phase):
    cancel = CancelIn(phase)
    options = BuildOptions(preview="graph", memory_budget="1/1")
    with pytest.raises(BuildCancelledError):
        build(random_rows(400_000, 64), tmp_path / "out", options=options, on_progress=cancel.see, cancel=cancel)
    assert time.monotonic() - cancel.since < 5
    assert list(tmp_path.iterdir()) == []


# --- S15 --------------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(path, megabytes: int):
    """A tmpfs of that size where this user may mount one; else a bound on the size of each file."""
    path.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    mounted = (
        os.geteuid() == 0 and subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    )
    if not mounted:
        pytest.skip("needs the right to mount a small tmpfs; files cut off by RLIMIT_FSIZE are tried beside this")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_s15_a_full_disk_fails_the_build_by_name_and_leaves_nothing(tmp_path):
    disk = tmp_path / "disk"
    with small_disk(disk, 8):
        kept = random_rows(200, 16)
        build(kept, disk / "kept")
        with pytest.raises(DiskFullError) as caught:
            build(random_rows(20_000, 128), disk / "out")
        assert str(disk) in str(caught.value) and caught.value.needed_bytes > 0
        assert f"{caught.value.needed_bytes:,} bytes" in str(caught.value)
        assert [path.name for path in disk.iterdir()] == ["kept"]
        with open_index(disk / "kept") as index:
            require_reference(index.search(kept[:20], k=5), kept, kept[:20], "cosine", 5)
        # With room again the same build works.
        build(random_rows(2000, 128), disk / "out")


@pytest.mark.parametrize("megabytes", [1, 2, 3, 4, 5])
def test_s15_wherever_the_disk_fills_up(tmp_path, megabytes):
    """Each size runs out in another phase: buckets, vectors, codes and links, ids, payload, report."""
    disk, rows = tmp_path / "disk", random_rows(9000, 64)
    payload = [{"text": "x" * 100, "n": i} for i in range(9000)]
    ids = [f"row-{i:05d}" for i in range(9000)]
    with small_disk(disk, megabytes):
        with pytest.raises(DiskFullError, match="bytes"):
            build(rows, disk / "out", ids=ids, payload=payload)
        assert list(disk.iterdir()) == []


LIMITED = """
import resource, sys
import numpy as np
from index import build
from index.errors import DiskFullError

resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    build(np.random.default_rng(0).normal(size=(20_000, 32)).astype(np.float32), sys.argv[1])
except OSError as error:
    print(type(error).__name__, error)
"""


def test_s15_a_limit_on_the_size_of_files_is_an_error_not_a_signal(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Error" in done.stdout
    assert list(tmp_path.iterdir()) == []


# --- S16 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric,preview", [("cosine", "graph"), ("dot", "graph"), ("l2", "flat"), ("l2", "ivf")])
def test_s16_the_same_files_whatever_the_threads(tmp_path, metric, preview):
    if preview == "ivf":
        pytest.importorskip("faiss", reason="ivf clusters with faiss (extra cpu)")
    rows = random_rows(2500, 24)
    rows[1000:1100] = rows[7]  # some equal rows
    payload = [{"n": i} for i in range(2500)]
    files, hits = [], []
    for turn, threads in enumerate((1, 4, 16, 1)):
        out = tmp_path / str(turn)
        options = BuildOptions(metric=metric, preview=preview, seed=7, threads=threads)
        report = build(rows, out, options=options, payload=payload)
        files.append(contents(out))
        with open_index(out) as index:
            hits.append(index.search(rows[:500] + 0.1, k=10))
    for other, found in zip(files[1:], hits[1:]):
        assert list(other) == list(files[0])
        assert [name for name in other if other[name] != files[0][name]] == []
        assert same_hits(found, hits[0])
    assert "manifest.json" in report.may_differ


def test_s16_another_seed_is_another_index_with_the_same_exact_answers(tmp_path):
    rows = random_rows(1000, 16)
    for seed in (1, 2):
        build(rows, tmp_path / str(seed), options=BuildOptions(seed=seed, preview="graph"))
    assert contents(tmp_path / "1")["links.npy"] != contents(tmp_path / "2")["links.npy"]
    with open_index(tmp_path / "1") as one, open_index(tmp_path / "2") as two:
        exact = SearchOptions(exact=True)
        assert same_hits(one.search(rows[:50], k=20, options=exact), two.search(rows[:50], k=20, options=exact))


def test_s16_the_same_answer_before_and_after_reopening(tmp_path):
    rows = random_rows(2500, 16)
    build(rows, tmp_path / "out", options=BuildOptions(preview="graph"))
    found = []
    for _ in range(2):
        with open_index(tmp_path / "out") as index:
            found.append(index.search(rows[:300], k=10))
    assert same_hits(*found)
    assert (found[0].work.rows_scored == found[1].work.rows_scored).all()
