"""What a build and a fold share: the manifest says with which options a generation was made."""

from __future__ import annotations

import numpy as np

from index import BuildOptions, build, open_index
from index.making import Making
from index.options import Metric
from index.progress import Steps


def test_a_manifest_holds_the_options_but_for_those_of_the_machine(tmp_path):
    given = BuildOptions(metric="dot", memory_budget="1/2", preview="flat", bits=8, recall=0.9, seed=7, threads=1)
    build(np.random.default_rng(0).normal(size=(50, 8)), tmp_path / "out", options=given)
    with open_index(tmp_path / "out") as index:
        told = index.generation.manifest.extras["options"]
    assert told.pop("threads") is None
    assert BuildOptions(**told, threads=1) == given


def test_a_making_tells_its_report_what_it_was_given(tmp_path):
    steps = Steps(None, None)
    making = Making(tmp_path, BuildOptions(metric="l2", seed=5, threads=3), steps, dim=4, dtype=np.dtype(np.float16))
    steps.abandon()
    report = making.report
    assert (making.metric, making.threads) == (Metric.L2, 3)
    assert (report.dim, report.dtype, report.metric, report.seed, report.threads) == (4, "float16", "l2", 5, 3)
