"""What a build tells while it runs.

BuildProgress     one event
Steps             the phases of one build: progress, cancel, seconds, peak memory
anonymous_bytes   what this process holds
peak_bytes        the most that it ever held
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from index.errors import BuildCancelledError

PHASES = ("scan", "sample", "codes", "order", "write", "graph", "tune", "verify", "publish")
"""Of an index with a graph; other previews have `lists` in place of `graph`."""


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


class Steps:
    """Runs along a build: phase by phase, in order. advance() raises BuildCancelledError once cancel is set."""

    EVERY_SECONDS = 0.1

    def __init__(
        self, on_progress: OnProgress | None, cancel: Cancel | None, *, phases: Sequence[str] = (*PHASES, "lists")
    ) -> None:
        self._on_progress, self._cancel, self._phases = on_progress, cancel, phases
        self._begun = self._last = time.monotonic()
        self._phase, self._total = "", 0
        self.seconds: dict[str, float] = {}
        self._memory = _PeakMemory()

    def start(self, phase: str, total: int) -> None:
        """Enter a phase of `total` units."""
        assert phase in self._phases, phase
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

    @property
    def peak_so_far(self) -> int:
        """What finish() would say now."""
        return self._memory.so_far()

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

    def so_far(self) -> int:
        return max(0, max(self._peak, anonymous_bytes()) - self._start)

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return self.so_far()


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process; 0 where the system does not tell."""
    return _status_bytes("RssAnon")


def peak_bytes() -> int:
    """Peak of this process's resident memory, files and all; 0 where the system does not tell.

    Of its own address space: getrusage() tells of a program that a large one started no less than the large one had.
    """
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
