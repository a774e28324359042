"""Who is faster at the same recall: fullview and a peer measured in turn, then interpolated between settings.

front         the settings worth using
bracket       the settings of a sweep on either side of a recall
interpolate   a value at a recall from those at the bracket
compare       fullview against one peer at one recall

No contender is credited with a recall that it did not reach; below the lowest setting of a sweep that setting stands.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from service.bench.measure import Effort, Opened
from service.bench.results import Comparison, Point


def front(points: Sequence[Point], worth: Callable[[Point], float]) -> list[Point]:
    """Points that no other one beats in both recall and `worth`, ascending in recall."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.recall, -worth(p))):
        if not kept or worth(point) > worth(kept[-1]):
            kept.append(point)
    return kept[::-1]


def bracket(points: Sequence[Point], recall: float) -> list[Point]:
    """The two points of the front around `recall`; one where it is met or lies below all; none where above all.

    The front is that of CPU time: unlike a single measurement of throughput, it is hardly touched by what else runs.
    """
    ordered = front(points, lambda p: -p.cpu_us)
    above = [p for p in ordered if p.recall >= recall]
    below = [p for p in ordered if p.recall < recall]
    if not above:
        return []
    if not below or above[0].recall == recall:
        return above[:1]
    return [below[-1], above[0]]


def interpolate(recall: float, at: Sequence[tuple[float, float]]) -> float:
    """A value at `recall` from (recall, value) at its bracket, straight in log(value) over log(1 - recall)."""
    if len(at) == 1:
        return at[0][1]
    (low, low_value), (high, high_value) = at
    share = (_distance(recall) - _distance(low)) / (_distance(high) - _distance(low))
    if min(low_value, high_value) <= 0.0:
        return low_value + share * (high_value - low_value)
    return math.exp(math.log(low_value) + share * (math.log(high_value) - math.log(low_value)))


def compare(ours: Opened, theirs: Opened, recall: float, effort: Effort) -> Comparison:
    """Both at one recall, in turn, `effort.repeat` times; medians."""
    brackets = [bracket(side.contest.points, recall) for side in (ours, theirs)]
    for side, found in zip((ours, theirs), brackets):
        if not found:
            best = max((p.recall for p in side.contest.points), default=0.0)
            why = f"{side.contest.title} reached recall {best:.4f} at most"
            return Comparison(recall=recall, peer=theirs.contest.title, why_not=why)
    runs: dict[int, list[tuple[float, float]]] = {threads: [] for threads in effort.threads}
    for _ in range(effort.repeat):
        for threads in effort.threads:
            turn = []
            for side, found in zip((ours, theirs), brackets):
                at = [(p.recall, float(side.batch(p.setting, threads, effort.seconds)["qps"])) for p in found]
                turn.append(interpolate(recall, at))
            runs[threads].append((turn[0], turn[1]))
    ours_qps = {threads: statistics.median(a for a, _ in turns) for threads, turns in runs.items()}
    theirs_qps = {threads: statistics.median(b for _, b in turns) for threads, turns in runs.items()}
    pages = [_pages(recall, found) for found in brackets]
    both = pages[0] is not None and pages[1]
    return Comparison(
        recall=recall,
        peer=theirs.contest.title,
        ours_qps=ours_qps,
        theirs_qps=theirs_qps,
        ratio={threads: ours_qps[threads] / theirs_qps[threads] for threads in effort.threads},
        ratio_range={t: (min(a / b for a, b in turns), max(a / b for a, b in turns)) for t, turns in runs.items()},
        ours_pages=pages[0],
        theirs_pages=pages[1],
        pages_ratio=pages[0] / pages[1] if both and pages[0] is not None and pages[1] else None,
        ours_at=[{**p.setting, "measured_recall": p.recall} for p in brackets[0]],
        theirs_at=[{**p.setting, "measured_recall": p.recall} for p in brackets[1]],
    )


def _pages(recall: float, found: Sequence[Point]) -> float | None:
    at = [(p.recall, p.pages) for p in found if p.pages is not None]
    return interpolate(recall, at) if len(at) == len(found) else None


def _distance(recall: float) -> float:
    """How far a recall is on the way to 1, in orders of magnitude of what is missed."""
    return -math.log10(max(1e-5, 1.0 - recall))
