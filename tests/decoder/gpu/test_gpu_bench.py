"""The benchmark without a device: it says so; its checks, its layers and its table work anywhere."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_layers import DEVICE, implementation, torch

from decoder.gpu import bench

REPOSITORY = Path(__file__).parents[3]
ROWS = [
    bench.Timed(128_256, 4_096, 1, "exact", 250.0, 280.0, 0.99, 128_256, 1050.7),
    bench.Timed(128_256, 4_096, 1, "scan", 100.0, 130.0, 1.0, 128_256, 263.0),
]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there is a device here")
def test_without_a_device_one_sentence_and_exit_code_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "decoder.gpu.bench", "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        env=dict(os.environ) | {"PYTHONPATH": str(REPOSITORY)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 2 and done.stderr == ""
    assert done.stdout.count("\n") == 1 and "CUDA device" in done.stdout and done.stdout.endswith(".\n")
    assert not (tmp_path / "out").exists()


def test_the_table_measures_against_exact(tmp_path):
    lines = bench.table(ROWS)
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert "| exact | 250.0 | 280.0 | 1.00 |" in lines[2] and "| scan | 100.0 | 130.0 | 2.50 | 1.0000 |" in lines[3]
    bench.write(tmp_path / "new" / "out", ROWS, ["a device"])
    assert (tmp_path / "new" / "out" / "bench.md").read_text().startswith("a device\n\n| V |")
    with (tmp_path / "new" / "out" / "bench.csv").open() as file:
        records = list(csv.DictReader(file))
    assert [record["way"] for record in records] == ["exact", "scan"] and float(records[1]["device_us"]) == 100.0


def test_the_shapes_are_those_that_are_compiled_ahead_of_time():
    implementation("triton")
    assert importlib.import_module("decoder.gpu.compile").SHAPES == bench.SHAPES


def test_precision_counts_what_is_found():
    wanted = torch.tensor([[1, 2], [3, 4]])
    assert bench.precision(torch.tensor([[2, 9], [4, 3]]), wanted) == 0.75


def test_every_kernel_passes_the_checks_of_the_benchmark():
    implementation("triton")
    checks = importlib.import_module("decoder.gpu.checks")
    found = list(checks.check_kernels(DEVICE, vocab=300, dim=40, batch=2, keep=16, widths=[4]))
    assert not [check for check in found if not check.passed]
    assert {check.name.split(":")[0].split(",")[0] for check in found} == {
        *("project", "quantise", "scan", "select", "score", "order", "walk", "sample")
    }


def test_a_wrong_kernel_fails_them(monkeypatch):
    implementation("triton")
    checks = importlib.import_module("decoder.gpu.checks")

    class Wrong:
        def __getattr__(self, name):
            if name == "score":
                return lambda *given, **named: checks.reference.score(*given, **named) + 0.01
            return getattr(checks.reference, name)

    monkeypatch.setattr(checks, "kernels", Wrong())
    found = list(checks.check_kernels(DEVICE, vocab=300, dim=40, batch=2, keep=16, widths=[4]))
    assert {check.name.split(",")[0] for check in found if not check.passed} == {"score"}


def test_synthetic_layers_have_neighbours_that_a_walk_can_follow():
    synthetic = importlib.import_module("decoder.gpu.synthetic")
    head_module = importlib.import_module("decoder.gpu.head")
    layer = synthetic.clustered(3_000, 64, device=DEVICE, degree=16, entries=64)
    assert layer.links.shape == (3_000, 16) and layer.links.max() < 3_000
    assert not (layer.links == torch.arange(3_000, device=DEVICE)[:, None]).any()
    head = head_module.GpuHead(
        weight=layer.weight,
        codes=layer.codes,
        code_scales=layer.scales,
        code_bias=torch.zeros(3_000),
        links=layer.links,
        entries=layer.entries,
        rerank=64,
        beam=32,
        places=2_048,
        kernels="torch",
    )
    states = layer.states(16, seed=3)
    wanted = head.topk(states, 10, mode="exact").token_ids
    assert bench.precision(head.topk(states, 10, mode="scan").token_ids, wanted) == 1.0
    walked = head.topk(states, 10, mode="walk")
    assert bench.precision(walked.token_ids, wanted) > 0.9 and (walked.rows_scored < 2_000).all()
