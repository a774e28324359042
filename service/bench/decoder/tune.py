"""The least effort that is precise enough, for every entrant by the same rule.

sweep     settings in order, each measured -> points; more effort of a kind is left out once it is enough
cheapest  the least effort that reaches the target; of several kinds of effort the quickest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.bench.decoder.entrant import Entrant, Setting
from service.bench.decoder.quality import BATCH, Truth, measure
from service.bench.decoder.race import time_calls
from service.bench.decoder.results import Point

ENOUGH = 0.999
"""Precision at k above which more effort of the same kind tells nothing."""


def sweep(
    entrant: Entrant,
    truth: Truth,
    *,
    batches: Sequence[int],
    seconds: float,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Point]:
    """Points of all settings, one thread. seconds: of timing each.

    Where it matters how many states are asked at once, quality is that of the batch at which the fewest tokens are found.
    """
    settings, points = entrant.settings(), list[Point]()
    finished: set[float] = set()
    for number, setting in enumerate(settings):
        on_progress(number, len(settings))
        if kind_of(setting) in finished:
            continue
        sizes = batches if entrant.batch_matters else (BATCH,)
        qualities = [measure(entrant, truth, setting, batch=size) for size in sizes]
        quality = min(qualities, key=lambda found: (found.precision_k, found.precision_1))
        k = truth.token_ids.shape[1]
        us, _ = time_calls(entrant, truth.states, k, setting, threads=1, batch=1, seconds=seconds)
        points.append(Point(setting=setting, quality=quality, us=us))
        if min(quality.precision_1, quality.precision_k) >= ENOUGH:
            finished.add(kind_of(setting))
    return points


def cheapest(points: Sequence[Point], target: tuple[float, float]) -> tuple[Point, bool]:
    """Of each kind the first point that reaches the target, of those the quickest; without any the best, and False."""
    first: dict[float, Point] = {}
    for point in points:
        if point.quality.reaches(target):
            first.setdefault(kind_of(point.setting), point)
    if first:
        # One knob: times, which other work on the machine disturbs, decide nothing.
        return min(first.values(), key=lambda point: point.us), True
    return max(points, key=lambda point: (point.quality.precision_1 + point.quality.precision_k, -point.us)), False


def kind_of(setting: Setting) -> float:
    """Of two knobs the first is the kind of effort and the last its amount; one knob is an amount."""
    return next(iter(setting.values())) if len(setting) > 1 else 0.0
