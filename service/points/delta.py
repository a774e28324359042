"""The delta: entries in memory, searched exactly beside the generation, and the rows of the generation that they hide.

Delta        grows by add(); `view` is what it was after the last one
DeltaView    what it was at one moment: readers hold one while it goes on growing

Entries go into slots, in order of writing; a newer entry of an id takes a new slot and the older one is no longer current.
Arrays only grow behind what views see; the two masks that change, `current` and `hidden`, are copied before they do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from index.bounded import BoundedCodes, padded_width
from index.columns import ColumnBuilder, PayloadColumns
from index.options import Metric
from service.names import PointId
from service.points.entries import Entry, EntryKind
from service.points.store import RowsOf

_FIRST_SLOTS = 64
_REBUILD_SLOTS = 10_000
"""From this many slots on a delta is written anew when more than half of them are no longer current."""


@dataclass(slots=True)
class _Slots:
    """What views share: lists and arrays that grow, never change below a view's count."""

    ids: list[PointId] = field(default_factory=list)
    payloads: list[bytes | None] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    """The slot that the id had before; -1: none."""
    last: dict[PointId, int] = field(default_factory=dict)
    """The newest slot of each id."""


class Delta:
    """Entries of one collection in memory, on top of one generation. Threads: add() by one at a time, `view` by any.

    rows_of: ids -> rows of the generation, -1 where it has none. n: rows of the generation.
    """

    view: DeltaView
    """What readers get; replaced, never changed."""

    def __init__(self, *, dim: int, metric: str, n: int, rows_of: RowsOf) -> None:
        self.dim, self.metric, self.n = dim, metric, n
        self.rows_of = rows_of
        self._slots = _Slots()
        self._columns = ColumnBuilder()
        self._vectors = np.empty((0, dim), np.float32)
        self._codes = np.empty((0, padded_width(dim)), np.uint8)
        self._scalars = np.empty((0, 4), np.float32)
        self._rows = np.empty(0, np.int64)
        self._kinds = np.empty(0, np.uint8)
        self._has_vector = np.empty(0, np.bool_)
        self._current = np.empty(0, np.bool_)
        self._hidden: NDArray[np.bool_] | None = None
        self.payload_bytes = 0
        self.view = self._make_view()

    def __len__(self) -> int:
        return len(self._slots.ids)

    @property
    def resident_bytes(self) -> int:
        """Memory held, about."""
        arrays = (self._vectors, self._codes, self._scalars, self._rows, self._kinds, self._has_vector, self._current)
        hidden = 0 if self._hidden is None else self._hidden.nbytes
        return sum(array.nbytes for array in arrays) + hidden + self.payload_bytes + 200 * len(self)

    def add(self, entries: Sequence[Entry]) -> None:
        """Take entries in; views made from now on see all of them."""
        if not entries:
            return
        first, count = len(self), len(entries)
        self._reserve(first + count)
        slots = self._slots
        rows = self.rows_of([entry.id for entry in entries])
        self._current = current = self._current.copy()
        self._rows[first : first + count] = rows
        payloads: list[dict[str, Any] | None] = []
        # Another payload for a row that is not there any more: a build replaced what it was of.
        lost = {at for at, entry in enumerate(entries) if entry.kind is EntryKind.PAYLOAD and rows[at] < 0}
        for slot, entry in enumerate(entries, first):
            before = slots.last.get(entry.id, -1)
            if before >= 0:
                current[before] = False
            vector = entry.vector
            self._kinds[slot] = entry.kind
            self._has_vector[slot] = vector is not None
            if vector is not None:
                self._vectors[slot] = vector
            current[slot] = entry.kind is not EntryKind.DELETED and slot - first not in lost
            slots.ids.append(entry.id)
            slots.payloads.append(entry.payload)
            slots.previous.append(before)
            slots.last[entry.id] = slot
            self.payload_bytes += len(entry.payload or b"")
            payloads.append(msgspec.json.decode(entry.payload) if entry.payload else None)
        encoded = BoundedCodes.of(self._vectors[first : first + count], Metric(self.metric))
        self._codes[first : first + count], self._scalars[first : first + count] = encoded.codes, encoded.scalars
        self._columns.append(payloads)
        self._hide(rows, np.array([entry.kind is not EntryKind.PAYLOAD for entry in entries]))
        if len(self) >= _REBUILD_SLOTS and 2 * len(slots.last) < len(self):
            self._rebuild()
        self.view = self._make_view()

    def entries(self) -> Iterable[Entry]:
        """The newest entry of each id, in order of writing."""
        slots = self._slots
        for slot, id_ in enumerate(slots.ids):
            if slots.last[id_] == slot:
                vector = self._vectors[slot].copy() if self._has_vector[slot] else None
                yield Entry(id_, EntryKind(int(self._kinds[slot])), vector, slots.payloads[slot])

    # --- inside -------------------------------------------------------------

    def _make_view(self) -> DeltaView:
        count = len(self)
        return DeltaView(
            count=count,
            n=self.n,
            vectors=self._vectors[:count],
            codes=BoundedCodes(self._codes[:count], self._scalars[:count]),
            rows=self._rows[:count],
            kinds=self._kinds[:count],
            has_vector=self._has_vector[:count],
            current=self._current[:count],
            hidden=self._hidden,
            columns=self._columns.view(),
            slots=self._slots,
        )

    def _reserve(self, count: int) -> None:
        if count <= len(self._rows):
            return
        size = max(_FIRST_SLOTS, 2 * len(self._rows), count)
        held = len(self)

        def grown(array: NDArray[Any]) -> NDArray[Any]:
            larger = np.zeros((size, *array.shape[1:]), array.dtype)
            larger[:held] = array[:held]
            return larger

        self._vectors, self._rows, self._kinds = grown(self._vectors), grown(self._rows), grown(self._kinds)
        self._codes, self._scalars = grown(self._codes), grown(self._scalars)
        self._has_vector, self._current = grown(self._has_vector), grown(self._current)

    def _hide(self, rows: NDArray[np.int64], hides: NDArray[np.bool_]) -> None:
        hidden = rows[hides & (rows >= 0)]
        if not len(hidden):
            return
        self._hidden = np.zeros(self.n, np.bool_) if self._hidden is None else self._hidden.copy()
        self._hidden[hidden] = True

    def _rebuild(self) -> None:
        """Write everything anew without what is no longer current; views go on with the old arrays."""
        fresh = Delta(dim=self.dim, metric=self.metric, n=self.n, rows_of=self.rows_of)
        fresh.add(list(self.entries()))
        for name in (
            "_slots",
            "_columns",
            "_vectors",
            "_codes",
            "_scalars",
            "_rows",
            "_kinds",
            "_has_vector",
            "_current",
            "_hidden",
        ):
            setattr(self, name, getattr(fresh, name))
        self.payload_bytes = fresh.payload_bytes


@dataclass(slots=True, kw_only=True)
class DeltaView:
    """Entries in slots 0..count-1, as they were when the view was made. Threads: any number of readers.

    vectors float32 (count, dim), of those with has_vector; rows int64 (count,): the generation's row of the id, or -1;
    current: the newest entry of its id, and no deletion; hidden bool (n,): rows that are not there any more, None: all are.
    """

    count: int
    n: int
    vectors: NDArray[np.float32]
    codes: BoundedCodes
    rows: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    has_vector: NDArray[np.bool_]
    current: NDArray[np.bool_]
    hidden: NDArray[np.bool_] | None
    columns: PayloadColumns
    slots: _Slots
    _cached: dict[Hashable, Any] = field(default_factory=dict)

    def slot_of(self, id_: PointId) -> int:
        """The newest slot of an id in this view, a deletion included; -1: the delta says nothing of it."""
        slot = self.slots.last.get(id_, -1)
        while slot >= self.count:
            slot = self.slots.previous[slot]
        return slot

    def payload(self, slot: int) -> bytes | None:
        """JSON of a slot."""
        return self.slots.payloads[slot]

    def id(self, slot: int) -> PointId:
        """Id of a slot."""
        return self.slots.ids[slot]

    def kept(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` made the first time: a view never changes."""
        found = self._cached.get(name)
        return found if found is not None else self._cached.setdefault(name, make())

    @property
    def points(self) -> NDArray[np.int64]:
        """Slots of whole points, ascending."""
        found: NDArray[np.int64] = self.kept(
            "points", lambda: np.flatnonzero(self.current & (self.kinds == EntryKind.WHOLE))
        )
        return found

    @property
    def repaid(self) -> NDArray[np.int64]:
        """Slots of rows of the generation that have another payload now, ascending."""
        found: NDArray[np.int64] = self.kept(
            "repaid", lambda: np.flatnonzero(self.current & (self.kinds == EntryKind.PAYLOAD))
        )
        return found

    @property
    def hidden_count(self) -> int:
        """Rows of the generation that are hidden."""
        return int(self.kept("hidden_count", lambda: 0 if self.hidden is None else int(self.hidden.sum())))
