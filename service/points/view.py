"""A generation and the delta on top of it, as one set of points: what one request reads from start to end.

PointsView   lookups, order, masks of filters, searches

A position is a row of the generation, or n_rows + a slot of the delta. Hidden rows and slots that are not current have no
position: nothing here ever returns one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.allowed import AllowedRows
from index.options import SearchOptions
from service.filters import Filter
from service.generation import SearchableIndex
from service.names import PointId
from service.points.delta import DeltaView
from service.points.entries import EntryKind
from service.points.masks import DeltaTarget, KeptMasks, rows_matching
from service.points.merge import Found, merge, search_slots

_IDS_AT_ONCE = 100_000


def order_of(id_: PointId) -> tuple[bool, PointId]:
    """Sorts ids: integers ascending, then strings by code point."""
    return isinstance(id_, str), id_


@dataclass(frozen=True, slots=True)
class Masks:
    """What a filter lets pass. rows: None: every row; slots int64: of the delta, ascending; n_rows: of the generation."""

    rows: AllowedRows | None
    slots: NDArray[np.int64]
    n_rows: int

    @property
    def rows_count(self) -> int:
        """Rows that pass."""
        return self.n_rows if self.rows is None else self.rows.count

    @property
    def count(self) -> int:
        """Points that pass."""
        return self.rows_count + len(self.slots)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.slots.nbytes + (0 if self.rows is None else self.rows.mask.nbytes)


class PointsView:
    """Points of one collection at one moment. Threads: any. index: None where nothing was built; delta: None: no changes."""

    def __init__(
        self,
        index: SearchableIndex | None,
        delta: DeltaView | None,
        *,
        dim: int,
        metric: str,
    ) -> None:
        self.index, self.dim, self.metric = index, dim, metric
        self.delta = delta if delta is not None and delta.count else None
        self.n_rows: int = index.n if index is not None else 0

    # --- one point ----------------------------------------------------------

    def positions_of(self, ids: Sequence[PointId]) -> NDArray[np.int64]:
        """Int64 (m,): -1 where there is no such point."""
        if self.index is None or not ids:
            positions = np.full(len(ids), -1, np.int64)
        else:
            positions = np.array(self.index.ids.rows_of(ids), np.int64)
        delta = self.delta
        if delta is not None:
            for at, id_ in enumerate(ids):
                slot = delta.slot_of(id_)
                if slot >= 0 and delta.kinds[slot] != EntryKind.PAYLOAD:
                    positions[at] = self.n_rows + slot if delta.kinds[slot] == EntryKind.WHOLE else -1
        return positions

    def payloads_of(self, positions: NDArray[np.int64]) -> list[bytes | None]:
        """The JSON of each; None where there is none, and for -1."""
        found: list[bytes | None] = [None] * len(positions)
        in_rows = np.flatnonzero((positions >= 0) & (positions < self.n_rows))
        if len(in_rows) and self.index is not None and self.index.payload is not None:
            for at, payload in zip(in_rows.tolist(), self.index.payload.get(positions[in_rows]), strict=True):
                found[at] = payload
        delta = self.delta
        if delta is not None:
            for at in np.flatnonzero(positions >= self.n_rows).tolist():
                found[at] = delta.payload(int(positions[at]) - self.n_rows)
            newer = self._repaid_slots(delta)
            if newer:
                for at in in_rows.tolist():
                    slot = newer.get(int(positions[at]))
                    if slot is not None:
                        found[at] = delta.payload(slot)
        return found

    def vectors_of(self, positions: NDArray[np.int64]) -> list[NDArray[Any] | None]:
        """As they were given, (dim,) each; None where a point has none."""
        found: list[NDArray[Any] | None] = [None] * len(positions)
        in_rows = np.flatnonzero((positions >= 0) & (positions < self.n_rows))
        if len(in_rows) and self.index is not None:
            for at, vector in zip(in_rows.tolist(), self.index.vectors(positions[in_rows]), strict=True):
                found[at] = vector
        for at in np.flatnonzero(positions >= self.n_rows).tolist():
            found[at] = self.written_vector(int(positions[at]))
        return found

    def written_vector(self, position: int) -> NDArray[np.float32] | None:
        """The vector of a position in the delta; None for a row, and for a point without."""
        slot = position - self.n_rows
        if slot < 0 or self.delta is None or not self.delta.has_vector[slot]:
            return None
        vector: NDArray[np.float32] = self.delta.vectors[slot].copy()
        return vector

    # --- all points ---------------------------------------------------------

    def count(self, wanted: Filter | None = None) -> int:
        """Points that match."""
        return self.masks(wanted).count

    def masks(self, wanted: Filter | None) -> Masks:
        """What the filter lets pass; kept for the filters that come again in this moment of the collection."""
        delta = self.delta
        if delta is None:
            return Masks(self._rows_matching(wanted), np.zeros(0, np.int64), self.n_rows)
        kept: KeptMasks[Masks] = delta.kept("masks", KeptMasks)
        key = wanted.key if wanted is not None else b""
        found = kept.find(key)
        if found is None:
            found = self._masks(wanted, delta)
            kept.keep(key, found, found.nbytes)
        return found

    def ids_matching(self, wanted: Filter | None) -> list[PointId]:
        """Ids of all points that match, ascending."""
        return [id_ for ids, _ in self.in_order(wanted) for id_ in ids]

    def in_order(
        self, wanted: Filter | None, *, start: PointId | None = None, most: int | None = None
    ) -> Iterator[tuple[list[PointId], NDArray[np.int64]]]:
        """(ids, positions) ascending by id from `start` on, in pieces; `most`: about how many are looked for at first."""
        masks = self.masks(wanted)
        written = self._written_in_order(masks, start)
        at = 0
        for ids, rows in self._rows_in_order(masks, start, most):
            last = order_of(ids[-1]) if ids else None
            upto = at
            while upto < len(written) and last is not None and order_of(written[upto][0]) < last:
                upto += 1
            mixed = sorted(
                [*zip(ids, rows.tolist(), strict=True), *written[at:upto]], key=lambda pair: order_of(pair[0])
            )
            at = upto
            yield [id_ for id_, _ in mixed], np.array([position for _, position in mixed], np.int64)
        rest = written[at:]
        if rest:
            yield [id_ for id_, _ in rest], np.array([position for _, position in rest], np.int64)

    # --- searching ----------------------------------------------------------

    def search(
        self, queries: NDArray[np.float32], k: int, options: SearchOptions, wanted: Filter | None = None
    ) -> Found:
        """The k nearest points with vectors that match, of each query float32 (m, dim)."""
        if self.delta is None and wanted is None and self.index is not None:
            hits = self.index.search(queries, k=k, options=options)
            return Found(hits.ids, hits.scores, hits.counts, hits.rows, hits.work)
        masks = self.masks(wanted)
        hits = None
        if self.index is not None and masks.rows_count:
            hits = self.index.search(queries, k=k, options=options, allowed=masks.rows)
        written = search_slots(self.delta, masks.slots, queries, k=k, metric=self.metric, options=options, dim=self.dim)
        return merge(hits, written, k=k, n_rows=self.n_rows, metric=self.metric)

    # --- inside -------------------------------------------------------------

    def _rows_matching(self, wanted: Filter | None) -> AllowedRows | None:
        """Rows by their payloads in the generation; None: every row."""
        if wanted is None or self.index is None:
            return None
        return rows_matching(wanted, self.index)

    def _masks(self, wanted: Filter | None, delta: DeltaView) -> Masks:
        rows = self._rows_matching(wanted)
        slots = delta.points
        changed: NDArray[np.bool_] | None = None
        if wanted is not None:
            passed = DeltaTarget.mask(wanted, delta)
            slots = slots[passed[slots]]
            if rows is not None and len(delta.repaid):
                changed = rows.mask.copy()
                changed[delta.rows[delta.repaid]] = passed[delta.repaid]
        if delta.hidden is not None:
            before = changed if changed is not None else rows.mask if rows is not None else None
            changed = ~delta.hidden if before is None else before & ~delta.hidden
        return Masks(rows if changed is None else AllowedRows(changed), slots, self.n_rows)

    def _repaid_slots(self, delta: DeltaView) -> dict[int, int]:
        """Row -> slot of rows with another payload."""
        found: dict[int, int] = delta.kept(
            "repaid slots", lambda: dict(zip(delta.rows[delta.repaid].tolist(), delta.repaid.tolist(), strict=True))
        )
        return found

    def _written_in_order(self, masks: Masks, start: PointId | None) -> list[tuple[PointId, int]]:
        delta = self.delta
        if delta is None:
            return []
        written = [(delta.id(slot), self.n_rows + slot) for slot in masks.slots.tolist()]
        if start is not None:
            written = [pair for pair in written if order_of(pair[0]) >= order_of(start)]
        return sorted(written, key=lambda pair: order_of(pair[0]))

    def _rows_in_order(
        self, masks: Masks, start: PointId | None, most: int | None
    ) -> Iterator[tuple[list[PointId], NDArray[np.int64]]]:
        if self.index is None or not masks.rows_count:
            return
        size = _IDS_AT_ONCE if most is None else max(1, min(most, _IDS_AT_ONCE))
        left = masks.rows_count
        skip = 0
        while left:
            found, rows = self.index.ids.in_order(start, size + skip)
            ids = (found.tolist() if isinstance(found, np.ndarray) else list(found))[skip:]
            rows = np.asarray(rows, np.int64)[skip:]
            if not ids:
                return
            full = len(ids) == size
            start, skip = ids[-1], 1
            if masks.rows is not None:
                keep = masks.rows.mask[rows]
                ids = [id_ for id_, good in zip(ids, keep.tolist(), strict=True) if good]
                rows = rows[keep]
            left -= len(ids)
            if ids:
                yield ids, rows
            if not full:
                return
            size = min(2 * size, _IDS_AT_ONCE)
