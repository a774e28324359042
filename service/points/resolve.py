"""Operations + what is stored -> entries: all of a request's, or an error that names the point.

resolve()   runs the operations one after the other over the points as they are, each seeing what the ones before it did

Invariant: nothing is changed here; who calls holds the collection's write lock, so that what is read stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.answers import encode
from service.errors import NotFoundError
from service.filters import Filter, matches
from service.names import PointId
from service.points.entries import Entry, EntryKind
from service.points.operations import (
    ChangePayload,
    Delete,
    DeleteVectors,
    Operation,
    Selector,
    UpdateVectors,
    Upsert,
)
from service.points.view import PointsView


@dataclass(frozen=True, slots=True)
class Stored:
    """A point as it is. vector: None where it has none, or where it lies in the generation (`in_row`)."""

    payload: bytes | None
    vector: NDArray[np.float32] | None
    in_row: bool

    @property
    def has_vector(self) -> bool:
        """True where searches find it."""
        return self.in_row or self.vector is not None

    def with_payload(self, id_: PointId, payload: bytes | None) -> Entry:
        """The entry of this point with another payload."""
        if self.in_row:
            return Entry(id_, EntryKind.PAYLOAD, None, payload)
        return Entry(id_, EntryKind.WHOLE, self.vector, payload)


def resolve(operations: Sequence[Operation], view: PointsView) -> list[Entry]:
    """The newest state of every point that changes. Raises NotFoundError, and what reading the generation raises."""
    run = _Run(view)
    for operation in operations:
        run.apply(operation)
    return list(run.staged.values())


class _Run:
    """One request under way. staged: what the operations so far made of points."""

    def __init__(self, view: PointsView) -> None:
        self.view = view
        self.staged: dict[PointId, Entry] = {}

    def apply(self, operation: Operation) -> None:
        """One operation more."""
        if isinstance(operation, Upsert):
            self._upsert(operation)
        elif isinstance(operation, Delete):
            self._delete(operation)
        elif isinstance(operation, UpdateVectors):
            self._update_vectors(operation)
        elif isinstance(operation, DeleteVectors):
            self._change(operation.selector, lambda id_, stored: Entry(id_, EntryKind.WHOLE, None, stored.payload))
        else:
            self._change_payload(operation)

    def _upsert(self, operation: Upsert) -> None:
        conditional = operation.mode != "upsert" or operation.only_where is not None
        there = self._stored(operation.ids) if conditional else {}
        for at, id_ in enumerate(operation.ids):
            if conditional and not self._wanted(operation, id_, there.get(id_)):
                continue
            vector = operation.vectors[at] if operation.has_vector[at] else None
            self.staged[id_] = Entry(id_, EntryKind.WHOLE, vector, operation.payloads[at])

    def _wanted(self, operation: Upsert, id_: PointId, stored: Stored | None) -> bool:
        if stored is None:
            return operation.mode != "update_only"
        if operation.mode == "insert_only":
            return False
        return operation.only_where is None or _matches(operation.only_where, id_, stored)

    def _delete(self, operation: Delete) -> None:
        for id_ in self._selected(operation.selector):
            self.staged[id_] = Entry(id_, EntryKind.DELETED)

    def _update_vectors(self, operation: UpdateVectors) -> None:
        there = self._stored(operation.ids)
        for at, id_ in enumerate(operation.ids):
            stored = _require(there.get(id_), id_)
            if operation.has_vector[at]:
                self.staged[id_] = Entry(id_, EntryKind.WHOLE, operation.vectors[at], stored.payload)

    def _change_payload(self, operation: ChangePayload) -> None:
        def changed(id_: PointId, stored: Stored) -> Entry:
            payload: dict[str, Any] = msgspec.json.decode(stored.payload) if stored.payload is not None else {}
            after = operation.change(payload)
            return stored.with_payload(id_, encode(after) if after else None)

        self._change(operation.selector, changed)

    def _change(self, selector: Selector, change: Callable[[PointId, Stored], Entry]) -> None:
        ids = self._selected(selector)
        there = self._stored(ids)
        for id_ in ids:
            self.staged[id_] = change(id_, _require(there.get(id_), id_))

    def _selected(self, selector: Selector) -> Sequence[PointId]:
        if selector.ids is not None:
            return selector.ids
        wanted = selector.filter
        found = [id_ for id_ in self.view.ids_matching(wanted) if id_ not in self.staged]
        for id_ in list(self.staged):
            stored = self._staged(id_)
            if stored is not None and (wanted is None or _matches(wanted, id_, stored)):
                found.append(id_)
        return found

    def _stored(self, ids: Sequence[PointId]) -> dict[PointId, Stored]:
        """Points that are there, of these."""
        found: dict[PointId, Stored] = {}
        rest = []
        for id_ in ids:
            if id_ in self.staged:
                stored = self._staged(id_)
                if stored is not None:
                    found[id_] = stored
            else:
                rest.append(id_)
        positions = self.view.positions_of(rest)
        payloads = self.view.payloads_of(positions)
        for id_, position, payload in zip(rest, positions.tolist(), payloads, strict=True):
            if position >= 0:
                found[id_] = Stored(payload, self.view.written_vector(position), position < self.view.n_rows)
        return found

    def _staged(self, id_: PointId) -> Stored | None:
        entry = self.staged[id_]
        if entry.kind is EntryKind.DELETED:
            return None
        return Stored(entry.payload, entry.vector, entry.kind is EntryKind.PAYLOAD)


def _require(stored: Stored | None, id_: PointId) -> Stored:
    if stored is None:
        raise NotFoundError(
            f"No point with id {id_} found; nothing of this request was written. Upsert the point first."
        )
    return stored


def _matches(wanted: Filter, id_: PointId, stored: Stored) -> bool:
    payload = msgspec.json.decode(stored.payload) if stored.payload is not None else {}
    return bool(matches(wanted, payload, id=id_, has_vector=stored.has_vector))
