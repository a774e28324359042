"""Two panels: precision against time of single states, and time against batch. Needs matplotlib (extra bench)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from service.bench.decoder.report import caption
from service.bench.decoder.results import EntrantResult, Point, Results

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart; ours are the strongest.
STYLES: dict[str, tuple[str, str]] = {
    "fullview": ("#D55E00", "o"),
    "fullview walk": ("#D55E00", "v"),
    "fullview screen": ("#E69F00", "^"),
    "int8 scan": ("#CC79A7", "s"),
    "hnswlib": ("#009E73", "s"),
    "faiss HNSW": ("#56B4E9", "s"),
    "SVD-softmax": ("#7A7A7A", "D"),
}
EXACT_COLOUR = "#0072B2"
PRECISIONS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
LOWEST = 0.7
PERFECT = 0.9995
"""Where perfect precision is drawn: on a scale of what is missed it would lie at infinity."""


def draw(results: Results, path: Path) -> Path:
    """Write a PNG of about 1,800 x 950 pixels."""
    figure = Figure(figsize=(12, 6.4), dpi=150, facecolor="white")
    precision, batches = figure.subplots(1, 2)
    handles = _precision(precision, results) | _batches(batches, results)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.995),
        ncols=min(4, max(1, len(handles))),
        frameon=False,
    )
    text = textwrap.fill(caption(results), 175)
    figure.text(0.012, 0.015, text, fontsize=8, color="#444444", va="bottom")
    rows = math.ceil(len(handles) / 4)
    bottom = 0.05 + 0.025 * (text.count("\n") + 1)
    figure.subplots_adjust(left=0.075, right=0.985, top=0.9 - 0.036 * rows, bottom=bottom + 0.06, wspace=0.19)
    figure.savefig(path, metadata={"Software": f"fullview, matplotlib {matplotlib.__version__}"})
    return path


def _precision(axes: Any, results: Results) -> dict[str, Any]:
    """What each effort buys, batch 1 on one thread; the chosen setting is filled. Returns what the legend names."""
    handles: dict[str, Any] = {}
    lowest: list[float] = []
    for entrant in results.entrants:
        if entrant.kind == "exact" or entrant.name not in STYLES or entrant.name == "fullview":
            continue
        shown = _front([point for point in entrant.points if point.quality.precision_k >= LOWEST])
        if not shown:
            continue
        colour, marker = STYLES[entrant.name]
        places = [_place(point.quality.precision_k) for point in shown]
        lowest.append(min(places))
        (handles[entrant.name],) = axes.plot(
            places, [point.us for point in shown], color=colour, marker=marker, markersize=6, linewidth=1.8,
            markerfacecolor="white", zorder=3 if entrant.kind == "ours" else 2,
        )  # fmt: skip
        chosen = [point for point in entrant.points if point.setting == entrant.setting and entrant.reached]
        axes.plot(
            [_place(point.quality.precision_k) for point in chosen], [point.us for point in chosen],
            color=colour, marker=marker, markersize=9, linestyle="none", zorder=4,
        )  # fmt: skip
    fastest = _fastest_exact(results.entrants, min(results.threads)).get(1)
    if fastest is not None:
        handles["fastest exact way"] = axes.axhline(fastest, color=EXACT_COLOUR, linestyle="--", linewidth=1.8)
    axes.set_yscale("log")
    least = min(lowest, default=_place(0.9))
    ticks = [p for p in PRECISIONS if _place(p) >= least - 0.05]
    axes.set_xlim(least - 0.08, _place(PERFECT) + 0.08)
    axes.set_xticks([_place(p) for p in ticks], [f"{p:g}" for p in ticks])
    axes.axvline(_place(results.target[1]), color="#999999", linewidth=0.9, linestyle=":")
    axes.set_xlabel(f"P@{results.k}: share of the true {results.k} best tokens found (the target is dotted)")
    axes.set_ylabel("microseconds a token, batch 1, one thread")
    axes.set_title("Effort while tuning: down and to the right is better", fontsize=11, loc="left")
    _dress(axes)
    return handles


def _batches(axes: Any, results: Results) -> dict[str, Any]:
    """Times of the race with the fewest threads, over the batch. Returns what the legend names besides."""
    threads, handles = min(results.threads), dict[str, Any]()
    for entrant in results.entrants:
        cells = [cell for cell in entrant.cells if cell.threads == threads]
        if entrant.kind == "exact" or entrant.name not in STYLES or not cells:
            continue
        colour, marker = STYLES[entrant.name]
        main = entrant.name == "fullview"
        (line,) = axes.plot(
            [cell.batch for cell in cells], [cell.us for cell in cells], color=colour, marker=marker,
            linewidth=3.0 if main else 1.6, markersize=7 if main else 5, markerfacecolor=colour if main else "white",
            zorder=4 if main else 2,
        )  # fmt: skip
        if main:
            handles["fullview (the cheapest mode)"] = line
    floor = _fastest_exact(results.entrants, threads)
    if floor:
        axes.plot(list(floor), list(floor.values()), color=EXACT_COLOUR, linestyle="--", linewidth=1.8, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(results.batches, [str(batch) for batch in results.batches])
    axes.set_xlabel("states in a call")
    axes.set_ylabel(f"microseconds a token, {threads} thread{'s' if threads > 1 else ''}")
    axes.set_title("The race, in turn: down is better", fontsize=11, loc="left")
    _dress(axes)
    return handles


def _fastest_exact(entrants: Sequence[EntrantResult], threads: int) -> dict[int, float]:
    """Batch -> least time of an exact way."""
    times: dict[int, list[float]] = {}
    for entrant in entrants:
        for cell in entrant.cells:
            if entrant.kind == "exact" and cell.threads == threads:
                times.setdefault(cell.batch, []).append(cell.us)
    return {batch: min(found) for batch, found in sorted(times.items())}


def _front(points: Sequence[Point]) -> list[Point]:
    """Points that no other one beats in both precision and time, ascending in precision."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.quality.precision_k, p.us)):
        if not kept or point.us < kept[-1].us:
            kept.append(point)
    return kept[::-1]


def _place(precision: float) -> float:
    """Orders of magnitude of what is missed."""
    return -math.log10(1.0 - min(precision, PERFECT))


def _dress(axes: Any) -> None:
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="major", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
