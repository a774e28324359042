"""What `fullview decoder` prints for people: the report of a build, tokens, inspections.

print_report() print_inspection()   a few lines, and the operating points
shortfalls()                        what a build did not reach, as warnings
tokens_of() print_tokens()          one line a token
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from service.decoder_words import word

if TYPE_CHECKING:
    from decoder.answers import TopK


def tokens_of(found: TopK, *, words: Sequence[str] | None, normalized: bool) -> list[dict[str, Any]]:
    """One JSON-able dict a state: token ids, logits, log-probabilities, what they cost. Impossible entries are left out."""
    rows = []
    for state, count in enumerate(found.counts.tolist()):
        kept = [place for place in range(count) if found.logits[state, place] > -math.inf]
        ids = found.token_ids[state, kept].tolist()
        row: dict[str, Any] = {"state": state, "token_ids": ids, "logits": found.logits[state, kept].tolist()}
        if normalized:
            row["logprobs"] = _finite(found.logprobs[state, kept].tolist())
            row["logprob_stderr"] = float(found.logprob_stderr[state]) if not found.failed[state] else None
        if words is not None:
            row["tokens"] = [word(words, token_id) for token_id in ids]
        row |= {"mode": found.mode, "exact": bool(found.exact), "rows_scored": int(found.rows_scored[state])}
        row["failed"] = bool(found.failed[state])
        rows.append(row)
    return rows


def print_tokens(rows: list[dict[str, Any]], mode: str) -> None:
    """A line a token."""
    with_words = any("tokens" in row for row in rows)
    table = Table("state", "rank", "token", *(["word"] if with_words else []), "logit", "log-probability")
    for row in rows:
        for place, token_id in enumerate(row["token_ids"]):
            shown = [repr(row["tokens"][place])] if with_words else []
            logprob = row["logprobs"][place] if "logprobs" in row else None
            table.add_row(
                str(row["state"]),
                str(place + 1),
                str(token_id),
                *shown,
                f"{row['logits'][place]:.4f}",
                "" if logprob is None else f"{logprob:.4f}",
            )
        if row["failed"]:
            table.add_row(str(row["state"]), "", "NaN or infinity", *([""] if with_words else []), "", "")
    console = _console()
    console.print(table)
    scored = sum(row["rows_scored"] for row in rows) / max(1, len(rows))
    states = "1 state" if len(rows) == 1 else f"{len(rows)} states"
    console.print(f"{states}, mode {mode}, {scored:,.0f} rows scored a state")


def print_report(out: Path, report: Mapping[str, Any]) -> None:
    """What a build did."""
    console = _console()
    console.print(f"{out}: {_size(report)}, built in {report['seconds']:.1f} s")
    table = Table(show_header=False, box=None)
    table.add_row("calibration", _calibration(report["calibration_states"]))
    compared = ", ".join(f"{name} {rows:,.0f}" for name, rows in report["rows_scored_by_variant"].items())
    table.add_row("links kept", f"{report['links']} (rows scored a state: {compared})")
    table.add_row("seconds", ", ".join(f"{name} {seconds:.1f}" for name, seconds in report["phases"].items()))
    _add_memory(table, report["resident_bytes"])
    table.add_row("peak of the build", _megabytes(report["peak_bytes"]))
    _add_promise(table, report["promise"], report["curve"])
    console.print(table)
    _print_points(console, report["promise"], report["curve"])


def print_inspection(folder: Path, stats: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    """What a decoder is. report: of its build, empty where it was lost."""
    console = _console()
    console.print(f"{folder}: {_size(stats)}")
    table = Table(show_header=False, box=None)
    softcap, scanned = stats["softcap"], min(stats["lead"], stats["dim"])
    table.add_row(
        "logits", f"scale {stats['scale']:g}, {'no soft-cap' if softcap is None else f'soft-cap {softcap:g}'}"
    )
    if "calibration_states" in report:
        table.add_row("calibration", _calibration(report["calibration_states"]))
    table.add_row("codes", f"{stats['width']:,} of {stats['dim']:,} coordinates; screens scan {scanned:,} first")
    table.add_row("links", f"{stats['degree']} a token{', ' if report.get('links') else ''}{report.get('links', '')}")
    _add_memory(table, stats["resident_bytes"])
    table.add_row("disk", _megabytes(stats["disk_bytes"]))
    _add_promise(table, stats["promise"], stats["operating_points"])
    table.add_row("time of a state", _times(stats["timings"]))
    table.add_row("weights", f"hash {stats['weights_hash']}, seed of the build {stats['seed']}")
    table.add_row("created", f"{stats['created_at']}, format version {stats['format_version']}")
    console.print(table)
    _print_points(console, stats["promise"], stats["operating_points"])


def shortfalls(
    promise: Mapping[str, Any], points: Sequence[Mapping[str, Any]], *, calibration_states: int | None
) -> list[str]:
    """Sentences where the recall promised was not reached, or was measured on made-up states only (0; None: not known)."""
    missed = [
        f"by mode {mode}, measured {_recall(promise, points, mode)}"
        for mode, kept in promise["points"].items()
        if not kept["reached"]
    ]
    said = []
    if missed:
        # What was measured on few states may be more than what can be promised.
        few = any(
            not kept["reached"] and kept["recall"]["10"] >= promise["recall"] for kept in promise["points"].values()
        )
        advice = " More calibration states would tell more exactly." if few else ""
        said.append(
            f"the recall of {promise['recall']} that was promised was not reached {', nor '.join(missed)}. Mode auto takes "
            f"a way that keeps it, exact where there is no other.{advice}"
        )
    if promise["points"] and calibration_states == 0:
        said.append(
            "no calibration states were given, so that recall was measured on made-up states: real ones may find less. "
            "Build with --calibration FILE of real hidden states."
        )
    return said


def _size(figures: Mapping[str, Any]) -> str:
    return f"{figures['vocab_size']:,} tokens of dimension {figures['dim']:,} ({figures['dtype']})"


def _calibration(states: int) -> str:
    return f"{states:,} states" if states else "no states were given"


def _add_memory(table: Table, resident: Mapping[str, int]) -> None:
    for part, size in resident.items():
        table.add_row(f"memory, {part.replace('_', ' ')}", _megabytes(size))
    table.add_row("memory in all", _megabytes(sum(resident.values())))


def _add_promise(table: Table, promise: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> None:
    table.add_row(
        "promised", f"recall@10 of {promise['recall']}{'' if promise['points'] else ': every answer is exact'}"
    )
    for mode, kept in promise["points"].items():
        reached = "reached" if kept["reached"] else "not reached"
        table.add_row(f"promise, {mode}", f"{reached}: {_recall(promise, points, mode)} at width {kept['width']:,}")
    if promise["points"]:
        table.add_row("the promise covers", promise["covers"])


def _recall(promise: Mapping[str, Any], points: Sequence[Mapping[str, Any]], mode: str) -> str:
    """Recall@10 of the point that a mode was promised with, and its lower bound."""
    point = next(each for each in points if _is_promised(promise, each) and each["mode"] == mode)
    return f"{point['recall']['10']:.4f} (at least {point['low']['10']:.4f})"


def _is_promised(promise: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    kept = promise["points"].get(point["mode"])
    return kept is not None and kept["width"] == point["width"]


def _times(timings: Mapping[str, Any]) -> str:
    """As it was measured on this machine, with log-probabilities: of the narrowest and the widest point; of a batch."""
    said = []
    for mode in ("walk", "screen"):
        times = [f"{row[2]:,.0f}" for row in timings[mode]]
        if times:
            said.append(f"{mode} {' to '.join(dict.fromkeys((times[0], times[-1])))} \u03bcs")
    exact = [f"{us:,.0f} \u03bcs {'alone' if batch == 1 else f'among {batch}'}" for batch, us in timings["exact"]]
    return f"{', '.join(said)}{', ' if said else ''}exact {', '.join(exact)} ({timings['machine']})"


def _print_points(console: Console, promise: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> None:
    if not points:
        return
    at = list(points[0]["recall"])
    table = Table(
        "mode", "width", *(f"recall@{k}" for k in at), "rows\nscored", "error,\nnats", "", title="operating points"
    )
    for point in points:
        table.add_row(
            point["mode"],
            f"{point['width']:,}",
            *(f"{point['recall'][k]:.4f}" for k in at),
            f"{point['rows_scored']:,.0f}",
            f"{point['logprob_error']:.4f}",
            "*" if _is_promised(promise, point) else "",
        )
    console.print(table)
    console.print("* what the promise is about; error: mean, of the best token's log-probability")


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _console() -> Console:
    return Console(highlight=False, markup=False, soft_wrap=True)
