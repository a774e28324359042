"""Kernels compile ahead of time for sm_90 and spill no registers. In a process of its own: here they may be interpreted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_layers import triton

REPOSITORY = Path(__file__).parents[3]
KERNELS = {"project", "quantise", "scan", "select", "score", "order", "expand", "frontier", "sample"}


def compiled(folder: Path, *arguments: str) -> list[list[str]]:
    """Cells of the table that the program prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "decoder.gpu.compile", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=570,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def check(table: list[list[str]]) -> None:
    assert {row[0] for row in table} == KERNELS
    for kernel, weights, constants, *_, registers, spilled, stack, shared in table:
        name = f"{kernel} {weights} {constants}"
        assert int(registers) <= 255 and spilled == "0" and stack == "0", name
        assert int(shared) <= 227 * 1024, name


@pytest.fixture(autouse=True)
def has_assembler():
    if not hasattr(triton, "knobs"):
        pytest.skip("reading ptxas's report needs triton 3.4 or newer")


def test_the_widest_variant_of_each_kernel_spills_nothing(tmp_path):
    check(compiled(tmp_path, "--widest"))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_shipped_variant_spills(tmp_path):
    table = compiled(tmp_path)
    check(table)
    assert {re.search(r"\bN=(\d+)", row[2])[1] for row in table if row[0] == "scan"} == {"16", "32", "64"}
    assert {re.search(r"\bBITS=(\d+)", row[2])[1] for row in table if row[0] == "expand"} == {"4", "8"}
