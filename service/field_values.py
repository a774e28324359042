"""What points have at one path of their payloads: what scrolls are ordered by, groups are made of and facets count.

having()          a filter, narrowed to points with something at the path
also()            a filter and one condition more
ValuesReader      JSON of a payload -> the values at a path, elements of an array one by one
places_of()       where the points that a filter lets pass have their values: in columns, or in JSON
as_scalar()       what of values has a name: facets count it, groups are called by it

Only the member that a path begins with is decoded: the rest of a payload is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from service.filters import Filter
from service.filters.grammar import parse_decoded
from service.filters.matching import values_at
from service.names import PointId
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


_UNFIT = frozenset('"\\')


class ValuesReader:
    """Values at a path of payloads. Threads: any."""

    def __init__(self, key: str, *, path: str) -> None:
        """path: where the key stands in the body. Raises MalformedError."""
        steps = parse_path(key, path=path)
        names = tuple(step for step in steps if isinstance(step, str))
        self.names = names if len(names) == len(steps) else None
        """Of a path of names alone, which columns may tell of."""
        head, *self._rest = steps
        self._head = str(head)
        # Only that member is decoded, where a struct can have its name.
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if not set(self._head) & _UNFIT and self._head.isprintable():
            member = msgspec.defstruct("Member", [("value", Any, UNSET)], rename={"value": self._head})
            self._decoder = msgspec.json.Decoder(member)

    def of(self, payload: bytes | None) -> list[Any]:
        """The elements of an array are values, one level deep."""
        member: Any = UNSET
        if payload is not None and self._decoder is not None:
            member = self._decoder.decode(payload).value
        elif payload is not None:
            member = msgspec.json.decode(payload).get(self._head, UNSET)
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

    def of_rows(self, view: PointsView) -> Callable[[NDArray[np.int64]], list[list[Any]]]:
        """The same for index.columns.reads."""
        return lambda rows: list(self.at(view, rows))


@dataclass(frozen=True, slots=True)
class Places:
    """Where the points that pass a filter have their values at a path.

    rows bool (n_rows,): those that the generation's columns tell of, None: none; positions int64 (m,): all others, whose
    JSON says it.
    """

    rows: NDArray[np.bool_] | None
    positions: NDArray[np.int64]


def places_of(view: PointsView, reader: ValuesReader, wanted: Filter) -> Places:
    """Columns tell of rows whose payload is still the generation's, at paths of names alone."""
    masks = view.masks(wanted)
    rows = np.ones(view.n_rows, np.bool_) if masks.rows is None else masks.rows.mask
    slots = view.n_rows + masks.slots
    if view.index is None or view.index.columns is None or reader.names is None:
        return Places(None, np.concatenate([np.flatnonzero(rows), slots]))
    if view.delta is None or not len(view.delta.repaid):
        return Places(rows, slots)
    repaid = view.delta.rows[view.delta.repaid]
    told = rows.copy()
    told[repaid] = False
    return Places(told, np.concatenate([repaid[rows[repaid]], slots]))


def ids_of(view: PointsView, positions: NDArray[np.int64]) -> list[PointId]:
    """The id of each position."""
    ids: list[PointId] = [0] * len(positions)
    in_rows = np.flatnonzero(positions < view.n_rows)
    if view.index is not None and len(in_rows):
        for at, id_ in zip(in_rows.tolist(), view.index.ids_of_rows(positions[in_rows]).tolist(), strict=True):
            ids[at] = id_
    for at in np.flatnonzero(positions >= view.n_rows).tolist():
        assert view.delta is not None, "a position of the delta"
        ids[at] = view.delta.id(int(positions[at]) - view.n_rows)
    return ids


def as_scalar(value: Any) -> bool | int | str | None:
    """A boolean, integer or string; 42.0 is 42, as to filters; None for what is none of these."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2.0**63:
        return int(value)
    return value if isinstance(value, bool | int | str) else None
