"""Buffers of one thread: they grow to what is asked and survive between calls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MARKS = 1 << 32
"""A visited row's slot has 32 bits for the walk's mark: when they are used up the table is begun anew."""


class Scratch:
    """What walks and screens write on their way. One thread at a time."""

    def __init__(self) -> None:
        self.mark = 0
        self.visited: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.rows: NDArray[np.int32] = np.empty(0, np.int32)
        self.values: Floats = np.empty(0, np.float32)
        self.distances: Floats = np.empty(0, np.float32)
        self.masses: Floats = np.empty(0, np.float32)

    def for_walk(self, slots: int, states: int) -> NDArray[np.uint64]:
        """A table of visited rows of `slots`, a power of two, for so many states, and room for as many scored rows."""
        if len(self.visited) < slots or self.mark + states >= MARKS:
            self.visited, self.mark = np.zeros(max(slots, len(self.visited)), np.uint64), 0
        self._reserve(slots)
        # Exactly so many slots, whatever was asked for before: a walk ends when its table is full.
        return self.visited[:slots]

    def for_screen(self, rows: int) -> None:
        """Room for all rows."""
        if len(self.values) != rows:
            self.values = np.empty(rows, np.float32)
        # A row is written before it is known whether it stays.
        self._reserve(rows + 1)

    @property
    def resident_bytes(self) -> int:
        """Memory of all buffers."""
        buffers = (self.visited, self.rows, self.values, self.distances, self.masses)
        return sum(buffer.nbytes for buffer in buffers)

    def _reserve(self, rows: int) -> None:
        if len(self.rows) < rows:
            self.rows = np.empty(rows, np.int32)
            self.distances = np.empty(rows, np.float32)
            self.masses = np.empty(rows, np.float32)
