"""The compressed rows in memory: 8 bits a coordinate, and the leading coordinates once more, side by side, for the screen.

Preview    codes, scalars; lead_codes, lead_scalars
encode     coordinates and biases of rows -> codes and scalars

An estimate of a row's raw logit, less what is the same for all rows, is bias + scale * <code - 127.5, q>. Scalars hold
(-2 bias, scale), so that the walk of index.kernels.walk, which looks for the smallest |y|^2 - 2 <y, q>, finds the largest; those of the leading
codes lie in two rows, for a scan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIDDLE = 127.5

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Preview:
    """codes uint8 (V, width), scalars float32 (V, 2); lead_codes uint8 (V, lead), lead_scalars float32 (2, V)."""

    codes: Codes
    scalars: Floats
    lead_codes: Codes
    lead_scalars: Floats

    @property
    def width(self) -> int:
        """Coordinates of a code."""
        return int(self.codes.shape[1])

    @property
    def lead(self) -> int:
        """Coordinates of a leading code."""
        return int(self.lead_codes.shape[1])

    @staticmethod
    def empty(vocab_size: int, *, width: int, lead: int) -> Preview:
        """Room for all rows; fill() writes them."""
        return Preview(
            np.empty((vocab_size, width), np.uint8),
            np.empty((vocab_size, 2), np.float32),
            # A scan reads four rows at a time, the last ones too.
            np.zeros((vocab_size + 3, lead), np.uint8)[:vocab_size],
            np.empty((2, vocab_size), np.float32),
        )

    def fill(self, start: int, coordinates: Floats, biases: Floats) -> None:
        """Write rows start.. from coordinates float32 (m, >= width) and biases float32 (m,)."""
        rows = slice(start, start + len(coordinates))
        encode(coordinates[:, : self.width], biases, self.codes[rows], self.scalars[rows])
        encode(coordinates[:, : self.lead], biases, self.lead_codes[rows], self.lead_scalars[:, rows].T)


def encode(coordinates: Floats, biases: Floats, codes: Codes, scalars: Floats) -> None:
    """codes uint8 (m, width) and scalars float32 (m, 2) of coordinates float32 (m, width) with biases float32 (m,)."""
    largest = np.maximum(np.abs(coordinates).max(axis=1), np.float32(1e-20))
    scale = (largest / np.float32(MIDDLE)).astype(np.float32)
    codes[:] = np.clip(np.rint(coordinates / scale[:, None] + np.float32(MIDDLE)), 0, 255).astype(np.uint8)
    scalars[:, 0] = -2.0 * biases
    scalars[:, 1] = scale


def decode(codes: Codes, scalars: Floats) -> Floats:
    """The coordinates that codes stand for, float32 (m, width)."""
    values: Floats = (codes.astype(np.float32) - np.float32(MIDDLE)) * scalars[:, 1:]
    return values
