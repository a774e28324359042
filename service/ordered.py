"""Points in the order of a field's values instead of their ids.

parse_order()        `order_by` of a scroll -> Order
scroll_by_value()    a record for each number or date-time at the field, date-times as microseconds since 1970
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from index.columns import parse_time
from index.columns.reads import order_values
from service.answers import decode, decode_any
from service.errors import MalformedError
from service.field_values import ValuesReader, having, ids_of, places_of
from service.filters import Filter
from service.hits import Record, records
from service.names import PointId
from service.points.view import PointsView, order_of
from service.selection import PayloadSelection

_NULL = Raw(b"null")
_Entry = tuple[int | float, PointId, int]
"""(value, id, position)"""


class _OrderBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    key: str
    direction: Literal["asc", "desc"] | None = None
    start_from: Raw = _NULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """start_from: the first value that may come; None: from the end."""

    key: str
    reader: ValuesReader
    descending: bool
    start_from: int | float | None

    def takes(self, value: float) -> bool:
        """Whether a value does not lie before the start."""
        if self.start_from is None:
            return True
        return value <= self.start_from if self.descending else value >= self.start_from


def parse_order(raw: Raw, *, path: str) -> Order:
    """A key, or an object with a key, direction and start_from. Raises MalformedError."""
    body = _OrderBody(key=decode(raw, str, path=path)) if bytes(raw)[:1] == b'"' else decode(raw, _OrderBody, path=path)
    start = decode_any(body.start_from, path=f"{path}.start_from")
    if start is not None and order_value(start) is None:
        raise MalformedError(f"{path}.start_from is {start!r}; it must be a number or a date-time.")
    return Order(
        key=body.key,
        reader=ValuesReader(body.key, path=f"{path}.key"),
        descending=body.direction == "desc",
        start_from=order_value(start),
    )


def order_value(value: Any) -> int | float | None:
    """The number that a value is ordered by; None for what has no order."""
    if isinstance(value, str):
        return parse_time(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def scroll_by_value(
    view: PointsView,
    order: Order,
    *,
    limit: int,
    selection: PayloadSelection,
    with_vector: bool,
    wanted: Filter | None,
) -> list[Record]:
    """The first `limit`; ties ascend by id. A point comes once for each of its different values."""
    sign = -1 if order.descending else 1
    entries = _entries(view, order, wanted, limit)
    first = heapq.nsmallest(limit, entries, key=lambda entry: (sign * entry[0], order_of(entry[1])))
    positions = np.array([position for _, _, position in first], np.int64)
    found = records(view, [id_ for _, id_, _ in first], positions, selection, with_vector=with_vector)
    return [
        msgspec.structs.replace(record, order_value=value) for record, (value, _, _) in zip(found, first, strict=True)
    ]


def _entries(view: PointsView, order: Order, wanted: Filter | None, limit: int) -> Iterator[_Entry]:
    """All that may be among the first."""
    places = places_of(view, order.reader, having(wanted, order.key))
    read = order.reader.at(view, places.positions)
    for id_, position, values in zip(ids_of(view, places.positions), places.positions.tolist(), read, strict=True):
        known = {value: None for each in values if (value := order_value(each)) is not None}
        for value in known:
            if order.takes(value):
                yield value, id_, position
    if places.rows is not None and view.index is not None and order.reader.names is not None:
        told = order_values(view.index.columns, order.reader.names, places.rows, order.reader.of_rows(view))
        rows, ordered = _first(told.rows, told.values, order, limit)
        yield from zip(ordered.tolist(), ids_of(view, rows), rows.tolist(), strict=True)


def _first(
    rows: NDArray[np.int64], values: NDArray[Any], order: Order, limit: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The `limit` first by value, and all that are equal to the last of them: ids decide there."""
    if order.start_from is not None:
        # As Python's own numbers: an integer of 64 bits and a float are compared exactly.
        taken = np.fromiter(map(order.takes, values.tolist()), np.bool_, len(values))
        rows, values = rows[taken], values[taken]
    if len(values) > limit:
        place = len(values) - limit if order.descending else limit - 1
        last = np.partition(values, place)[place]
        near = values >= last if order.descending else values <= last
        rows, values = rows[near], values[near]
    return rows, values
