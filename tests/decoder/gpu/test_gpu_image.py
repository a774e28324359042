"""The container file for devices says what operators rely on; docs/gpu.md names what is there. Only files are read."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
LINES = (REPOSITORY / "docker" / "Dockerfile.gpu").read_text().splitlines()
JOINED = re.sub(r"\\\n\s*", "", "\n".join(line for line in LINES if not line.lstrip().startswith("#")))
INSTRUCTIONS = [tuple(line.split(maxsplit=1)) for line in JOINED.splitlines() if line.strip()]
FINAL = INSTRUCTIONS[max(i for i, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM") :]
PAGE = (REPOSITORY / "docs" / "gpu.md").read_text()


def words(stage: list[tuple[str, ...]], instruction: str) -> list[str]:
    return [given for name, given in stage if name == instruction]


def test_it_stands_on_the_cuda_runtime_and_does_not_run_as_root():
    (base,) = [given for given in words(INSTRUCTIONS, "ARG") if given.startswith("BASE=")]
    assert re.fullmatch(r"BASE=nvidia/cuda:12\.\d+\.\d+-runtime-ubuntu24\.04", base)
    assert words(FINAL, "USER") == ["10001:10001"]
    names = [name for name, _ in FINAL]
    assert names.index("USER") < names.index("CMD")


def test_it_installs_the_extra_and_keeps_the_compiler_that_triton_needs():
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = re.findall(r'pip install "\.\[([\w,]+)\]"', JOINED)
    assert "gpu" in asked.split(",") and set(asked.split(",")) <= extras.keys()
    assert any("apt-get install" in given and " gcc " in given for given in words(FINAL, "RUN"))


def test_caches_are_writable_for_the_user():
    variables = dict(pair.split("=", 1) for given in words(FINAL, "ENV") for pair in given.split())
    (owned,) = [given for given in words(FINAL, "RUN") if "install -d -o fullview" in given]
    assert variables["NUMBA_CACHE_DIR"] in owned.split() and variables["TRITON_CACHE_DIR"] in owned.split()


def test_every_copied_path_is_there_and_the_health_check_is_valid():
    for given in words(INSTRUCTIONS, "COPY"):
        if not given.startswith("--from"):
            assert all((REPOSITORY / source).exists() for source in given.split()[:-1]), given
    (check,) = words(FINAL, "HEALTHCHECK")
    program = json.loads(check[check.index("[") :])
    ast.parse(program[2])
    assert "/readyz" in program[2]


def test_files_that_the_page_names_exist():
    named = re.findall(r"`((?:decoder|index|docker|service)/[\w/.]*)", PAGE)
    assert len(named) > 10
    assert not [path for path in named if not (REPOSITORY / path).exists()]


def test_the_page_says_that_nothing_was_measured():
    assert "never run on a device" in PAGE.lower() and "still to be" in PAGE
