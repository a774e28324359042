"""Equal vectors: one node, several rows. Only groups of two rows or more take memory.

Rows of a node lie one after the other on disk, ascending by id; node i's first row is i plus the surplus before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Groups:
    """nodes int32 (g,): ascending nodes with several rows; extra int64 (g,): rows minus nodes up to and with each."""

    nodes: NDArray[np.int32]
    extra: NDArray[np.int64]

    @classmethod
    def of_sizes(cls, sizes: NDArray[np.int64]) -> Groups:
        """Groups of nodes with these numbers of rows, int64 (nodes,)."""
        several = np.flatnonzero(sizes > 1)
        return cls(several.astype(np.int32), np.cumsum(sizes[several] - 1).astype(np.int64))

    @property
    def resident_bytes(self) -> int:
        """Memory held."""
        return int(self.nodes.nbytes + self.extra.nbytes)

    def first_rows(self, nodes: NDArray[np.integer]) -> NDArray[np.int64]:
        """Row of each node's first copy."""
        before = np.searchsorted(self.nodes, nodes, side="left")
        surplus = np.concatenate([np.zeros(1, np.int64), self.extra])
        rows: NDArray[np.int64] = np.asarray(nodes, np.int64) + surplus[before]
        return rows
