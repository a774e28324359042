"""What the command line prints for people: reports, hits, inspections, findings of doctor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from index.operating_points import OperatingPoint, choose_point
from service.flags import in_flags

SHOWN_K, SHOWN_EACH_SIDE, SHOWN_STEP = 10, 3, 0.002
WHAT_PREVIEWS_ARE = {
    "graph": "a walk along links among the codes; effort is the beam, the rows that it keeps",
    "ivf": "lists of near rows; effort is the number of lists that are visited (probes)",
    "flat": "the codes of all rows are scored; effort is the number of candidates kept (beam)",
}


def print_report(out: Path, report: Mapping[str, Any], *, all_points: bool = False) -> None:
    """What a build did."""
    console = _console()
    resident = sum(report["resident_bytes"].values())
    console.print(
        f"{out}: {report['rows']:,} rows of dimension {report['dim']} ({report['dtype']}, {report['metric']}), "
        f"built in {report['seconds']:.1f} s",
        markup=False,
    )
    table = Table(show_header=False, box=None)
    codes = "product quantiser" if report["bits"] == "pq" else f"{report['bits']} bits a dimension"
    links = f", degree {report['degree']}" if report["degree"] else ""
    table.add_row("preview", f"{report['preview']}, {codes}{links}")
    table.add_row("memory when serving", f"{_megabytes(resident)} of {_megabytes(report['budget_bytes'])}")
    table.add_row("disk", _megabytes(report["disk_bytes"]))
    table.add_row("peak memory of the build", _megabytes(report["peak_bytes"]))
    table.add_row("recall@10", f"promised {report['promised_recall']}, measured {_measured(report['measured_recall'])}")
    table.add_row("the promise covers", in_flags(report["promise_covers"]))
    for choice in report["choices"]:
        table.add_row("chosen", in_flags(choice))
    for warning in report["warnings"]:
        table.add_row("warning", in_flags(warning))
    console.print(table)
    _print_points(console, report["curve"], report["promised_recall"], all_points=all_points)


def print_inspection(
    folder: Path, stats: Mapping[str, Any], report: Mapping[str, Any], *, all_points: bool = False
) -> None:
    """What an index is."""
    console = _console()
    console.print(str(folder), markup=False)
    table = Table(show_header=False, box=None)
    apart = {"operating_points", "resident_bytes", "scratch_bytes", "scratch_estimate_bytes", "budget_bytes", "promise"}
    for name, value in stats.items():
        if name in apart or (name in {"degree", "lists"} and not value):
            continue
        shown = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(name, f"{shown}: {WHAT_PREVIEWS_ARE[shown]}" if name == "preview" else shown)
    resident, scratch = stats["resident_bytes"], stats["scratch_estimate_bytes"]
    for part, size in resident.items():
        table.add_row(f"resident {part}", _megabytes(size))
    table.add_row("resident scratch", f"{_megabytes(scratch)} (estimate, for two searches at a time)")
    budget = stats["budget_bytes"]
    of = "" if budget is None else f" of a budget of {_megabytes(budget)}"
    table.add_row("resident in all", _megabytes(sum(resident.values()) + scratch) + of)
    promise = stats["promise"]
    for name, value in promise.items():
        table.add_row(f"promise {name}", _measured(value) if isinstance(value, Mapping) else in_flags(str(value)))
    for choice in report.get("choices", ()):
        table.add_row("chosen", in_flags(choice))
    console.print(table)
    _print_points(console, stats["operating_points"], promise["recall"], all_points=all_points)


def hits_of(index: Any, hits: Any, *, with_payload: bool) -> list[dict[str, Any]]:
    """One JSON-able dict a query: ids, scores, payloads where asked for, pages read."""
    rows = []
    for query in range(len(hits.counts)):
        found = int(hits.counts[query])
        row: dict[str, Any] = {
            "query": query,
            "ids": hits.ids[query, :found].tolist(),
            "scores": hits.scores[query, :found].tolist(),
            "pages_read": int(hits.work.pages_read[query]),
        }
        if with_payload:
            row["payloads"] = index.payloads(hits.rows[query, :found])
        rows.append(row)
    return rows


def shortfall(index: Any, hits: Any, *, k: int, recall: float | None) -> str | None:
    """A sentence where no operating point reaches the recall that was asked for, or promised at build."""
    if hits.reached:
        return None
    asked = index.generation.promised_recall if recall is None else recall
    best = hits.point
    if best is None:
        return f"nothing says whether recall {asked} is reached: it was measured without --rerank."
    return (
        f"no operating point reaches recall {asked} at k = {k}: the best one, which was used, was measured at "
        f"{best.recall:.4f} ({best.low:.4f} to {best.high:.4f}). --exact finds every true neighbour; a build with a larger "
        "--memory-budget reaches more."
    )


def print_hits(rows: list[dict[str, Any]], *, with_payload: bool) -> None:
    """A line a hit."""
    table = Table("query", "rank", "id", "score", *(["payload"] if with_payload else []))
    for row in rows:
        for rank, (id_, score) in enumerate(zip(row["ids"], row["scores"], strict=True), 1):
            payload = [str(row["payloads"][rank - 1])] if with_payload else []
            table.add_row(str(row["query"]), str(rank), str(id_), f"{score:.6f}", *payload)
    console = _console()
    console.print(table)
    pages = np.mean([row["pages_read"] for row in rows]) if rows else 0.0
    queries = "1 query" if len(rows) == 1 else f"{len(rows)} queries"
    console.print(f"{queries}, {pages:.1f} pages read a query")


def print_examination(findings: Mapping[str, Any]) -> None:
    """What doctor found."""
    console = _console()
    table = Table(show_header=False, box=None)
    for name, value in findings.items():
        if name == "percent_of_yardstick":
            table.add_row("rate of the io mode", "unknown" if value is None else f"{value} % of the yardstick's")
        elif name != "reads":
            table.add_row(name.replace("_", " "), str(value))
    console.print(table)
    reads = Table("way of reading", "reads a second", "MB a second", "remark")
    for way in findings["reads"]:
        rate = way.get("reads_per_s")
        shown = ("-", "-") if rate is None else (f"{rate:,.0f}", f"{rate * 4096 / 1e6:,.0f}")
        reads.add_row(way["way"], *shown, way.get("remark", ""))
    console.print(reads)


def near_promise(points: list[dict[str, Any]], recall: float) -> list[dict[str, Any]]:
    """Points at k = 10 around the one that a search for this recall uses, cheapest first, and the best one last.

    Of those that differ by less than SHOWN_STEP of recall the cheapest stands for all.
    """
    fitting = sorted((OperatingPoint.from_dict(p) for p in points if p["k"] == SHOWN_K), key=lambda p: p.cost)
    if not fitting:
        return []
    chosen = choose_point(fitting, k=SHOWN_K, recall=recall)
    best = max(fitting, key=lambda p: (p.low, -p.cost))
    apart: list[OperatingPoint] = []
    for point in fitting:
        if point is chosen or not apart or point.low >= apart[-1].low + SHOWN_STEP:
            apart.append(point)
    used = apart.index(chosen)
    near = apart[max(0, used - SHOWN_EACH_SIDE) : used + SHOWN_EACH_SIDE + 1]
    return [p.to_dict() for p in (near if best in near else [*near, best])]


def _print_points(console: Console, points: list[dict[str, Any]], recall: float, *, all_points: bool) -> None:
    shown = points if all_points else near_promise(points, recall)
    if not shown:
        return
    console.print(_curve(shown))
    if len(shown) < len(points):
        console.print(
            f"{len(shown)} of {len(points)} operating points: those at k = {SHOWN_K} around recall {recall}, and the best. "
            "--points prints all."
        )


def _curve(points: list[dict[str, Any]]) -> Table:
    table = Table("k", "effort", "z", "recall", "at least", "pages", "rows scored", title="operating points")
    for point in points:
        table.add_row(
            str(point["k"]),
            str(point["effort"]),
            str(point["z"]),
            f"{point['recall']:.4f}",
            f"{point['low']:.4f}",
            f"{point['pages']:.1f}",
            f"{point['rows_scored']:,.0f}",
        )
    return table


def _measured(measured: Mapping[str, Any]) -> str:
    if not measured:
        return "exact"
    return f"{measured['recall']:.4f} ({measured['low']:.4f} to {measured['high']:.4f})"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def _console() -> Console:
    return Console(highlight=False, markup=False)
