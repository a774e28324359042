"""What importing costs and which package may import which."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from guarded import REPOSITORY

EXTRAS = (
    "torch transformers tokenizers gguf jinja2 triton ray faiss matplotlib diskannpy usearch opentelemetry "
    "fastapi starlette uvicorn pydantic pydantic_settings typer rich prometheus_client httpx sqlite3 pytest"
).split()


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, cwd="/"
    ).stdout


@pytest.mark.parametrize("package", ["index", "decoder"])
def test_importing_an_engine_pulls_in_no_extra(package):
    code = f"import sys, {package}; print([name for name in {EXTRAS!r} if name in sys.modules])"
    assert run(code).strip() == "[]"


@pytest.mark.parametrize("package", ["index", "decoder", "service"])
def test_importing_prints_nothing_and_starts_no_thread(package):
    code = f"import threading, {package}; assert threading.active_count() == 1, threading.enumerate()"
    assert run(code) == ""


def test_layers():
    program = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([program, "--no-cache"], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_nothing_that_the_suite_installs_needs_torch():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for wanted in [project["dependencies"], extras["dev"], extras["cpu"], extras["bench"]]:
        heavy = ("torch", "triton", "transformers", "ray")
        assert not [line for line in wanted if line.lower().startswith(heavy)]


def test_no_extra_requires_both_wheels_of_faiss():
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, wanted in extras.items():
        text = " ".join(wanted)
        assert not ("faiss-cpu" in text and "faiss-gpu" in text), name
