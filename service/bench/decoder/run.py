"""A benchmark of decoders from end to end: exact answers, everybody built and tuned, then the race.

run    everything that was asked for -> Results. Ctrl-C at any time leaves nothing behind but what is kept.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decoder import DecoderOptions
from index.errors import OptionsError
from service.bench.decoder.code_scan import CodeScan
from service.bench.decoder.cores import use_threads
from service.bench.decoder.entrant import Entrant, Kind, MissingEntrantError, Setting
from service.bench.decoder.exact_paths import NumpyExact, TorchExact
from service.bench.decoder.graphs import FaissGraph, HnswlibGraph
from service.bench.decoder.heads import Head
from service.bench.decoder.ours import DecoderOf, ours
from service.bench.decoder.quality import Truth
from service.bench.decoder.race import race
from service.bench.decoder.results import Cell, Comparison, EntrantResult, Results
from service.bench.decoder.svd_softmax import SvdSoftmax
from service.bench.decoder.tune import cheapest, sweep
from service.bench.display import Display
from service.bench.machine import describe_machine
from service.bench.working import terminated_like_interrupted, working_folder

K = 10
COMPARED = ("fullview", "fullview walk")
PEERS: dict[str, Callable[[DecoderOf], Entrant]] = {
    "scan": CodeScan,
    "hnswlib": lambda shared: HnswlibGraph(),
    "faiss": lambda shared: FaissGraph(),
    "svd": lambda shared: SvdSoftmax(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. target: precision at 1 and at K that settings must reach. peers: names of PEERS.

    seconds: of each timing; turns: of the race. work: folder for temporary files; keep: folder where what is built stays
    for later runs, or None. build_threads: of builds that take any number.
    """

    head: Head
    options: DecoderOptions
    target: tuple[float, float]
    threads: tuple[int, ...]
    batches: tuple[int, ...]
    peers: tuple[str, ...]
    seconds: float
    turns: int
    build_threads: int
    work: Path
    keep: Path | None


def run(plan: Plan, display: Display) -> Results:
    """Measure everything. An entrant that cannot be had is named in Results.missing with the reason."""
    begun = time.monotonic()
    head, layer = plan.head, plan.head.layer
    if layer.vocab_size < 4 * K:
        raise OptionsError(f"{head.name} has {layer.vocab_size} tokens; at least {4 * K} are needed.")
    results = Results(
        head={
            "name": head.name,
            "vocab_size": layer.vocab_size,
            "dim": layer.dim,
            "dtype": layer.dtype,
            "bias": bool(layer.bias.any()),
            "calibration_states": 0 if head.calibration is None else len(head.calibration),
            "states": len(head.states),
        },
        machine=describe_machine(),
        command=" ".join(["fullview", *sys.argv[1:]]),
        k=K,
        target=plan.target,
        threads=list(plan.threads),
        batches=list(plan.batches),
    )
    with terminated_like_interrupted(), working_folder(plan.work) as temporary:
        folder = temporary if plan.keep is None else plan.keep / head.name.replace(" ", "-").replace(",", "")
        folder.mkdir(parents=True, exist_ok=True)
        shared = DecoderOf(plan.options)
        try:
            _Run(plan, results, folder, display).all(shared)
        finally:
            shared.close()
            use_threads(plan.build_threads)
    results.seconds = round(time.monotonic() - begun, 1)
    return results


class _Run:
    """One run under way."""

    def __init__(self, plan: Plan, results: Results, folder: Path, display: Display) -> None:
        self.plan, self.results, self.folder, self.display = plan, results, folder, display

    def all(self, shared: DecoderOf) -> None:
        """Exact answers, then everybody built and tuned on one thread, then the race."""
        plan, results = self.plan, self.results
        use_threads(plan.build_threads)
        with self.display.step(f"{plan.head.name}: exact answers of {len(plan.head.states):,} states"):
            truth = Truth.of(plan.head.layer, plan.head.states, K, threads=plan.build_threads)
        runners: list[tuple[Entrant, Setting]] = []
        for entrant in entrants(shared, plan.peers):
            found = self._built_and_tuned(entrant, truth)
            if found is not None:
                results.entrants.append(found)
                runners.append((entrant, found.setting))
        report = shared.open(plan.head, self.folder, lambda *_: None).parts.report
        kept = ("links", "in_degree", "promise", "phases", "seconds", "peak_bytes", "resident_bytes")
        results.decoder = {name: report[name] for name in kept if name in report} | {"reused": shared.reused}
        for threads in plan.threads:
            if not use_threads(threads):
                results.notes.append(
                    "numpy's BLAS is of a kind whose threads cannot be set here: it takes its own number"
                )
            for batch in plan.batches:
                self._race(runners, threads, batch)
        results.notes = list(dict.fromkeys(results.notes))

    def _built_and_tuned(self, entrant: Entrant, truth: Truth) -> EntrantResult | None:
        plan = self.plan
        try:
            use_threads(plan.build_threads)
            with self.display.step(f"{entrant.name}: building") as step:
                entrant.prepare(plan.head, self.folder, step.phase)
        except MissingEntrantError as error:
            self.results.missing[entrant.name] = str(error)
            self.display.say(f"{entrant.name} is left out: {error}")
            return None
        use_threads(1)
        with self.display.step(f"{entrant.name}: tuning") as step:
            points = sweep(entrant, truth, batches=plan.batches, seconds=plan.seconds / 2, on_progress=step.advance)
        point, reached = cheapest(points, plan.target)
        return EntrantResult(
            name=entrant.name,
            kind=entrant.kind.value,
            build_seconds=round(entrant.build_seconds, 2),
            memory_bytes=entrant.memory_bytes,
            setting=point.setting,
            # What looks at every row has nothing to tune: it is what it is.
            reached=reached or entrant.kind is Kind.EXACT,
            quality=point.quality,
            points=points,
        )

    def _race(self, runners: Sequence[tuple[Entrant, Setting]], threads: int, batch: int) -> None:
        plan, results = self.plan, self.results
        with self.display.step(f"in turn: batch {batch}, {threads} thread{'s' if threads > 1 else ''}") as step:
            times, modes = race(
                runners, plan.head.states, K,
                threads=threads, batch=batch, seconds=plan.seconds, turns=plan.turns, on_progress=step.advance,
            )  # fmt: skip
        exact = {name: spent for name, spent in times.items() if self._is_exact(name)}
        fastest = min(exact, key=lambda name: statistics.median(exact[name]))
        results.fastest_exact.append({"threads": threads, "batch": batch, "name": fastest})
        for entrant in results.entrants:
            if entrant.name not in times:
                continue
            spent = times[entrant.name]
            speedup, speedup_range = _ratio(times[fastest], spent)
            entrant.cells.append(
                Cell(
                    threads=threads,
                    batch=batch,
                    us=statistics.median(spent),
                    us_range=(min(spent), max(spent)),
                    speedup=speedup,
                    speedup_range=speedup_range,
                    mode=modes[entrant.name],
                )
            )
        for name in COMPARED:
            for other, spent in times.items():
                if name in times and other != name:
                    ratio, ratio_range = _ratio(spent, times[name])
                    results.comparisons.append(
                        Comparison(
                            ours=name, other=other, threads=threads, batch=batch, ratio=ratio, ratio_range=ratio_range
                        )
                    )

    def _is_exact(self, name: str) -> bool:
        found = self.results.named(name)
        return found is not None and found.kind == Kind.EXACT.value


def entrants(shared: DecoderOf, peers: Sequence[str]) -> list[Entrant]:
    """Everybody: ours, the exact ways, the peers that were named."""
    exact: list[Entrant] = [NumpyExact()]
    exact += [TorchExact(dtype, single=single) for dtype in ("float32", "bfloat16") for single in (False, True)]
    return [*ours(shared), *exact, *(PEERS[name](shared) for name in peers)]


def peers_named(text: str) -> tuple[str, ...]:
    """The peers of a list such as "scan,hnswlib"; all for "all", none for "none". Raises OptionsError."""
    if text.strip() == "all":
        return tuple(PEERS)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip() not in ("", "none")))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise OptionsError(f"peer {unknown[0]!r} is not known; there are {', '.join(PEERS)}, all or none.")
    return names


def _ratio(longer: Sequence[float], shorter: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Median, least and most of the turns' ratios."""
    ratios = [a / b for a, b in zip(longer, shorter)]
    return statistics.median(ratios), (min(ratios), max(ratios))
