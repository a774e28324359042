"""What `fullview decoder` prints for people: the report of a build, tokens, inspections.

print_report() print_inspection()   by the names that the library gives its figures
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
from service.flags import in_flags

if TYPE_CHECKING:
    from decoder.answers import TopK

_LONG = 6
"""Lists of more figures than this are in --json only."""


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
    console.print(
        f"{out}: {report['vocab_size']:,} tokens of dimension {report['dim']}, built in {report['seconds']:.1f} s"
    )
    console.print(_table(report, apart={"vocab_size", "dim", "seconds", "warnings"}))
    for warning in report.get("warnings", ()):
        console.print(f"warning: {in_flags(str(warning))}", style="yellow")


def print_inspection(folder: Path, stats: Mapping[str, Any]) -> None:
    """What a decoder is."""
    console = _console()
    console.print(str(folder))
    console.print(_table(stats, apart=set()))


def _table(figures: Mapping[str, Any], *, apart: set[str]) -> Table:
    table = Table(show_header=False, box=None)
    for name, value in figures.items():
        if name not in apart:
            _add_rows(table, name.replace("_", " "), value)
    return table


def _add_rows(table: Table, name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for inner, each in value.items():
            _add_rows(table, f"{name} {str(inner).replace('_', ' ')}", each)
    elif isinstance(value, list | tuple):
        if len(value) <= _LONG and not any(isinstance(each, list | tuple | Mapping) for each in value):
            table.add_row(name, ", ".join(_shown(name, each) for each in value))
        else:
            table.add_row(name, f"{len(value)} entries, in --json")
    else:
        table.add_row(name, _shown(name, value))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if "bytes" in name and isinstance(value, int | float):
        return f"{value / 1e6:,.1f} MB"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _console() -> Console:
    return Console(highlight=False, markup=False, soft_wrap=True)
