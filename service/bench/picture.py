"""Two panels: recall against queries a second, and recall against pages read a query. Needs matplotlib (extra bench)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from service.bench.compare import front
from service.bench.report import caption
from service.bench.results import Contest, Point, Results

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart; fullview is the strongest.
COLOURS = {
    "fullview": "#D55E00",
    "diskann": "#0072B2",
    "hnswlib": "#009E73",
    "faiss-ivfpq": "#CC79A7",
    "faiss-hnsw": "#56B4E9",
    "usearch": "#7A7A7A",
}
LINES = ("-", "--", ":")
RECALLS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
LOWEST = 0.7
PERFECT = 0.9995
"""Where perfect recall is drawn: on a scale of what is missed it would lie at infinity."""


def draw(results: Results, path: Path) -> Path:
    """Write a PNG of about 1,800 x 900 pixels."""
    figure = Figure(figsize=(12, 6.2), dpi=150, facecolor="white")
    speed, work = figure.subplots(1, 2)
    threads = max(results.threads)
    handles: dict[str, Any] = {}
    for contest, line in zip(results.contests, _lines(results.contests)):
        shown = [p for p in front(contest.points, lambda p: p.best_qps) if p.recall >= LOWEST]
        if not shown:
            continue
        style = _style(contest, line)
        label = f"{contest.title}: {contest.resident_bytes / 1e6:,.0f} MB" + ("" if contest.on_disk else ", no reads")
        (handles[label],) = speed.plot(_places(shown), [p.qps[threads] for p in shown], **style)
        if contest.on_disk and all(p.pages for p in contest.points):
            fewest = [p for p in front(contest.points, lambda p: -(p.pages or 0.0)) if p.recall >= LOWEST]
            work.plot(_places(fewest), [p.pages for p in fewest], **style)
    speed.set_yscale("log")
    work.set_ylim(0.0, 1.08 * work.dataLim.ymax if work.lines else 1.0)
    _dress(speed, results, f"queries a second, {threads} thread{'s' if threads > 1 else ''}")
    _dress(work, results, "4 KiB pages read from the SSD a query")
    speed.set_title("Speed: up and to the right is better", fontsize=11, loc="left")
    work.set_title("Reads: down and to the right is better", fontsize=11, loc="left")
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.985),
        ncols=min(4, max(1, len(handles))),
        frameon=False,
        title="contender: memory in use when searching (MB = $10^6$ bytes)",
    )
    text = textwrap.fill(caption(results), 180)
    figure.text(0.012, 0.015, text, fontsize=8, color="#444444", va="bottom")
    rows = math.ceil(len(handles) / 4)
    bottom = 0.05 + 0.025 * (text.count("\n") + 1)
    figure.subplots_adjust(left=0.075, right=0.985, top=0.86 - 0.04 * rows, bottom=bottom + 0.06, wspace=0.17)
    figure.savefig(path, metadata={"Software": f"fullview, matplotlib {matplotlib.__version__}"})
    return path


def _lines(contests: Sequence[Contest]) -> list[str]:
    """Another line for each variant of one peer."""
    names = [contest.name for contest in contests]
    return [LINES[names[:i].count(name) % len(LINES)] for i, name in enumerate(names)]


def _style(contest: Contest, line: str) -> dict[str, Any]:
    ours = contest.name == "fullview"
    return {
        "color": COLOURS.get(contest.name, "#000000"),
        "linestyle": line,
        "linewidth": 2.6 if ours else 1.6,
        "marker": "o" if contest.on_disk else "s",
        "markersize": 6 if ours else 4.5,
        "zorder": 3 if ours else 2,
    }


def _places(points: Sequence[Point]) -> list[float]:
    return [_place(p.recall) for p in points]


def _place(recall: float) -> float:
    """Where a recall lies: orders of magnitude of what is missed, so that 0.99 and 0.999 are as far apart as 0.9 and 0.99."""
    return -math.log10(1.0 - min(recall, PERFECT))


def _dress(axes: Any, results: Results, label: str) -> None:
    """Scales, ticks and labels."""
    places = [_place(p.recall) for c in results.contests for p in c.points if p.recall >= LOWEST]
    least, most = (min(places), max(places)) if places else (_place(LOWEST), _place(PERFECT))
    ticks = [r for r in RECALLS if least - 0.05 <= _place(r) <= most + 0.05]
    axes.set_xlim(least - 0.06, most + 0.06)
    axes.set_xticks([_place(r) for r in ticks], [f"{r:g}" for r in ticks])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if axes.get_yscale() == "log":
        axes.yaxis.set_minor_formatter(_few_labels(axes))
    axes.set_xlabel(f"recall@{results.k} (share of the true {results.k} nearest found)")
    axes.set_ylabel(label)
    axes.grid(which="major", color="#DDDDDD", linewidth=0.8)
    axes.grid(which="minor", axis="y", color="#EEEEEE", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _few_labels(axes: Any) -> Any:
    """Labels at 2 and 5 as well where the scale spans less than two orders of magnitude."""
    low, high = axes.get_ylim()
    if low <= 0 or math.log10(high / low) > 2.2:
        return NullFormatter()

    def text(value: float, _: int) -> str:
        leading = round(value / 10 ** math.floor(math.log10(value)))
        return f"{value:,.0f}" if leading in (2, 3, 5) else ""

    return FuncFormatter(text)
