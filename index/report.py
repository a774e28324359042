"""BuildReport: everything a build did, chose and measured; report.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


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
    fold: dict[str, Any] | None = None
    """Of a fold: whether it "folded" or "rebuilt", why, and what changed."""
    may_differ: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)
