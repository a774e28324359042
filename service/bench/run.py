"""A benchmark from end to end: files, oracle, builds, sweeps, comparisons, results.

run   everything that was asked for -> Results. Ctrl-C at any time ends all children and removes the working files.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index import BuildOptions, check_build
from index.budget import budget_bytes
from index.errors import OptionsError
from service.bench.compare import compare
from service.bench.datasets import Dataset, Files, write_files
from service.bench.display import Display
from service.bench.environments import PeerUnavailableError, environment_of
from service.bench.machine import describe_machine
from service.bench.measure import Effort, K, Opened, build_contest, reuse_or_build
from service.bench.peers import FULLVIEW, Contender, Variant
from service.bench.results import Contest, Results
from service.bench.truth import Truth
from service.bench.worker_process import WorkerError
from service.bench.workers.searcher import Job
from service.bench.working import terminated_like_interrupted, working_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. budget: as BuildOptions.memory_budget. recalls: compared at. cache: where peers' environments lie.

    work: folder for temporary files, on the device to be measured. keep: folder for peers' indexes, kept for later
    runs, or None. pythons: peer -> a Python that has it already, in place of its own environment.
    """

    dataset: Dataset
    budget: str
    effort: Effort
    recalls: tuple[float, ...]
    peers: tuple[Contender, ...]
    all_variants: bool
    build_threads: int
    cache: Path
    work: Path
    keep: Path | None
    pythons: dict[str, Path]


def run(plan: Plan, display: Display) -> Results:
    """Measure everything. A peer that cannot be had or fails is named in Results.missing with the reason."""
    begun = time.monotonic()
    dataset = plan.dataset
    if dataset.n < K:
        raise OptionsError(f"{dataset.name} has {dataset.n} vectors; recall@{K} needs at least {K}.")
    # Refuses a budget that is too small now, and not after peers were installed.
    check_build(
        dataset.base, options=BuildOptions(metric=dataset.metric, memory_budget=plan.budget), vector=dataset.vector
    )
    results = Results(
        dataset={
            "name": dataset.name,
            "rows": dataset.n,
            "dim": dataset.dim,
            "dtype": dataset.dtype,
            "metric": dataset.metric.value,
            "query_note": dataset.query_note,
        },
        machine=describe_machine(),
        command=" ".join(["fullview", *sys.argv[1:]]),
        budget=plan.budget,
        budget_bytes=budget_bytes(plan.budget, n=dataset.n, dim=dataset.dim),
        threads=list(plan.effort.threads),
        k=K,
        queries=len(dataset.queries),
    )
    with terminated_like_interrupted(), working_folder(plan.work) as folder, ExitStack() as stack:
        pythons = _environments(plan, results, display)
        with display.step(f"{dataset.name}: writing {dataset.n:,} vectors for everyone") as step:
            files = write_files(dataset, folder, advance=step.advance)
        _Run(plan, results, files, folder, display).all(pythons, stack)
    results.seconds = round(time.monotonic() - begun, 1)
    return results


class _Run:
    """One run under way."""

    def __init__(self, plan: Plan, results: Results, files: Files, folder: Path, display: Display) -> None:
        self.plan, self.results, self.files = plan, results, files
        self.folder, self.display = folder, display

    def all(self, pythons: dict[str, Path], stack: ExitStack) -> None:
        """fullview first, whose oracle the others need; then each peer, compared while both are open."""
        plan = self.plan
        job = self._job(FULLVIEW, FULLVIEW.variants[0])
        contest, rows = build_contest(
            FULLVIEW, FULLVIEW.variants[0], job, Path(sys.executable), self.display, oracle=True
        )
        assert rows is not None, "the oracle was asked for"
        truth = Truth(self.files.base, np.load(self.files.queries), plan.dataset.metric, rows)
        if plan.dataset.neighbours is not None and plan.dataset.neighbours.shape[1] >= K:
            agreement = truth.agreement(plan.dataset.neighbours)
            self.results.dataset["neighbours_agree"] = agreement
            self.display.say(f"the set's own neighbours agree with the oracle: {agreement:.2%}")
        ours = stack.enter_context(Opened(FULLVIEW, contest, job, Path(sys.executable)))
        ours.sweep(truth, plan.effort, self.display)
        self.results.contests.append(contest)
        for peer in plan.peers:
            if peer.name in self.results.missing:
                continue
            for variant in peer.variants if plan.all_variants else peer.variants[:1]:
                self._peer(peer, variant, pythons[peer.name], ours, truth)

    def _peer(self, peer: Contender, variant: Variant, python: Path, ours: Opened, truth: Truth) -> None:
        """One variant of a peer. Its process ends before the next one is built."""
        job = self._job(peer, variant)
        identity = {
            "dataset": [self.results.dataset[name] for name in ("name", "rows", "dim", "dtype", "metric")],
            "bytes": self.plan.dataset.base.stat().st_size,
        }
        try:
            contest = reuse_or_build(peer, variant, job, python, self.display, identity=identity)
            with Opened(peer, contest, job, python) as theirs:
                theirs.sweep(truth, self.plan.effort, self.display)
                self.results.contests.append(contest)
                for recall in self.plan.recalls:
                    with self.display.step(f"{contest.title} and fullview in turn at recall {recall:g}"):
                        self.results.comparisons.append(compare(ours, theirs, recall, self.plan.effort))
        except WorkerError as error:
            title = Contest(name=peer.name, label=variant.label, on_disk=peer.on_disk).title
            self.results.missing[title] = str(error)
            self.display.say(f"{title} failed: {error}")
        finally:
            if self.plan.keep is None:
                shutil.rmtree(job.folder, ignore_errors=True)

    def _job(self, contender: Contender, variant: Variant) -> Job:
        name = contender.name + ("-" + variant.label.replace(" ", "-") if variant.label else "")
        place = self.folder
        if self.plan.keep is not None and contender is not FULLVIEW:
            place = self.plan.keep / self.plan.dataset.name
        folder = place / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "built.json").exists():
            shutil.rmtree(folder)
            folder.mkdir()
        files, dataset = self.files, self.plan.dataset
        return Job(
            folder=str(folder),
            base=str(files.base),
            queries=str(files.queries),
            metric=dataset.metric.value,
            threads=self.plan.build_threads,
            budget_bytes=self.results.budget_bytes,
            budget=self.plan.budget,
            base_given=None if files.base_given is None else str(files.base_given),
            queries_given=None if files.queries_given is None else str(files.queries_given),
            source=str(dataset.base.resolve()),
            vector=dataset.vector,
            sample_queries=None if files.sample_queries is None else str(files.sample_queries),
            parameters=variant.parameters,
        )


def _environments(plan: Plan, results: Results, display: Display) -> dict[str, Path]:
    """Every peer's Python, before anything long is begun; those that cannot be had go into results.missing."""
    pythons: dict[str, Path] = {}
    for peer in plan.peers:
        metric = plan.dataset.metric
        if metric not in peer.metrics:
            results.missing[peer.name] = f"it has no {metric.value} here"
        elif peer.name in plan.pythons:
            pythons[peer.name] = plan.pythons[peer.name]
        else:
            try:
                pythons[peer.name] = environment_of(peer, plan.cache, display)
            except PeerUnavailableError as error:
                results.missing[peer.name] = str(error)
        if peer.name in results.missing:
            display.say(f"{peer.name} is left out: {results.missing[peer.name]}")
    return pythons
