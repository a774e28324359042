"""One contender: built in a process of its own, opened in a fresh one, swept over its knob.

build_contest   Contest with build time, peak memory, size; the oracle's answers where asked for
Opened          a contender's fresh process, ready; sweep() fills in the Contest's points and memory
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.bench.display import Display
from service.bench.peers import Contender, Variant
from service.bench.results import Contest, Point
from service.bench.truth import Truth
from service.bench.worker_process import WorkerProcess
from service.bench.workers.searcher import Job

PAGE_BYTES = 4096
K = 10
BUILT = "built.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a run measures. threads: numbers of threads, ascending. seconds: of one measurement at least;
    singles: queries timed alone; enough: the recall at which a sweep ends; repeat: turns of a comparison."""

    threads: tuple[int, ...]
    seconds: float = 0.5
    singles: int = 500
    enough: float = 0.995
    repeat: int = 3


def build_contest(
    contender: Contender, variant: Variant, job: Job, python: Path, display: Display, *, oracle: bool = False
) -> tuple[Contest, NDArray[np.int64] | None]:
    """Build in a fresh process. oracle: also return the true neighbours, int64 (m, K)."""
    contest = Contest(name=contender.name, label=variant.label, on_disk=contender.on_disk)
    rows = None
    with WorkerProcess(contender.worker, python, Path(job.folder) / "log.txt") as worker:
        contest.versions = worker.ask("hello")["versions"]
        with display.step(f"{contest.title}: getting ready to build"):
            worker.ask("prepare", job=job)
        before = worker.memory().anonymous
        with display.step(f"{contest.title}: building") as step:
            said = worker.ask("build", job=job, on_progress=step.phase)
        _note_build(contest, said, peak=max(0, worker.peak - before))
        worker.ask("finish", job=job, said=said)
        if oracle:
            with display.step("exact answers of all queries"):
                worker.ask("warm", job=job)
                worker.ask("open", job=job)
                path = Path(job.folder) / "exact.npy"
                worker.ask("exact", k=K, threads=job.threads, rows=str(path))
                rows = np.load(path)
    return contest, rows


def reuse_or_build(
    contender: Contender, variant: Variant, job: Job, python: Path, display: Display, *, identity: dict[str, Any]
) -> Contest:
    """Take the index that an earlier run left in job.folder if it is of the same data and options, else build it."""
    remembered = Path(job.folder) / BUILT
    wanted = {
        **identity,
        "parameters": variant.parameters,
        "requirements": list(contender.requirements),
        "budget_bytes": job.budget_bytes,
        "threads": job.threads,
    }
    if remembered.is_file():
        earlier = json.loads(remembered.read_text(encoding="utf-8"))
        if earlier["wanted"] == wanted:
            contest = Contest(name=contender.name, label=variant.label, on_disk=contender.on_disk)
            contest.versions, contest.build_reused = earlier["versions"], True
            _note_build(contest, earlier["said"], peak=earlier["peak"])
            display.say(f"{contest.title}: the index of an earlier run, built in {contest.build_seconds:.1f} s")
            return contest
    contest, _ = build_contest(contender, variant, job, python, display)
    said = {"seconds": contest.build_seconds, "disk_bytes": contest.disk_bytes, "notes": contest.notes}
    kept = {"wanted": wanted, "versions": contest.versions, "said": said, "peak": contest.build_peak_bytes}
    remembered.write_text(json.dumps(kept), encoding="utf-8")
    return contest


def _note_build(contest: Contest, said: dict[str, Any], *, peak: int) -> None:
    # From outside, memory is looked at 50 times a second; fullview also watches itself.
    contest.build_peak_bytes = max(peak, said.get("report", {}).get("peak_bytes", 0))
    contest.build_seconds = said["seconds"]
    contest.disk_bytes, contest.notes = said["disk_bytes"], list(said["notes"])
    contest.report = said.get("report", {})


class Opened:
    """A contender's fresh process with its index open. A context manager."""

    def __init__(self, contender: Contender, contest: Contest, job: Job, python: Path) -> None:
        self.contest, self._job = contest, job
        self.process = WorkerProcess(contender.worker, python, Path(job.folder) / "log.txt")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.process.__exit__(kind, *rest)

    def sweep(self, truth: Truth, effort: Effort, display: Display) -> None:
        """Open, then measure setting after setting until the recall is enough; then look at the memory."""
        contest, process = self.contest, self.process
        with display.step(f"{contest.title}: measuring") as step:
            process.ask("warm", job=self._job)
            before = process.memory()
            said = process.ask("open", job=self._job)
            contest.resident_parts = said["parts"]
            contest.notes += said.get("notes", [])
            settings = process.ask("settings")["settings"]
            for number, setting in enumerate(settings):
                step.advance(number, len(settings))
                point = self._measure(setting, truth, effort)
                contest.points.append(point)
                if point.recall >= effort.enough:
                    break
            growth = process.memory() - before
        contest.resident_bytes, contest.resident_anonymous_bytes = growth.total, growth.anonymous

    def batch(self, setting: dict[str, float], threads: int, seconds: float, rows: str | None = None) -> dict[str, Any]:
        """Throughput at a setting; see workers/serve.py."""
        answer: dict[str, Any] = self.process.ask(
            "batch", k=K, setting=setting, threads=threads, seconds=seconds, rows=rows
        )
        return answer

    def _measure(self, setting: dict[str, float], truth: Truth, effort: Effort) -> Point:
        with tempfile.NamedTemporaryFile(suffix=".npy", dir=self._job.folder) as file:
            first = self.batch(setting, effort.threads[0], effort.seconds, file.name)
            recall = truth.recall(np.load(file.name))
        qps = {effort.threads[0]: first["qps"]}
        for threads in effort.threads[1:]:
            qps[threads] = self.batch(setting, threads, effort.seconds)["qps"]
        single = self.process.ask("single", k=K, setting=setting, count=effort.singles)
        device = first["read_bytes"]
        pages_device = None if device is None else device / PAGE_BYTES
        work = first["work"]
        return Point(
            setting=setting,
            recall=recall.mean,
            low=recall.low,
            high=recall.high,
            qps=qps,
            p50_us=single["p50_us"],
            p95_us=single["p95_us"],
            p99_us=single["p99_us"],
            pages=work.get("pages_read", pages_device if self.contest.on_disk else 0.0),
            pages_device=pages_device,
            bytes_device=device,
            rows_scored=work.get("rows_scored"),
            cpu_us=first["cpu_us"],
        )
