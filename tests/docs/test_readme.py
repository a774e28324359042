"""The README's program and commands run as they are written; what it says of files, options and figures is so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pages import REPOSITORY, blocks, page, section

from service.bench.app import index_command
from service.demo.server import start_server

README = page("README.md")
URL = "http://127.0.0.1:6333"
FIRST_SCREEN = 50
"""Lines."""
BUNDLED = REPOSITORY / "tests" / "data" / "wordnet"


def run(command: list[str], folder: Path) -> str:
    """Run in `folder` with this environment's programs; returns stdout. Fails with what the command said."""
    programs = str(Path(sys.executable).parent)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FULLVIEW_")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_figures(line: str) -> str:
    """Digits after an equals sign stay: they are part of what was asked for."""
    return re.sub(r"(?<![=\d.])\d[\d,.]*", "#", line)


@pytest.fixture
def checkout(tmp_path):
    """A folder with the bundled data where the README expects it."""
    (tmp_path / "tests").symlink_to(REPOSITORY / "tests")
    return tmp_path


@pytest.fixture
def small_checkout(tmp_path):
    """The same with fewer points, for commands whose answers are not printed in the README."""
    folder = tmp_path / "tests" / "data" / "wordnet"
    folder.mkdir(parents=True)
    points = pq.read_table(BUNDLED / "points.parquet")
    penguin = points.filter(pc.equal(points["id"], pa.scalar(102059224, pa.uint64())))
    assert len(penguin) == 1
    pq.write_table(pa.concat_tables([points.slice(0, 1500), penguin]), folder / "points.parquet")
    for name in ("queries.parquet", "sample_queries.npy"):
        shutil.copy(BUNDLED / name, folder)
    return tmp_path


def test_the_two_commands_come_first_and_the_program_within_the_first_screen():
    assert blocks(README, "")[0].split()[:2] == ["make", "demo"]
    assert README.index("make demo") < README.index("make test") < README.index("```python")
    assert README[: README.index("\n```\n", README.index("```python"))].count("\n") <= FIRST_SCREEN


def test_the_program_runs_and_prints_what_stands_below_it(checkout):
    program, stated = blocks(README, "python")[0], blocks(README, "")[1].splitlines()
    (checkout / "program.py").write_text(program)
    printed = run([sys.executable, "-W", "error", "program.py"], checkout).splitlines()
    assert printed[:2] == stated[:2]
    assert [without_figures(line) for line in printed[4:]] == [without_figures(line) for line in stated[4:]]
    for line in printed[4:6]:
        promised, measured = re.match(r"recall=([\d.]+): ([\d.]+) measured", line).groups()
        assert float(measured) >= float(promised)


def test_the_commands_run(small_checkout):
    (commands,) = blocks(section(README, "The same by command line"), "sh")
    printed = run(["bash", "-ec", commands], small_checkout)
    assert "wordnet.index: 1,501 rows of dimension 384" in printed and "operating points" in printed
    assert "3 queries, " in printed


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_requests_and_the_client_run(small_checkout):
    serve, requests = blocks(section(README, "The same over HTTP"), "sh")
    assert serve == "fullview serve --import-root tests/data/wordnet\n"
    (client,) = blocks(section(README, "The same over HTTP"), "python")
    server = start_server(
        Path(tempfile.mkdtemp(dir=small_checkout)), import_root=small_checkout / "tests" / "data" / "wordnet"
    )
    try:
        answers = run(["bash", "-ec", requests.replace(URL, server.url)], small_checkout)
        assert "event: done" in answers and '"pages_read":' in answers and '"low":' in answers
        printed = run([sys.executable, "-W", "error", "-c", client.replace(URL, server.url)], small_checkout)
        mine, nearest, _ = printed.splitlines()
        assert mine.startswith("1.000 penguins inhabit") and "king penguin" in nearest
    finally:
        assert server.end() == 0


def test_the_program_of_next_tokens_runs_and_prints_what_stands_below_it(checkout):
    part = section(README, "Next tokens")
    (program,), (stated,) = blocks(part, "python"), blocks(part, "")
    (checkout / "program.py").write_text(program)
    printed = run([sys.executable, "-W", "error", "program.py"], checkout).splitlines()
    assert [line.split()[-1] for line in printed[2:]] == [line.split()[-1] for line in stated.splitlines()[2:]]
    assert float(printed[0].rpartition(" ")[2]) >= 0.99 and float(printed[1].rpartition(" ")[2]) >= 0.98
    assert [without_figures(line) for line in printed] == [without_figures(line) for line in stated.splitlines()]


def test_options_of_the_benchmark_in_the_table_exist():
    known = {f"--{name.replace('_', '-')}" for name in index_command.__annotations__}
    named = set(re.findall(r" (--[a-z-]+)", "\n".join(re.findall(r"^\| `(--dataset [^`]*)`", README, re.M))))
    named |= set(re.findall(r"`(--[a-z-]+) ", section(README, "Numbers")))
    assert "--dataset" in named and not named - known


def test_the_figure_is_a_picture_with_hardware_and_memory_below_it():
    figure = re.search(r"!\[[^\]]+\]\((docs/recall_qps\.png)\)\n\n\*([^*]+)\*", README)
    assert (REPOSITORY / figure[1]).read_bytes().startswith(b"\x89PNG")
    assert "cores" in figure[2] and "MB" in figure[2] and "GiB" in figure[2]


def test_no_badges_and_what_it_is_not_for_comes_before_the_numbers():
    assert README.count("![") == 1
    headings = re.findall(r"^## (.+)$", README, re.M)
    assert headings.index("A program") < headings.index("What it is not for") < headings.index("Numbers")
    assert "docs/one-query.md" in section(README, "Read next").splitlines()[2]
