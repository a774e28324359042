"""A collection as requests see it: what serves it now, and one moment of it, held open.

Collection      record, generation, what was written; in the hands of the engine
Lease           one generation and one moment of the delta, until it is given back
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from service.catalogue import CollectionRecord
from service.generation import Generation, SearchableIndex
from service.points.delta import DeltaView
from service.points.view import PointsView
from service.points.written import WrittenPoints

DISTANCE_OF_METRIC = {"cosine": "Cosine", "dot": "Dot", "l2": "Euclid"}
METRIC_OF_DISTANCE = {distance: metric for metric, distance in DISTANCE_OF_METRIC.items()}


@dataclass(slots=True)
class Collection:
    """One collection as requests see it. Changed only under the engine's lock."""

    record: CollectionRecord
    written: WrittenPoints
    generation: Generation | None = None
    loading: bool = False
    damage: str | None = None
    """Why it cannot be served, or what a read found; None: all is well."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A collection at one moment, held open until the lease is given back."""

    record: CollectionRecord
    generation: Generation | None
    delta: DeltaView

    @property
    def index(self) -> SearchableIndex | None:
        """The open index; None where nothing was built yet."""
        return self.generation.index if self.generation is not None else None

    @property
    def view(self) -> PointsView:
        """Its points."""
        metric = METRIC_OF_DISTANCE[self.record.distance]
        return PointsView(self.index, self.delta, dim=self.record.size, metric=metric)

    def release(self) -> None:
        """Give it back."""
        if self.generation is not None:
            self.generation.release()


class CountedRelease:
    """Gives a lease back when the last of several works has let go of it. Threads: any."""

    def __init__(self, lease: Lease, count: int) -> None:
        self._lease, self._left = lease, count
        self._lock = threading.Lock()

    def release(self) -> None:
        """One work less."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._lease.release()
