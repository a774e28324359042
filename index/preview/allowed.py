"""Which nodes a search may find: those of which a row is allowed.

AllowedNodes   the mask, how many, and the list of them
Made by index/allowed.py from rows; shared by queries and threads, so what is made late is made once.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Once:
    """Values that are made when they are first asked for, once, whatever the threads."""

    def __init__(self) -> None:
        self._lock = RLock()  # what is made may need what is made
        self._made: dict[object, object] = {}

    def get(self, key: object, make: Callable[[], T]) -> T:
        """The value of `key`; make() makes it."""
        try:
            return self._made[key]  # type: ignore[return-value]
        except KeyError:
            with self._lock:
                if key not in self._made:
                    self._made[key] = make()
                return self._made[key]  # type: ignore[return-value]


class AllowedNodes:
    """mask bool (nodes,); count: how many are True."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.mask = mask
        self.count = int(np.count_nonzero(mask))
        self._once = Once()

    @property
    def share(self) -> float:
        """Of all nodes, those that match: the selectivity."""
        return self.count / max(1, len(self.mask))

    @property
    def listed(self) -> NDArray[np.int32]:
        """The nodes, int32 (count,), ascending."""
        return self._once.get("listed", lambda: np.flatnonzero(self.mask).astype(np.int32))

    def list_starts(self, offsets: NDArray[np.int32]) -> NDArray[np.int64]:
        """Of an ivf, where each list's nodes begin in `listed`, int64 (lists + 1,). offsets: of the one ivf there is."""
        return self._once.get("starts", lambda: np.searchsorted(self.listed, offsets).astype(np.int64))
