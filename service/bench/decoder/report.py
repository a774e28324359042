"""Results as files and as tables on a terminal.

write_files    results.csv (a line for each entrant, batch and number of threads), results.json, results.png with matplotlib
print_results  quality, times, comparisons
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from service.bench.decoder.results import Cell, EntrantResult, Results
from service.bench.machine import one_line

NOTHING = "-"


def write_files(results: Results, out: Path) -> list[Path]:
    """Write all files into `out`; returns their paths. The picture is left out where matplotlib is not installed."""
    out.mkdir(parents=True, exist_ok=True)
    table, everything = out / "results.csv", out / "results.json"
    everything.write_text(json.dumps(results.to_dict(), indent=1), encoding="utf-8")
    rows = [csv_row(results, entrant, cell) for entrant in results.entrants for cell in entrant.cells]
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["entrant"])
        writer.writeheader()
        writer.writerows(rows)
    try:
        from service.bench.decoder.picture import draw
    except ImportError:
        return [table, everything]
    return [table, everything, draw(results, out / "results.png")]


def csv_row(results: Results, entrant: EntrantResult, cell: Cell) -> dict[str, Any]:
    """One time with what there is to know of its entrant; the same columns for all."""
    quality = entrant.quality
    return {
        "entrant": entrant.name,
        "kind": entrant.kind,
        "setting": setting_text(entrant.setting),
        "reaches_target": entrant.reached,
        "precision_at_1": round(quality.precision_1, 5),
        f"precision_at_{results.k}": round(quality.precision_k, 5),
        "rows_scored": _rounded(quality.rows_scored, 1),
        "logprob_error": _rounded(quality.logprob_error, 6),
        "logprob_error_p95": _rounded(quality.logprob_error_p95, 6),
        "error_bar_covers": _rounded(quality.covered, 4),
        "error_bar_half_width": _rounded(quality.half_width, 6),
        "memory_bytes": entrant.memory_bytes,
        "build_seconds": entrant.build_seconds,
        "threads": cell.threads,
        "batch": cell.batch,
        "us_per_token": round(cell.us, 2),
        "us_least": round(cell.us_range[0], 2),
        "us_most": round(cell.us_range[1], 2),
        "speedup_over_fastest_exact": round(cell.speedup, 3),
        "speedup_least": round(cell.speedup_range[0], 3),
        "speedup_most": round(cell.speedup_range[1], 3),
        "mode": cell.mode,
    }


def setting_text(setting: dict[str, float]) -> str:
    """`ef 40`, or `width 64, rerank 800`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in setting.items())


def caption(results: Results) -> str:
    """Head, states and hardware in two sentences."""
    head = results.head
    bias = ", with a bias" if head["bias"] else ""
    return (
        f"{head['name']}: {head['vocab_size']:,} x {head['dim']} {head['dtype']}{bias}; {head['calibration_states']:,} "
        f"calibration states, {head['states']:,} held-out states. Each at the least effort that reaches P@1 "
        f"{results.target[0]:g} and P@{results.k} {results.target[1]:g}. {one_line(results.machine)}."
    )


def print_results(results: Results, console: Console) -> None:
    """Three tables and what is missing."""
    console.print(caption(results), markup=False)
    console.print(_qualities(results))
    console.print(_times(results))
    console.print(_comparisons(results))
    decoder = results.decoder
    console.print(f"decoder: {decoder['links']}, built in {decoder['seconds']:.1f} s", markup=False)
    for note in results.notes:
        console.print(note, markup=False)
    for name, why in results.missing.items():
        console.print(f"{name} is missing: {why}", markup=False, style="yellow")


def _qualities(results: Results) -> Table:
    columns = ["entrant", "setting", "P@1", f"P@{results.k}", "rows scored", "log-prob error", "95th", "bar covers",
               "half-width", "memory MB", "build s"]  # fmt: skip
    table = _table("Precision of the held-out states, log-probability error of the best token (nats)", columns, words=2)
    for entrant in results.entrants:
        quality = entrant.quality
        table.add_row(
            entrant.name,
            setting_text(entrant.setting) + ("" if entrant.reached else " (below target)"),
            f"{quality.precision_1:.4f}",
            f"{quality.precision_k:.4f}",
            _number(quality.rows_scored, ",.0f"),
            _number(quality.logprob_error, ".5f"),
            _number(quality.logprob_error_p95, ".5f"),
            _number(quality.covered, ".1%"),
            _number(quality.half_width, ".5f"),
            f"{entrant.memory_bytes / 1e6:,.1f}",
            f"{entrant.build_seconds:.1f}",
        )
    return table


def _times(results: Results) -> Table:
    places = [(threads, batch) for threads in results.threads for batch in results.batches]
    fastest = {(each["threads"], each["batch"]): each["name"] for each in results.fastest_exact}
    columns = ["entrant", *(f"batch {batch}, {_threads(threads)}" for threads, batch in places)]
    title = "Microseconds a token, whole calls in turn (median), and speed over the fastest exact way of the column (*)"
    table = _table(title, columns, words=1)
    for entrant in results.entrants:
        cells = []
        for place in places:
            cell = entrant.cell(*place)
            star = " *" if fastest.get(place) == entrant.name else ""
            mode = f" {cell.mode}" if cell is not None and cell.mode and entrant.name == "fullview" else ""
            cells.append(NOTHING if cell is None else f"{cell.us:,.0f} ({cell.speedup:.2f}x{star}){mode}")
        table.add_row(entrant.name, *cells)
    return table


def _comparisons(results: Results) -> Table:
    columns = ["ours", "other", *(f"batch {b}, {_threads(t)}" for t in results.threads for b in results.batches)]
    table = _table("How many times as long the other takes, median of the turns (least to most)", columns, words=2)
    pairs = dict.fromkeys((found.ours, found.other) for found in results.comparisons)
    named = {(found.ours, found.other, found.threads, found.batch): found for found in results.comparisons}
    for pair in pairs:
        cells = []
        for threads in results.threads:
            for batch in results.batches:
                found = named.get((*pair, threads, batch))
                span = "" if found is None else f"({found.ratio_range[0]:.2f} to {found.ratio_range[1]:.2f})"
                cells.append(NOTHING if found is None else f"{found.ratio:.2f}x {span}")
        table.add_row(*pair, *cells)
    return table


def _table(title: str, columns: list[str], *, words: int) -> Table:
    """words: so many first columns hold text."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < words else "right")
    return table


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
