"""Results as files and as tables on a terminal.

write_files    results.csv (a line a setting), results.json (everything), results.png where matplotlib is there
print_results  contenders, settings, comparisons
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from service.bench.machine import one_line
from service.bench.results import Comparison, Contest, Point, Results

NOTHING = "-"


def write_files(results: Results, out: Path) -> list[Path]:
    """Write all files into `out`; returns their paths. The picture is left out where matplotlib is not installed."""
    out.mkdir(parents=True, exist_ok=True)
    table, everything = out / "results.csv", out / "results.json"
    everything.write_text(json.dumps(results.to_dict(), indent=1), encoding="utf-8")
    rows = [csv_row(contest, point) for contest in results.contests for point in contest.points]
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["contender"])
        writer.writeheader()
        writer.writerows(rows)
    try:
        from service.bench.picture import draw
    except ImportError:
        return [table, everything]
    return [table, everything, draw(results, out / "results.png")]


def csv_row(contest: Contest, point: Point) -> dict[str, Any]:
    """One setting with what there is to know of its contender; the same columns for all."""
    return {
        "contender": contest.name,
        "variant": contest.label,
        "setting": setting_text(point),
        "recall_at_10": round(point.recall, 5),
        "recall_low": round(point.low, 5),
        "recall_high": round(point.high, 5),
        **{f"qps_{threads}_threads": round(qps, 1) for threads, qps in point.qps.items()},
        "p50_us": round(point.p50_us, 1),
        "p95_us": round(point.p95_us, 1),
        "p99_us": round(point.p99_us, 1),
        "pages": _rounded(point.pages, 2),
        "pages_device": _rounded(point.pages_device, 2),
        "bytes_device": _rounded(point.bytes_device, 0),
        "rows_scored": _rounded(point.rows_scored, 1),
        "cpu_us": round(point.cpu_us, 1),
        "resident_bytes": contest.resident_bytes,
        "resident_anonymous_bytes": contest.resident_anonymous_bytes,
        "build_seconds": round(contest.build_seconds, 2),
        "build_peak_bytes": contest.build_peak_bytes,
        "disk_bytes": contest.disk_bytes,
    }


def setting_text(point: Point) -> str:
    """`ef 40`, or `recall 0.95, beam 64, z 1`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in point.setting.items())


def caption(results: Results) -> str:
    """Data, budget, queries and hardware in two sentences."""
    data = results.dataset
    return (
        f"{data['name']}: {data['rows']:,} x {data['dim']} {data['dtype']}, {data['metric']}; memory budget "
        f"{results.budget_bytes / 1e6:.1f} MB ({results.budget}{' of float32' if '/' in results.budget else ' MB'}); "
        f"{results.queries:,} queries, {data['query_note']}. {one_line(results.machine)}."
    )


def print_results(results: Results, console: Console) -> None:
    """Three tables and what is missing."""
    console.print(caption(results), markup=False)
    console.print(_contenders(results))
    console.print(_settings(results))
    if results.comparisons:
        console.print(_comparisons(results))
    ours = results.contests[0]
    console.print("fullview in memory, by part: " + _parts(ours), markup=False)
    for contest in results.contests:
        for note in contest.notes:
            console.print(f"{contest.title}: {note}", markup=False)
    for peer, why in results.missing.items():
        console.print(f"{peer} is missing: {why}", markup=False, style="yellow")


def _contenders(results: Results) -> Table:
    table = Table(title="Built and opened (MB are 10^6 bytes)", title_justify="left")
    for name in ("contender", "version", "build s", "build peak MB", "memory MB", "of it anonymous", "on disk MB"):
        table.add_column(name, justify="left" if name in ("contender", "version") else "right")
    for contest in results.contests:
        version = next(iter(contest.versions.values()), "")
        table.add_row(
            contest.title,
            version,
            f"{contest.build_seconds:.1f}" + (" (earlier)" if contest.build_reused else ""),
            _mb(contest.build_peak_bytes),
            _mb(contest.resident_bytes),
            _mb(contest.resident_anonymous_bytes),
            _mb(contest.disk_bytes),
        )
    return table


def _settings(results: Results) -> Table:
    threads = results.threads
    columns = [
        "contender", "setting", "recall@10", *(f"QPS, {_count(t)}" for t in threads),
        "p50 us", "p95 us", "p99 us", "pages", "by /proc", "KB read", "rows scored", "CPU us",
    ]  # fmt: skip
    table = Table(title="Settings (work and CPU time a query; times of single queries on one thread)")
    table.title_justify = "left"
    for name in columns:
        table.add_column(name, justify="left" if name in ("contender", "setting") else "right")
    for contest in results.contests:
        for number, point in enumerate(contest.points):
            table.add_row(
                contest.title if number == 0 else "",
                setting_text(point),
                f"{point.recall:.4f}",
                *(f"{point.qps[t]:,.0f}" for t in threads),
                f"{point.p50_us:,.0f}",
                f"{point.p95_us:,.0f}",
                f"{point.p99_us:,.0f}",
                _number(point.pages),
                _number(point.pages_device),
                NOTHING if point.bytes_device is None else f"{point.bytes_device / 1e3:.1f}",
                NOTHING if point.rows_scored is None else f"{point.rows_scored:,.0f}",
                f"{point.cpu_us:,.0f}",
            )
        table.add_section()
    return table


def _comparisons(results: Results) -> Table:
    table = Table(title="fullview against each peer at equal recall (in turn, medians)", title_justify="left")
    for name in ("recall", "peer", "threads", "fullview QPS", "peer QPS", "ratio", "range", "pages", "peer pages"):
        table.add_column(name, justify="left" if name == "peer" else "right")
    for found in results.comparisons:
        if found.why_not:
            table.add_row(f"{found.recall:g}", found.peer, NOTHING, found.why_not)
        for threads in found.ratio:
            table.add_row(*_comparison_row(found, threads))
    return table


def _comparison_row(found: Comparison, threads: int) -> list[str]:
    least, most = found.ratio_range[threads]
    return [
        f"{found.recall:g}",
        found.peer,
        str(threads),
        f"{found.ours_qps[threads]:,.0f}",
        f"{found.theirs_qps[threads]:,.0f}",
        f"{found.ratio[threads]:.2f}x",
        f"{least:.2f} to {most:.2f}",
        _number(found.ours_pages),
        _number(found.theirs_pages),
    ]


def _parts(contest: Contest) -> str:
    return ", ".join(f"{part} {size / 1e6:.2f} MB" for part, size in contest.resident_parts.items())


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
