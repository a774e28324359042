"""Operating points: how wide a walk or a screen is, and what that was measured to give.

DecoderPoint    one of them, as it stands in the manifest
pick            the narrowest that reaches what is asked
effort_of       a point and k -> what one call looks at

Recall is the share of the exact best k tokens that are returned; it is measured on calibration states that shaped
nothing. The lower bound is that of a one-sided 95 % interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.candidates import Effort

MEASURED_AT = (1, 10, 100)
"""k at which recall is measured; between them the next larger one counts."""
TAIL = 256
"""Tokens drawn for log Z: of a walk from those it did not score, of a screen from those that did not pass."""
MIDDLE = 192
"""Rows rescored for log Z from those scored, where codes leave coordinates out."""
SPARE = 22
"""Rows reranked beyond k: eight bits a coordinate hardly ever misplace a token by more."""
ONE_SIDED_95 = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderPoint:
    """mode: "walk" or "screen"; width: beam, or rows that a screen scores by all coordinates.

    recall, low: at each k of MEASURED_AT, by its name; rows_scored: mean; logprob_error: mean absolute error of the best
    token's estimated log-probability, in nats; interval: what log Z's standard errors are multiplied by so that 1.96 of them
    cover 95 % of the states measured; half_width: mean of that, in nats.
    """

    mode: str
    width: int
    recall: dict[str, float]
    low: dict[str, float]
    rows_scored: float
    logprob_error: float
    interval: float
    half_width: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def low_at(self, k: int) -> float:
        """The lower bound of recall at k."""
        names = sorted((int(name) for name in self.low), key=int)
        return self.low[str(next((at for at in names if at >= k), names[-1]))]


def lower_bound(values: NDArray[np.float64]) -> float:
    """Of the mean of shares (m,), one-sided 95 %; honest where all are 1: then it leaves room for about one miss."""
    n = len(values)
    slack = ONE_SIDED_95 * float(values.std()) / np.sqrt(n) + ONE_SIDED_95**2 / (2 * n)
    return max(0.0, float(values.mean()) - float(slack))


def pick(
    points: Sequence[DecoderPoint], mode: str, *, k: int, recall: float, logprob_error: float | None
) -> tuple[DecoderPoint, bool]:
    """The narrowest point of a mode that reaches the recall at k and, where given, the log-probability error.

    Where none does: the widest one, and False.
    """
    own = sorted((point for point in points if point.mode == mode), key=lambda point: point.width)
    for point in own:
        if point.low_at(k) >= recall and (logprob_error is None or point.logprob_error <= logprob_error):
            return point, True
    return own[-1], False


def width_at(point: DecoderPoint, k: int) -> int:
    """How wide a point is for k tokens: beyond the largest k that recall is measured at, as much wider."""
    return max(point.width * k // max(MEASURED_AT), point.width)


def effort_of(point: DecoderPoint, k: int, *, vocab_size: int, whole_codes: bool, log_z: bool) -> Effort:
    """What one call looks at. whole_codes: codes hold all coordinates."""
    rerank = min(k + SPARE + k // 10 if whole_codes else max(100, 2 * k), vocab_size)
    bare = Effort(width=min(max(width_at(point, k), rerank), vocab_size), rerank=rerank)
    if not log_z:
        return bare
    if point.mode == "screen":
        return replace(bare, middle=TAIL)
    return replace(bare, middle=0 if whole_codes else MIDDLE, tail=TAIL)
