"""Which of walk, screen and exact answers a call: the cheapest, by times of this machine, that reaches what is asked.

Timings            microseconds a state of each mode, measured once per machine and kept beside the decoder
measure_timings    measures them, in about a second
Planner.choose     batch, k, recall, log Z -> mode and operating point

A walk's and a screen's time grows with its width and is the same for each state of a batch; an exact scan reads all rows
once for a batch, so its time falls with the batch. Nothing here changes what a mode answers.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from decoder.operating_points import DecoderPoint, pick, width_at
from decoder.option_checks import one_of
from decoder.store import TIMINGS
from decoder.threads import usable_cores
from index.descriptor import NotAFileError, open_regular

MODES = ("walk", "screen", "exact")
BATCHES = (1, 8, 64)
STATES = 24
ROUNDS = 5
"""The least of them counts: other work on the machine only adds, and rarely to all."""


class Run(Protocol):
    """Answers states float32 (n, d), k = 10, in a mode at a width, with log Z or without."""

    def __call__(self, mode: str, width: int, states: NDArray[np.float32], *, log_z: bool) -> object:
        """The answer, which nobody looks at."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Microseconds a state. walk, screen: (width, without log Z, with log Z); exact: (batch, microseconds).

    made: which decoder was timed; machine: where.
    """

    made: str
    machine: str
    walk: tuple[tuple[int, float, float], ...]
    screen: tuple[tuple[int, float, float], ...]
    exact: tuple[tuple[int, float], ...]

    def to_dict(self) -> dict[str, object]:
        """JSON-able."""
        return asdict(self)

    def of(self, mode: str, *, width: int, batch: int, log_z: bool) -> float:
        """Estimated microseconds a state."""
        if mode == "exact":
            return float(np.interp(np.log(batch), np.log([at for at, _ in self.exact]), [us for _, us in self.exact]))
        table = self.walk if mode == "walk" else self.screen
        widths, times = [row[0] for row in table], [row[2 if log_z else 1] for row in table]
        if len(widths) > 1 and width > widths[-1]:
            slope = (times[-1] - times[-2]) / (widths[-1] - widths[-2])
            return times[-1] + max(0.0, slope) * (width - widths[-1])
        return float(np.interp(width, widths, times))


@dataclass(frozen=True, slots=True)
class Choice:
    """mode; point: None for exact; reached: whether the point reaches what was asked."""

    mode: str
    point: DecoderPoint | None
    reached: bool


@dataclass(frozen=True, slots=True)
class Planner:
    """Chooses for one decoder on one machine."""

    points: Sequence[DecoderPoint]
    timings: Timings
    logprob_error: float

    def choose(self, *, mode: str, batch: int, k: int, recall: float, log_z: bool, vocab_size: int) -> Choice:
        """mode: one of MODES, or "auto"."""
        one_of("mode", mode, ("auto", *MODES))
        error = self.logprob_error if log_z else None
        if mode == "exact" or not self.points or k * 4 > vocab_size:
            return Choice("exact", None, reached=True)
        if mode != "auto" and not any(point.mode == mode for point in self.points):
            return Choice("exact", None, reached=True)
        if mode != "auto":
            # A mode that was asked for serves; what it gives of log Z is said by its standard error.
            point, reached = pick(self.points, mode, k=k, recall=recall, logprob_error=None)
            if mode == "screen" and not reached:
                point = replace(point, width=vocab_size)  # every row passes: all that a screen can do
            return Choice(mode, point, reached)
        best = Choice("exact", None, reached=True)
        least = self.timings.of("exact", width=0, batch=max(1, batch), log_z=log_z)
        for some in MODES[:2]:
            if not any(point.mode == some for point in self.points):
                continue
            point, reached = pick(self.points, some, k=k, recall=recall, logprob_error=error)
            if not reached:
                continue
            spent = self.timings.of(some, width=width_at(point, k), batch=batch, log_z=log_z)
            if spent < least:
                best, least = Choice(some, point, reached=True), spent
        return best


def measure_timings(run: Run, points: Sequence[DecoderPoint], states: NDArray[np.float32], made: str) -> Timings:
    """Time each mode. states: float32 (>= 1, d), as like as can be to those that will come; made: which decoder it is."""
    some = np.ascontiguousarray(np.resize(states, (max(BATCHES), states.shape[1])))
    tables: dict[str, list[tuple[int, float, float]]] = {"walk": [], "screen": []}
    for mode, table in tables.items():
        widths = sorted({point.width for point in points if point.mode == mode})
        for width in sorted({widths[0], widths[len(widths) // 2], widths[-1]}) if widths else ():
            without, with_log_z = (
                _least_us(partial(run, mode, width, some[:STATES], log_z=log_z), STATES) for log_z in (False, True)
            )
            table.append((width, without, with_log_z))
    exact = [(batch, _least_us(partial(run, "exact", 0, some[:batch], log_z=True), batch)) for batch in BATCHES]
    return Timings(
        made=made,
        machine=this_machine(),
        walk=tuple(tables["walk"]),
        screen=tuple(tables["screen"]),
        exact=tuple(exact),
    )


def load_timings(folder: Path, points: Sequence[DecoderPoint], made: str) -> Timings | None:
    """Those of this machine that lie in a decoder's folder and cover its points; None where they have to be measured.

    No checksum covers the file, since each machine writes its own: what is not as save_timings() writes it is no table.
    """
    try:
        with open(open_regular(folder / TIMINGS), "rb") as file:  # noqa: PTH123 (a descriptor)
            timings = msgspec.json.decode(file.read(), type=Timings)
    except (OSError, NotAFileError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    tables = {"walk": timings.walk, "screen": timings.screen}
    covered = all(tables[point.mode] for point in points) and _is_table(timings.exact)
    sensible = all(_is_table(table) for table in tables.values() if table)
    known = (timings.made, timings.machine) == (made, this_machine())
    return timings if covered and sensible and known else None


def _is_table(rows: Sequence[tuple[float, ...]]) -> bool:
    """Rows of increasing first numbers, all numbers finite and above 0."""
    firsts = [row[0] for row in rows]
    increasing = all(a < b for a, b in pairwise(firsts))
    return len(rows) > 0 and increasing and all(0 < number < 1e18 for row in rows for number in row)


def save_timings(folder: Path, timings: Timings) -> None:
    """Keep them in the folder where it may be written to; elsewhere they last as long as the decoder is open."""
    try:
        temporary = folder / f".{TIMINGS}.{os.getpid()}"
        temporary.write_text(json.dumps(timings.to_dict()), encoding="utf-8")
        temporary.replace(folder / TIMINGS)
    except OSError:
        return


def this_machine() -> str:
    """What times depend on: processor, cores that this process may use, NumPy."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "model\t", "cpu family")):
                name += " " + line.split(":")[1].strip()
            if line.startswith("flags"):
                break
    except (OSError, IndexError):
        pass
    return f"{name}, {usable_cores()} cores, numpy {np.__version__}"


def _least_us(call: Callable[[], object], states: int) -> float:
    call()
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times) * 1e6 / states
