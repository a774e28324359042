"""What a build tells while it runs and when it is done.

BuildProgress   one event
BuildReport     everything the build did, chose and measured; report.json
Steps           the phases of one build: progress, cancel, seconds, peak memory
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from index.errors import BuildCancelledError

PHASES = ("scan", "sample", "codes", "order", "write", "graph", "tune", "verify", "publish")


class Cancel(Protocol):
    """Anything with is_set(), such as threading.Event."""

    def is_set(self) -> bool:
        """True once the build should stop."""
        ...


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """done of total in a phase; rate: a second; eta_s: seconds left in this phase, None where unknown."""

    phase: str
    done: int
    total: int
    rate: float
    eta_s: float | None


OnProgress = Callable[[BuildProgress], None]


@dataclass(slots=True, kw_only=True)
class BuildReport:
    """What a build did. Bytes, seconds; grown_bytes: what a fresh process took to
    open and search it (measured from 100,000 rows on); curve: operating points measured; choices: sentences that say why."""

    rows: int = 0
    distinct_rows: int = 0
    dim: int = 0
    dtype: str = ""
    metric: str = ""
    preview: str = ""
    bits: int | str = 0
    degree: int = 0
    seed: int = 0
    threads: int = 1
    budget_bytes: int = 0
    resident_bytes: dict[str, int] = field(default_factory=dict)
    grown_bytes: int | None = None
    disk_bytes: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    promised_recall: float = 0.0
    measured_recall: dict[str, float] = field(default_factory=dict)
    promise_kept: bool = True
    promise_covers: str = ""
    curve: list[dict[str, Any]] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    skipped_rows: list[tuple[str, int, int, str]] = field(default_factory=list)
    empty_files: list[str] = field(default_factory=list)
    conversion: str | None = None
    may_differ: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


class Steps:
    """Runs along a build: phase by phase, in order. advance() raises BuildCancelledError once cancel is set."""

    EVERY_SECONDS = 0.1

    def __init__(self, on_progress: OnProgress | None, cancel: Cancel | None) -> None:
        self._on_progress, self._cancel = on_progress, cancel
        self._begun = self._last = time.monotonic()
        self._phase, self._total = "", 0
        self.seconds: dict[str, float] = {}
        self._memory = _PeakMemory()

    def start(self, phase: str, total: int) -> None:
        """Enter a phase of `total` units."""
        assert phase in (*PHASES, "lists"), phase
        self._close_phase()
        self._phase, self._total, self._begun, self._last = phase, total, time.monotonic(), 0.0
        self.advance(0, total)

    def advance(self, done: int, total: int) -> None:
        """`done` of `total` units of the current phase are done; raises BuildCancelledError once cancel is set."""
        self.check()
        self.tell(done, total)

    def tell(self, done: int, total: int) -> None:
        """What advance() tells, where it is too late to cancel."""
        now = time.monotonic()
        if self._on_progress is not None and (now - self._last >= self.EVERY_SECONDS or done == total):
            self._last = now
            spent = now - self._begun
            rate = done / spent if spent > 0 else 0.0
            self._on_progress(
                BuildProgress(self._phase, done, total, rate, (total - done) / rate if rate > 0 else None)
            )

    def check(self) -> None:
        """Raise BuildCancelledError once cancel is set."""
        if self._cancel is not None and self._cancel.is_set():
            raise BuildCancelledError(f"the build was cancelled in phase {self._phase!r}; nothing is left behind")

    def finish(self) -> int:
        """The build's peak of anonymous memory above the level at its start, in bytes; ends the last phase but publish."""
        self._close_phase()
        return self._memory.stop()

    def abandon(self) -> None:
        """The build failed: stop watching."""
        self._memory.stop()

    def _close_phase(self) -> None:
        if self._phase:
            self.seconds[self._phase] = round(self.seconds.get(self._phase, 0.0) + time.monotonic() - self._begun, 3)
            self._phase = ""


class _PeakMemory:
    """Samples the process's anonymous memory (page cache is not counted) until stopped."""

    def __init__(self) -> None:
        self._start = self._peak = anonymous_bytes()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak-memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            self._peak = max(self._peak, anonymous_bytes())

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return max(0, max(self._peak, anonymous_bytes()) - self._start)


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process; 0 where the system does not tell."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
