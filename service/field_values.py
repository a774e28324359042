"""What points have at one path of their payloads: what scrolls are ordered by, groups are made of and facets count.

having()          a filter, narrowed to points with something at the path
also()            a filter and one condition more
ValuesReader      JSON of a payload -> the values at a path, elements of an array one by one
positions_of()    all positions that a filter lets pass, in no order that matters

Only the member that a path begins with is decoded: the rest of a payload is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from service.filters import Filter
from service.filters.grammar import parse_decoded
from service.filters.matching import values_at
from service.payload_paths import parse_path
from service.points.view import PointsView

POINTS_AT_ONCE = 4096
"""Payloads that are read together."""


def also(wanted: Filter | None, condition: dict[str, Any]) -> Filter:
    """The points that `wanted` lets pass and of which a condition, as JSON has it, holds."""
    given = [] if wanted is None else [msgspec.json.decode(wanted.key)]
    # One filter around another is deeper than what the request held: it must not count.
    return parse_decoded({"must": [*given, condition]}, "$.filter", depth=-1)


def having(wanted: Filter | None, key: str) -> Filter:
    """The points that `wanted` lets pass and that have something at a path: neither nothing, null nor an empty array."""
    return also(wanted, {"key": key, "is_empty": False})


class ValuesReader:
    """Values at a path of payloads. Threads: any."""

    def __init__(self, key: str, *, path: str) -> None:
        """path: where the key stands in the body. Raises MalformedError."""
        head, *self._rest = parse_path(key, path=path)
        member = msgspec.defstruct("Member", [("value", Any, UNSET)], rename={"value": str(head)})
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(member)

    def of(self, payload: bytes | None) -> list[Any]:
        """The elements of an array are values, one level deep."""
        member: Any = UNSET if payload is None else self._decoder.decode(payload).value
        if member is UNSET:
            return []
        if not self._rest:
            return member if isinstance(member, list) else [member]
        found: list[Any] = []
        for value in values_at(member, tuple(self._rest)):
            if isinstance(value, list):
                found += value
            else:
                found.append(value)
        return found

    def at(self, view: PointsView, positions: NDArray[np.int64]) -> Iterator[list[Any]]:
        """Of each position, in their order."""
        for start in range(0, len(positions), POINTS_AT_ONCE):
            for payload in view.payloads_of(positions[start : start + POINTS_AT_ONCE]):
                yield self.of(payload)


def positions_of(view: PointsView, wanted: Filter | None) -> NDArray[np.int64]:
    """Int64 (m,), ascending."""
    masks = view.masks(wanted)
    rows = np.arange(view.n_rows) if masks.rows is None else np.flatnonzero(masks.rows.mask)
    return np.concatenate([rows, view.n_rows + masks.slots])
