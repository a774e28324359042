"""What was written to one collection: its entries on the disk and in memory, kept alike.

WrittenPoints   write() is the only way to change either
OpenStores      how many stores are held open at once

Invariant: an entry is on the disk before it is in the delta, and in the delta before write() returns.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from service.catalogue import CollectionRecord
from service.errors import NoRoomError
from service.points.delta import Delta, DeltaView
from service.points.entries import Entry
from service.points.store import STORE_NAME, Place, PointStore, RowsOf

log = logging.getLogger("fullview.points")

_OPEN_STORES_MAX = 8
"""Each holds three descriptors; idle collections must not."""


class OpenStores:
    """The stores that are open, closed again in the order of their last use. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: OrderedDict[int, WrittenPoints] = OrderedDict()

    def used(self, written: WrittenPoints) -> None:
        """Note that a store was used; its owner holds its lock."""
        with self._lock:
            self._used[id(written)] = written
            self._used.move_to_end(id(written))
            for key in list(self._used):
                if len(self._used) <= _OPEN_STORES_MAX:
                    return
                other = self._used[key]
                if other is not written and other.lock.acquire(blocking=False):
                    try:
                        other.store.close()
                    finally:
                        other.lock.release()
                    del self._used[key]

    def forget(self, written: WrittenPoints) -> None:
        """It is not open any more."""
        with self._lock:
            self._used.pop(id(written), None)


class WrittenPoints:
    """Entries of one collection. Threads: `view` by any; everything else under `lock`, which writers hold to the end."""

    def __init__(self, folder: Path, *, dim: int, metric: str, stores: OpenStores) -> None:
        self.lock = threading.RLock()
        self.dim, self.metric = dim, metric
        self.store = PointStore(folder / STORE_NAME, dim=dim)
        self.is_gone = False
        """True once the collection was deleted: who waited for the lock must not write any more."""
        self._stores = stores
        self._delta = self.delta_over(0, None)

    @property
    def view(self) -> DeltaView:
        """The delta after the last write."""
        return self._delta.view

    @property
    def resident_bytes(self) -> int:
        """Memory of the delta."""
        return self._delta.resident_bytes

    def load(self, record: CollectionRecord, *, n: int, rows_of: RowsOf | None) -> None:
        """Read what is on the disk. Raises CorruptIndexError, UnsupportedFormatError."""
        self.store.examine()
        self.store.drop(folded=record.folded, given_up=record.given_up)
        self._delta = self.delta_over(n, rows_of, record=record)
        self._close()

    def write(self, entries: Sequence[Entry]) -> int:
        """Durable and visible afterwards; returns the sequence number. Raises NoRoomError, and nothing is changed."""
        if not entries:
            return self.store.sequence
        sequence = self.store.commit(entries)
        self._stores.used(self)
        self._delta.add(entries)
        return sequence

    def copy_to(self, path: Path) -> bool:
        """A copy of the entries on the disk; False where there are none."""
        there = self.store.copy_to(path)
        if there:
            self._stores.used(self)
        return there

    def delta_over(self, n: int, rows_of: RowsOf | None, *, record: CollectionRecord | None = None) -> Delta:
        """A delta over a generation of n rows, of the entries that count by the record (None: empty).

        Takes the lock for a piece at a time: writes go on meanwhile, and catch_up() adds what they wrote.
        """
        delta = Delta(dim=self.dim, metric=self.metric, n=n, rows_of=rows_of if rows_of is not None else _no_rows)
        if record is not None:
            self.catch_up(delta, record, after=0)
        return delta

    def catch_up(self, delta: Delta, record: CollectionRecord, *, after: int) -> int:
        """Add entries written after a sequence number to a delta that nobody reads yet; returns that of the last one."""
        at: Place | None = (after, b"~")
        while at is not None:
            with self.lock:
                upto = self.store.sequence
                some, at = self.store.some(at, folded=record.folded, given_up=record.given_up, rows_of=delta.rows_of)
                self._stores.used(self)
            delta.add(some)
        return upto

    def rebase(self, delta: Delta) -> None:
        """Go on with another delta; forget() what it does not hold comes next."""
        self._delta = delta

    def forget(self, record: CollectionRecord) -> None:
        """Drop entries that count no more by the record. What a full disk leaves is dropped at the next start."""
        try:
            with self.lock:
                self.store.drop(folded=record.folded, given_up=record.given_up)
        except (sqlite3.Error, OSError, NoRoomError) as error:
            log.warning("%s keeps entries that count no more: %s", self.store.path, error)

    def remove(self) -> None:
        """The collection is gone."""
        self.is_gone = True
        self._close()
        self.store.remove()

    def close(self) -> None:
        """No write may follow."""
        with self.lock:
            self._close()

    def _close(self) -> None:
        self.store.close()
        self._stores.forget(self)


def _no_rows(ids: Sequence[int | str]) -> np.ndarray:
    return np.full(len(ids), -1, np.int64)
