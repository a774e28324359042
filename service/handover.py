"""From one generation to the next: the delta on top of the new one, made while writes go on.

Handover   prepared without holding writers up; finish() under their lock adds what was written meanwhile
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from service.catalogue import CollectionRecord
from service.errors import ConflictError
from service.generation import SearchableIndex
from service.points.written import WrittenPoints
from service.served import Collection

_CATCH_UPS = 3
"""So often what was written meanwhile is added before writers have to wait."""


class Handover:
    """before: the collection as it serves; None: a new one. fresh: for entries, where those of `before` cannot go on.

    record: of the new generation; index: its index, None where no point with a vector is left.
    """

    def __init__(
        self,
        before: Collection | None,
        fresh: WrittenPoints,
        record: CollectionRecord,
        index: SearchableIndex | None,
    ) -> None:
        self._before, self._record = before, record
        self._kept = before is not None and _kind(before.record) == _kind(record)
        self.written = before.written if before is not None and self._kept else fresh
        n, rows_of = (index.n, index.ids.rows_of) if index is not None else (0, None)
        self.delta = self.written.delta_over(n, rows_of)
        self._upto = 0
        if self._kept:
            for _ in range(_CATCH_UPS):
                self._upto = self.written.catch_up(self.delta, record, after=self._upto)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of who writes to the collection as it serves."""
        return self._before.written.lock if self._before is not None else contextlib.nullcontext()

    def finish(self, now: Collection | None) -> None:
        """Add what was written since. now: the collection as it serves, under `lock`. Raises ConflictError."""
        before = self._before
        if (now.written if now is not None else None) is not (before.written if before is not None else None):
            raise ConflictError(f"Collection {self._record.name!r} was changed while this job ended. Restart it.")
        if before is not None and not self._kept:
            self._take_over(before)
        self.written.catch_up(self.delta, self._record, after=self._upto)

    def _take_over(self, before: Collection) -> None:
        """The entries that count go on under another dimension or metric. Raises ConflictError where they cannot."""
        store, record = before.written.store, self._record
        if before.record.size != record.size and store.sequence > record.given_up:
            raise ConflictError(
                f"Points of dimension {before.record.size} were written to collection {record.name!r} while it was "
                f"built anew with dimension {record.size}. Nothing was changed; stop the writers and restart the job."
            )
        self.written.store.sequence = store.sequence
        before.written.close()


def _kind(record: CollectionRecord) -> tuple[int, str]:
    return record.size, record.distance
