"""What the build of a decoder did, chose and measured; report.json in its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True, kw_only=True)
class DecoderReport:
    """Bytes and seconds. links: which variant won; rows_scored_by_variant: what each scored for the recall asked for;
    in_degree: of the links; curve: the operating points measured."""

    vocab_size: int = 0
    dim: int = 0
    dtype: str = ""
    threads: int = 1
    seed: int = 0
    calibration_states: int = 0
    links: str = ""
    rows_scored_by_variant: dict[str, float] = field(default_factory=dict)
    in_degree: dict[str, float] = field(default_factory=dict)
    promise: dict[str, Any] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def in_degree_summary(degrees: NDArray[np.int64]) -> dict[str, float]:
    """How many links lead to rows: least, median, most, and the share of rows with fewer than 8."""
    return {
        "least": int(degrees.min()),
        "median": float(np.median(degrees)),
        "most": int(degrees.max()),
        "share_below_8": round(float((degrees < 8).mean()), 6),
    }
