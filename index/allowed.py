"""Which rows a search may find: a filter's matches, rows that are not hidden, or both.

AllowedRows   a mask over the rows of one generation, and what searches derive from it
Made once and shared by many queries and threads. The strategy of a search follows from how many rows are allowed, which
is counted, never guessed: docs/decisions/0011-filtered-search.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import ShapeMismatchError
from index.preview.allowed import AllowedNodes, Once
from index.preview.groups import Groups


class AllowedRows:
    """mask bool (n,), not to be changed afterwards; count: how many rows are allowed.

    Belongs to one generation: what is derived from its groups and pages is kept. Threads: any number.
    """

    def __init__(self, mask: Any) -> None:
        given = np.asarray(mask)
        if given.ndim != 1 or given.dtype != np.bool_:
            raise ShapeMismatchError(f"allowed is {given.dtype} {given.shape}, needed one bool for each row: bool (n,)")
        self.mask: NDArray[np.bool_] = np.ascontiguousarray(given)
        self.count = int(np.count_nonzero(self.mask))
        self._once = Once()

    def __len__(self) -> int:
        return len(self.mask)

    def nodes(self, groups: Groups) -> AllowedNodes:
        """The nodes of which a row is allowed. groups: of the generation."""
        return self._once.get("nodes", lambda: self._nodes(groups))

    def _nodes(self, groups: Groups) -> AllowedNodes:
        if not len(groups.nodes):
            return AllowedNodes(self.mask)
        nodes = len(self.mask) - int(groups.extra[-1])
        return AllowedNodes(np.logical_or.reduceat(self.mask, groups.first_rows(np.arange(nodes))))

    def places(self, page_rows: int) -> NDArray[np.int64]:
        """Places (page numbers, or runs of pages of large vectors) with an allowed row, int64, ascending."""
        return self._once.get("places", lambda: np.unique(np.flatnonzero(self.mask) // page_rows))
