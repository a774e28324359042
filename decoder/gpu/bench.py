"""Does the decoder on a device work there, and how fast is it: checks of every kernel, then times of walk, scan and exact.

    python -m decoder.gpu.bench --out FOLDER     needs a CUDA device; meant to take under four minutes on an H200

Times are medians over REPEATS calls, each after the second-level cache was written over (layers that fit it would be read
from it otherwise, as they never are between two steps of a model). "device" is the time between two events around a call,
"call" the time until the caller has the answer. exact is what one would write without this package: a bfloat16 product and
torch.topk, captured as a CUDA graph as the others are. The layers are synthetic (synthetic.py): their recall says that
kernels work.
"""

# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

import argparse
import csv
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from decoder.gpu.head import GpuHead, Way
    from decoder.gpu.synthetic import ClusteredLayer

SHAPES = ((49_152, 576), (128_256, 2_048), (128_256, 4_096), (256_000, 4_096))
BATCHES = (1, 8, 64)
K = 10
REPEATS = 30
SECONDS = 240.0
CACHE_BYTES = 256 * 2**20
"""More than any second-level cache."""
NO_DEVICE = 2
"""Exit code where there is no CUDA device."""


class Timed(NamedTuple):
    """One row of the table."""

    vocab: int
    dim: int
    batch: int
    way: str
    device_us: float
    call_us: float
    precision: float
    """Part of the best 10 of all rows in float32 that is found."""
    rows_scored: int
    read_mb: float
    """Codes or weights that the way reads to find candidates, MB: a lower bound of its time is this over the bandwidth."""


def table(rows: Sequence[Timed]) -> list[str]:
    """Lines of a Markdown table, exact's time as the measure of each shape and batch."""
    exact = {row[:3]: row.device_us for row in rows if row.way == "exact"}
    lines = [
        "| V | d | batch | way | device us | call us | exact / this | P@10 | rows scored | MB read |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        ratio = f"{exact[row[:3]] / row.device_us:.2f}" if row[:3] in exact else ""
        lines.append(
            f"| {row.vocab:,} | {row.dim:,} | {row.batch} | {row.way} | {row.device_us:.1f} | {row.call_us:.1f} "
            f"| {ratio} | {row.precision:.4f} | {row.rows_scored:,} | {row.read_mb:.1f} |"
        )
    return lines


def write(folder: Path, rows: Sequence[Timed], heading: Sequence[str]) -> None:
    """bench.md and bench.csv in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.md").write_text("\n".join([*heading, "", *table(rows), ""]), encoding="utf-8")
    with (folder / "bench.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Timed._fields)
        writer.writerows(rows)


def precision(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Part of the wanted ids that is found. Both: [n, k]."""
    return float((found[:, :, None] == wanted[:, None, :]).any(1).float().mean())


class Stopwatch:
    """Times calls on one device, with its second-level cache written over before each."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._torch, self._device = torch, device
        self._cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=device)

    def median_us(self, call: Callable[[], object]) -> tuple[float, float]:
        """(between events on the device, until the caller has the answer), microseconds."""
        cuda = self._torch.cuda
        device_us, call_us = [], []
        for _ in range(REPEATS):
            self._cache.zero_()
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            # The host queues all of it while the device is still writing, so that no launch is waited for.
            start.record()
            call()
            end.record()
            end.synchronize()
            device_us.append(start.elapsed_time(end) * 1e3)
            self._cache.zero_()
            cuda.synchronize(self._device)
            began = time.perf_counter()
            call()
            cuda.synchronize(self._device)
            call_us.append((time.perf_counter() - began) * 1e6)
        return sorted(device_us)[REPEATS // 2], sorted(call_us)[REPEATS // 2]


def captured_exact(weight: torch.Tensor, batch: int) -> Callable[[torch.Tensor], Any]:
    """A bfloat16 product and torch.topk as one CUDA graph; states in, ids out."""
    import torch

    states = torch.zeros((batch, weight.shape[1]), dtype=torch.bfloat16, device=weight.device)

    def work() -> torch.Tensor:
        return (states @ weight.T).topk(K, dim=1).indices

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids = work()

    def call(given: torch.Tensor) -> torch.Tensor:
        states.copy_(given)
        graph.replay()
        return ids.clone()

    return call


def times_of(layer: ClusteredLayer, head: GpuHead, stopwatch: Stopwatch, batch: int) -> list[Timed]:
    """exact, scan and walk of one batch size."""
    import torch

    vocab, dim = layer.weight.shape
    states = layer.states(batch, seed=batch)
    many = layer.states(64, seed=99)
    truth = head.topk(many, K, mode="exact").token_ids
    rows = []
    exact = captured_exact(layer.weight, batch)
    found = [exact(part) for part in many.split(batch)]
    measured = stopwatch.median_us(lambda: exact(states))
    mb = vocab * dim * 2 / 1e6
    rows.append(Timed(vocab, dim, batch, "exact", *measured, precision(torch.cat(found), truth), vocab, mb))
    code_bytes = head.nbytes()["codes"] / vocab
    ways: tuple[Way, ...] = ("scan", "walk")
    for way in ways:
        answers = [head.topk(part, K, mode=way) for part in many.split(batch)]
        scored = int(torch.cat([answer.rows_scored for answer in answers]).float().mean())
        reached = precision(torch.cat([answer.token_ids for answer in answers]), truth)
        measured = stopwatch.median_us(partial(head.topk, states, K, mode=way))
        mb = code_bytes * (vocab if way == "scan" else batch * scored) / 1e6
        rows.append(Timed(vocab, dim, batch, way, *measured, reached, scored, mb))
    return rows


def run_checks(device: torch.device) -> list[str]:
    """Compare every kernel with its twin; the lines say what failed, none: all agree."""
    from decoder.gpu.checks import check_kernels

    failed, count = [], 0
    for check in check_kernels(device):
        count += 1
        if not check.passed:
            failed.append(f"{check.name}: differs by {check.worst:.3g}, allowed {check.allowed:.3g}")
            print(f"  FAILED {failed[-1]}", flush=True)
    print(f"  {count - len(failed)} of {count} comparisons agree", flush=True)
    return failed


def run_times(device: torch.device, *, shapes: Sequence[tuple[int, int]], began: float, seconds: float) -> list[Timed]:
    """Times of all shapes and batches that the time allows."""
    import torch

    from decoder.gpu.head import GpuHead
    from decoder.gpu.synthetic import clustered

    rows: list[Timed] = []
    stopwatch = Stopwatch(device)
    for vocab, dim in shapes:
        left = seconds - (time.perf_counter() - began)
        if left < seconds / 8:
            print(f"  {vocab:,} x {dim:,}: left out, {left:.0f} s of {seconds:.0f} s are left", flush=True)
            continue
        print(f"  {vocab:,} x {dim:,}: making the layer ({time.perf_counter() - began:.0f} s)", flush=True)
        layer = clustered(vocab, dim, device=device)
        head = GpuHead(
            weight=layer.weight,
            codes=layer.codes,
            code_scales=layer.scales,
            code_bias=torch.zeros(vocab, device=device),
            links=layer.links,
            entries=layer.entries,
        )
        for batch in BATCHES:
            rows += times_of(layer, head, stopwatch, batch)
            print(*(f"    {line}" for line in table(rows[-3:])[2:]), sep="\n", flush=True)
        del layer, head
        torch.cuda.empty_cache()
    return rows


def _has_device() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, time, write the table. 0: all well; 1: a kernel differs from its twin; 2: no CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m decoder.gpu.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-bench"), help="folder of bench.md and bench.csv")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="when no further shape is begun")
    parser.add_argument("--shape", action="append", metavar="VxD", help="instead of the four, may be repeated")
    options = parser.parse_args(arguments)
    if not _has_device():
        print("decoder.gpu.bench needs torch with a CUDA device, and found none here: nothing was checked or timed.")
        return NO_DEVICE
    import torch

    began = time.perf_counter()
    device = torch.device("cuda", torch.cuda.current_device())
    wanted = [tuple(int(n) for n in shape.lower().split("x")) for shape in options.shape or ()]
    heading = [f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, batches {BATCHES}, k = {K}"]
    print(heading[0], "\nchecking kernels against their twins", sep="", flush=True)
    failed = run_checks(device)
    heading.append(f"Kernels against twins: {'all agree' if not failed else '; '.join(failed)}.")
    print(f"timing ({time.perf_counter() - began:.0f} s)", flush=True)
    shapes = [(vocab, dim) for vocab, dim in wanted] or SHAPES
    rows = run_times(device, shapes=shapes, began=began, seconds=options.seconds)
    write(options.out, rows, heading)
    print(f"{options.out}: bench.md, bench.csv; {time.perf_counter() - began:.0f} s in all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
