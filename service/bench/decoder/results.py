"""What a benchmark of decoders finds. Plain data that results.json holds; times in microseconds a token, memory in bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

Setting = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Against exact answers of the held-out states.

    precision_1: share of states whose best token is right; precision_k: share of the k best that are found. rows_scored:
    mean. Of the best token's log-probability, in nats: logprob_error, mean absolute; logprob_error_p95; covered: share of
    states whose 95 % error bar holds the truth; half_width: the bar's mean. None where an entrant tells nothing of it.
    """

    precision_1: float
    precision_k: float
    rows_scored: float | None = None
    logprob_error: float | None = None
    logprob_error_p95: float | None = None
    covered: float | None = None
    half_width: float | None = None

    def reaches(self, target: tuple[float, float]) -> bool:
        """Whether both precisions are at least those of the target."""
        return self.precision_1 >= target[0] and self.precision_k >= target[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting: its quality, and the time of single states on one thread while it was tuned, not in turn."""

    setting: Setting
    quality: Quality
    us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Microseconds a token at one batch with one number of threads: median of the turns, least, most.

    speedup: over the fastest exact way of the same cell, median of the turns' ratios, least, most. mode: what answered.
    """

    threads: int
    batch: int
    us: float
    us_range: tuple[float, float]
    speedup: float
    speedup_range: tuple[float, float]
    mode: str = ""


@dataclass(slots=True, kw_only=True)
class EntrantResult:
    """One entrant. setting: the cheapest that reaches the target, and whether it does; points: all that were tried."""

    name: str
    kind: str
    build_seconds: float
    memory_bytes: int
    setting: Setting
    reached: bool
    quality: Quality
    points: list[Point]
    cells: list[Cell] = field(default_factory=list)

    def cell(self, threads: int, batch: int) -> Cell | None:
        """That of these threads and this batch, where it was measured."""
        return next((cell for cell in self.cells if (cell.threads, cell.batch) == (threads, batch)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many times as long `other` takes as `ours`: median of the turns' ratios, least, most."""

    ours: str
    other: str
    threads: int
    batch: int
    ratio: float
    ratio_range: tuple[float, float]


@dataclass(slots=True, kw_only=True)
class Results:
    """A whole run. target: precision at 1 and at k that settings had to reach. missing: entrant -> why it is not there."""

    head: dict[str, Any]
    machine: dict[str, Any]
    command: str
    k: int
    target: tuple[float, float]
    threads: list[int]
    batches: list[int]
    entrants: list[EntrantResult] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    fastest_exact: list[dict[str, Any]] = field(default_factory=list)
    decoder: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def named(self, name: str) -> EntrantResult | None:
        """The entrant of that name, where it was measured."""
        return next((entrant for entrant in self.entrants if entrant.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)
