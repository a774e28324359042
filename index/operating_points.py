"""Operating points: how hard a search tries, and what recall that gave when it was measured.

OperatingPoint   (k, effort, rule) with its measured recall, pages and rows scored
choose_point     the cheapest point that a search may use

Points are measured at k = 1, 10 and 100. A search for another k takes the points of the next larger measured k; above
100 the effort widens in proportion. Points are ranked by work counters with fixed weights, never by times, so that two
builds of the same data choose alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from index.errors import OptionsError

MEASURED_K = (1, 10, 100)
PAGE_COST = 400.0
"""What reading one page costs, in rows scored. A row takes about 55 ns of one core. A page takes about 5 us of CPU, but the
device gives 60,000 to 80,000 of them a second to all cores together: two cores that wait for it lose 26 us a page."""


LEAST_Z_AMONG_ALLOWED = 0.0

READ_ALL = 1e9
"""The z of a rule that reads every candidate. Not merely a large one: a row whose code is exact has no deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopByError:
    """Read candidates while their optimistic estimate, `z` standard deviations better, could enter the k best."""

    z: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDepth:
    """Read the `depth` nearest candidates by their estimates."""

    depth: int


RerankRule = StopByError | FixedDepth


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """One way to search and what was measured with it.

    k: hits asked for in the measurement; effort: beam (graph), candidates kept (flat) or probes (ivf);
    recall with its 99 % interval low..high; pages, rows_scored: means a query.
    """

    k: int
    effort: int
    rule: RerankRule
    recall: float
    low: float
    high: float
    pages: float
    rows_scored: float

    @property
    def cost(self) -> float:
        """Work of a query, in rows scored."""
        return self.rows_scored + PAGE_COST * self.pages

    def to_dict(self) -> dict[str, float | int]:
        """What manifests and reports hold."""
        assert isinstance(self.rule, StopByError), "only points with a calibrated rule are kept"
        return {
            "k": self.k,
            "effort": self.effort,
            "z": self.rule.z,
            "recall": round(self.recall, 5),
            "low": round(self.low, 5),
            "high": round(self.high, 5),
            "pages": round(self.pages, 2),
            "rows_scored": round(self.rows_scored, 1),
        }

    @classmethod
    def from_dict(cls, values: dict[str, float | int]) -> OperatingPoint:
        """The point that `to_dict` wrote."""
        return cls(
            k=int(values["k"]),
            effort=int(values["effort"]),
            rule=StopByError(z=float(values["z"])),
            recall=float(values["recall"]),
            low=float(values["low"]),
            high=float(values["high"]),
            pages=float(values["pages"]),
            rows_scored=float(values["rows_scored"]),
        )


def measured_k(k: int) -> int:
    """The k whose points serve a search for k hits."""
    return next((m for m in MEASURED_K if k <= m), MEASURED_K[-1])


def choose_point(points: Sequence[OperatingPoint], *, k: int, recall: float) -> OperatingPoint:
    """The cheapest point for k whose recall's lower bound reaches `recall`; the best one if none does."""
    if not 0.0 < recall <= 1.0:
        raise OptionsError(
            f"recall is {recall}, it must be above 0 and at most 1. For every true neighbour use exact=True."
        )
    fitting = [p for p in points if p.k == measured_k(k)]
    assert fitting, f"no operating point for k = {measured_k(k)}"
    reaching = [p for p in fitting if p.low >= recall]
    if reaching:
        return min(reaching, key=lambda p: p.cost)
    return max(fitting, key=lambda p: (p.low, -p.cost))


def among_allowed(rule: RerankRule, k: int) -> RerankRule:
    """The rule of a search among some rows only, which must find k of them."""
    if isinstance(rule, FixedDepth):
        return FixedDepth(depth=max(rule.depth, k))
    return StopByError(z=max(rule.z, LEAST_Z_AMONG_ALLOWED))


def effort_for(point: OperatingPoint, k: int) -> int:
    """The point's effort, widened in proportion where k lies above every measured k."""
    return point.effort if k <= point.k else -(-point.effort * k // point.k)
