"""Masks of filters over the two halves of a collection: rows of a generation, slots of a delta.

rows_matching()   rows of a generation, kept for the filters that come again
KeptMasks         what it keeps them in
DeltaTarget       slots of a delta as service.filters looks at them
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from index.allowed import AllowedRows
from service import filters
from service.filters import Filter
from service.generation import SearchableIndex
from service.names import PointId
from service.points.delta import DeltaView
from service.points.entries import EntryKind

_KEPT_BYTES = 64_000_000
"""Of masks that are kept for each open generation and for each moment of a delta."""


class _RowTarget:
    """Rows of a generation, which all have vectors."""

    def __init__(self, index: SearchableIndex) -> None:
        self.index, self.n, self.columns = index, index.n, index.columns

    def positions_of(self, ids: Iterable[PointId]) -> NDArray[np.int64]:
        return np.asarray(self.index.ids.rows_of(list(ids)), np.int64)

    def vector_mask(self) -> NDArray[np.bool_] | None:
        return None

    def payloads(self, positions: NDArray[np.int64]) -> list[bytes | None]:
        return [None] * len(positions) if self.index.payload is None else self.index.payload.get(positions)

    def ids_of(self, positions: NDArray[np.int64]) -> list[Any]:
        return list(self.index.ids_of_rows(positions).tolist())


class DeltaTarget:
    """Slots of a delta. One with another payload for a row has the row's vector."""

    def __init__(self, delta: DeltaView) -> None:
        self.delta, self.n, self.columns = delta, delta.count, delta.columns

    @classmethod
    def mask(cls, wanted: Filter, delta: DeltaView) -> NDArray[np.bool_]:
        """Bool (count,): slots that match, current or not."""
        return filters.mask_of(wanted, cls(delta))

    def positions_of(self, ids: Iterable[PointId]) -> NDArray[np.int64]:
        """Newest slots."""
        return np.array([self.delta.slot_of(id_) for id_ in ids], np.int64)

    def vector_mask(self) -> NDArray[np.bool_] | None:
        """Slots of points with vectors."""
        repaid: NDArray[np.bool_] = self.delta.kinds == EntryKind.PAYLOAD
        return self.delta.has_vector | repaid

    def payloads(self, positions: NDArray[np.int64]) -> list[bytes | None]:
        """JSON of slots."""
        return [self.delta.payload(slot) for slot in positions.tolist()]

    def ids_of(self, positions: NDArray[np.int64]) -> list[PointId]:
        """Ids of slots."""
        return [self.delta.id(slot) for slot in positions.tolist()]


M = TypeVar("M")


class KeptMasks(Generic[M]):
    """The masks used last, by the keys of their filters. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._masks: OrderedDict[bytes, tuple[M, int]] = OrderedDict()
        self._bytes = 0

    def find(self, key: bytes) -> M | None:
        """None where it is not kept."""
        with self._lock:
            kept = self._masks.get(key)
            if kept is None:
                return None
            self._masks.move_to_end(key)
            return kept[0]

    def keep(self, key: bytes, mask: M, size_bytes: int) -> None:
        """Others may go for it."""
        with self._lock:
            self._bytes += size_bytes - self._masks.pop(key, (mask, 0))[1]
            self._masks[key] = mask, size_bytes
            while len(self._masks) > 1 and self._bytes > _KEPT_BYTES:
                self._bytes -= self._masks.popitem(last=False)[1][1]


_kept: WeakKeyDictionary[Any, KeptMasks[AllowedRows]] = WeakKeyDictionary()


def rows_matching(wanted: Filter, index: SearchableIndex) -> AllowedRows:
    """Rows whose payload in the generation matches. Others get the same object."""
    kept = _kept.setdefault(index, KeptMasks())
    rows = kept.find(wanted.key)
    if rows is None:
        rows = AllowedRows(filters.mask_of(wanted, _RowTarget(index)))
        kept.keep(wanted.key, rows, rows.mask.nbytes)
    return rows
