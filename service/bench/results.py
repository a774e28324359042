"""What a benchmark finds: points of a sweep, a contender's build and memory, comparisons at equal recall.

Everything is plain data that results.json holds. Times in seconds or microseconds, memory in bytes, work a query.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting of a contender, measured.

    qps: threads -> queries a second. p50_us..p99_us: single queries on one thread. pages: what the contender counts,
    else pages_device; pages_device, bytes_device: /proc/self/io, None where the system does not tell. rows_scored: None
    where the contender does not count. cpu_us: user and system time of a query in batches on one thread.
    """

    setting: dict[str, float]
    recall: float
    low: float
    high: float
    qps: dict[int, float]
    p50_us: float
    p95_us: float
    p99_us: float
    pages: float | None
    pages_device: float | None
    bytes_device: float | None
    rows_scored: float | None
    cpu_us: float

    @property
    def best_qps(self) -> float:
        """With as many threads as were measured."""
        return self.qps[max(self.qps)]


@dataclass(slots=True, kw_only=True)
class Contest:
    """One contender, as one variant was built, and its sweep.

    build_seconds: all of its build; build_peak_bytes: the most anonymous memory above the level before it;
    build_reused: an earlier run's build was taken. resident_bytes: growth of a fresh process, compiled code loaded, from
    before the index was opened to after the whole sweep; of it resident_anonymous_bytes is not mapped files.
    """

    name: str
    label: str
    on_disk: bool
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    build_seconds: float = 0.0
    build_peak_bytes: int = 0
    build_reused: bool = False
    disk_bytes: int = 0
    resident_bytes: int = 0
    resident_anonymous_bytes: int = 0
    resident_parts: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Name and variant."""
        return f"{self.name} ({self.label})" if self.label else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """fullview (ours) and a peer (theirs) at one recall, measured in turn, median of the repetitions.

    Dictionaries are by threads. ratio: ours over theirs; ratio_range: of single repetitions. pages_ratio: ours over
    theirs. why_not: the sentence that stands where one of them does not reach the recall, else "".
    """

    recall: float
    peer: str
    why_not: str = ""
    ours_qps: dict[int, float] = field(default_factory=dict)
    theirs_qps: dict[int, float] = field(default_factory=dict)
    ratio: dict[int, float] = field(default_factory=dict)
    ratio_range: dict[int, tuple[float, float]] = field(default_factory=dict)
    ours_pages: float | None = None
    theirs_pages: float | None = None
    pages_ratio: float | None = None
    ours_at: list[dict[str, float]] = field(default_factory=list)
    theirs_at: list[dict[str, float]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Results:
    """A whole run. missing: peer -> why it was not measured."""

    dataset: dict[str, Any]
    machine: dict[str, Any]
    command: str
    budget_bytes: int
    budget: str
    threads: list[int]
    k: int
    queries: int
    contests: list[Contest] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)
