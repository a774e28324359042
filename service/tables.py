"""What the command line prints for people: reports, hits, inspections, findings of doctor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table


def print_report(out: Path, report: Mapping[str, Any]) -> None:
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
    table.add_row("the promise covers", report["promise_covers"])
    for choice in report["choices"]:
        table.add_row("chosen", choice)
    for warning in report["warnings"]:
        table.add_row("warning", warning)
    console.print(table)
    console.print(_curve(report["curve"]))


def print_inspection(folder: Path, stats: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    """What an index is."""
    console = _console()
    console.print(str(folder), markup=False)
    table = Table(show_header=False, box=None)
    for name, value in stats.items():
        if name in {"operating_points", "resident_bytes", "promise"}:
            continue
        table.add_row(name, "" if value is None else f"{value:,}" if isinstance(value, int) else str(value))
    for part, size in stats.get("resident_bytes", {}).items():
        table.add_row(f"resident {part}", _megabytes(size))
    for name, value in stats.get("promise", {}).items():
        table.add_row(f"promise {name}", _measured(value) if isinstance(value, Mapping) else str(value))
    for choice in report.get("choices", ()):
        table.add_row("chosen", choice)
    console.print(table)
    console.print(_curve(stats.get("operating_points", [])))


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
            stored = index.payload.get(hits.rows[query, :found]) if index.payload is not None else [None] * found
            row["payloads"] = [None if raw is None else msgspec.json.decode(raw) for raw in stored]
        rows.append(row)
    return rows


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
    console.print(f"{len(rows)} queries, {pages:.1f} pages read a query")


def print_examination(findings: Mapping[str, Any]) -> None:
    """What doctor found."""
    console = _console()
    table = Table(show_header=False, box=None)
    for name, value in findings.items():
        if name != "reads":
            table.add_row(name.replace("_", " "), str(value))
    console.print(table)
    reads = Table("way of reading", "reads a second", "MB a second", "remark")
    for way in findings["reads"]:
        rate = way.get("reads_per_s")
        shown = ("-", "-") if rate is None else (f"{rate:,.0f}", f"{rate * 4096 / 1e6:,.0f}")
        reads.add_row(way["way"], *shown, way.get("remark", ""))
    console.print(reads)


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
    return Console(highlight=False)
