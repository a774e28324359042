"""Scenarios S14 and S17: a build that is killed, and processes that fork."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from brute_force import require_reference, same_hits

from index import BuildOptions, build, open_index, publication
from index.errors import UnknownIndexError
from index.progress import PHASES


def random_rows(n: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


# --- S14 --------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import numpy as np
from index import BuildOptions, build

def die(event):
    if event.phase == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

rows = np.random.default_rng(0).normal(size=(2500, 16)).astype(np.float32)
build(rows, sys.argv[1], options=BuildOptions(preview="graph"), on_progress=die, replace=True)
"""

KILLED_IN_THE_RENAME = """
import os, signal, sys
import index.publication

exchange = index.publication._exchange
if sys.argv[2] == "before":
    index.publication._exchange = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
else:
    index.publication._exchange = lambda *paths: (exchange(*paths), os.kill(os.getpid(), signal.SIGKILL))
"""


def killed(program: str, *arguments) -> None:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def new_rows() -> np.ndarray:
    return random_rows(2500, 16)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Hits of a build that nothing disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    build(new_rows(), out, options=BuildOptions(preview="graph"))
    with open_index(out) as index:
        return index.search(new_rows()[:100], k=10)


@pytest.mark.parametrize("phase", PHASES)
def test_s14_killed_in_any_phase_nothing_half_made_is_seen(tmp_path, phase, undisturbed):
    killed(KILLED, tmp_path / "out", phase)
    with pytest.raises(UnknownIndexError):
        open_index(tmp_path / "out")
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) == 1 and left[0].startswith(".out.building-")
    assert publication.remove_leftovers(tmp_path) == [tmp_path / left[0]]
    assert list(tmp_path.iterdir()) == []
    build(new_rows(), tmp_path / "out", options=BuildOptions(preview="graph"))
    with open_index(tmp_path / "out") as index:
        assert same_hits(index.search(new_rows()[:100], k=10), undisturbed)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_s14_killed_in_the_rename_the_old_or_the_new_index_is_whole(tmp_path, moment, undisturbed):
    old = random_rows(50, 16, seed=4)
    build(old, tmp_path / "out")
    killed(KILLED_IN_THE_RENAME + KILLED, tmp_path / "out", moment)
    with open_index(tmp_path / "out") as index:
        if moment == "before":
            require_reference(index.search(old, k=5), old, old, "cosine", 5)
        else:
            assert same_hits(index.search(new_rows()[:100], k=10), undisturbed)
    assert len(publication.remove_leftovers(tmp_path)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_s14_a_running_build_is_no_leftover(tmp_path):
    seen = []

    def look(event):
        if event.phase == "codes" and not seen:
            seen.append(publication.remove_leftovers(tmp_path))

    build(random_rows(500, 8), tmp_path / "out", on_progress=look)
    assert seen == [[]]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- S17 --------------------------------------------------------------------------------------------------------

pytestmark_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def in_a_fork(work) -> str:
    """What `work()` returns in a forked child, as text, within 10 s."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = "nothing"
        try:
            answer = str(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(send, answer.encode())
            os._exit(0)
    os.close(send)
    signal.setitimer(signal.ITIMER_REAL, 10)
    previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    try:
        with os.fdopen(receive, "rb") as pipe:
            return pipe.read().decode()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        os.waitpid(pid, 0)


@pytestmark_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("io_mode", ["auto", "threads", "buffered"])
def test_s17_a_forked_child_searches_the_index_of_its_parent(tmp_path, io_mode):
    from index import OpenOptions, SearchOptions

    rows = random_rows(2500, 24)
    build(rows, tmp_path / "out", options=BuildOptions(preview="graph"))
    with open_index(tmp_path / "out", options=OpenOptions(io_mode=io_mode)) as index:
        expected = index.search(rows[:60], k=10)  # the parent has searched before it forks
        for _ in range(2):
            assert in_a_fork(lambda: same_hits(index.search(rows[:60], k=10), expected)) == "True"
        exact = SearchOptions(exact=True)
        whole = index.search(rows[:3], k=10, options=exact)
        assert in_a_fork(lambda: same_hits(index.search(rows[:3], k=10, options=exact), whole)) == "True"
        assert in_a_fork(lambda: (index.vectors([0, 5]) == index.vectors([0, 5])).all()) == "True"
        # A child of the child, and the parent afterwards.
        assert in_a_fork(lambda: in_a_fork(lambda: same_hits(index.search(rows[:60], k=10), expected))) == "True"
        assert same_hits(index.search(rows[:60], k=10), expected)
        # What the child closes stays open here.
        assert in_a_fork(index.close) == "None"
        assert same_hits(index.search(rows[:60], k=10), expected)


@pytestmark_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_s17_a_forked_child_builds(tmp_path):
    rows = random_rows(600, 8)
    build(rows, tmp_path / "parent")
    assert in_a_fork(lambda: build(rows, tmp_path / "child").rows) == "600"
    with open_index(tmp_path / "child") as child, open_index(tmp_path / "parent") as parent:
        assert same_hits(child.search(rows[:50], k=5), parent.search(rows[:50], k=5))


def _search_in_pool(arguments):
    path, queries = arguments
    with open_index(path) as index:
        return index.search(queries, k=10).ids.tolist()


@pytest.mark.parametrize("start", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_s17_a_pool_of_processes_each_with_its_own_index(tmp_path, start):
    rows = random_rows(600, 8)
    build(rows, tmp_path / "out")
    with open_index(tmp_path / "out") as index:
        expected = index.search(rows[:20], k=10).ids.tolist()
    with multiprocessing.get_context(start).Pool(2) as pool:
        answers = pool.map_async(_search_in_pool, [(tmp_path / "out", rows[:20])] * 4).get(timeout=60)
    assert answers == [expected] * 4


WITH_TORCH = """
import sys
if sys.argv[2] == "torch first":
    import torch
    import index
else:
    import index
    import torch
import numpy as np, os

rows = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
index.build(rows, sys.argv[1])
with index.open_index(sys.argv[1]) as opened:
    expected = opened.search(rows[:10], k=5).ids
    assert torch.ones(256, 256).matmul(torch.ones(256, 256)).sum() == 256**3
    pid = os.fork()
    if pid == 0:
        os._exit(0 if (opened.search(rows[:10], k=5).ids == expected).all() else 1)
    assert os.waitpid(pid, 0)[1] == 0
print("same")
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed (extra hf or gpu)")
@pytest.mark.parametrize("order", ["torch first", "index first"])
def test_s17_beside_torch(tmp_path, order):
    command = [sys.executable, "-c", WITH_TORCH, str(tmp_path / "out"), order]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "same"
