"""How far two names lie apart: which known name a misspelt one stands for."""

from __future__ import annotations

from collections.abc import Iterable

# Names shorter than this differ from each other by two edits already.
_TWO_EDITS_FROM = 5
_LONGEST = 64


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name at most two edits away (one for short names), the nearest first; None where there is none."""
    if len(name) > _LONGEST:
        return None
    near = [(count, other) for other in known if (count := edits(name, other)) <= 1 + (len(other) >= _TWO_EDITS_FROM)]
    return min(near)[1] if near else None


def edits(one: str, other: str) -> int:
    """Characters put in, left out or replaced, and neighbours swapped, that make `one` the `other`."""
    rows = [list(range(len(other) + 1))]
    for i, a in enumerate(one, start=1):
        row = [i]
        for j, b in enumerate(other, start=1):
            count = min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                count = min(count, rows[-2][j - 2] + 1)
            row.append(count)
        rows.append(row)
    return rows[-1][-1]
