"""The compressed rows in memory: 8 bits a coordinate, and 4 bits of the leading ones once more, for the screen.

Preview        codes, scalars; lead_codes, lead_scalars
encode         coordinates and biases of rows -> codes and scalars
encode_lead    the same for leading codes

An estimate of a row's raw logit, less what is the same for all rows, is bias + scale * <code - 127.5, q>, of a leading code
bias + scale * <code - 7.5, q>. Scalars hold (-2 bias, scale), so that the walk of index.kernels.walk, which looks for the
smallest |y|^2 - 2 <y, q>, finds the largest; those of the leading codes lie in two rows, for a scan. Leading codes are those
of index.kernels.encode: their scale makes estimates right on average. Byte t holds coordinate t and coordinate lead / 2 + t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from index.codes import RATIOS
from index.kernels.encode import encode_rows
from index.resident import resident_array

MIDDLE = 127.5
SCANNED_AT_ONCE = 4
LEAD_BITS = 4
LEAD_MIDDLE = 7.5
LEAD_STEP = 64
"""Leading coordinates come in steps of so many: a scan reads 32 bytes at a time."""

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Preview:
    """codes uint8 (V, width), scalars float32 (V, 2); lead_codes uint8 (V, lead / 2), lead_scalars float32 (2, V)."""

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
        """Coordinates of a leading code, a multiple of LEAD_STEP; past `width` they are zeros."""
        return 2 * int(self.lead_codes.shape[1])

    @staticmethod
    def of(codes: Codes, scalars: Floats, lead_codes: Codes, lead_scalars: Floats) -> Preview:
        """From arrays. lead_codes are copied where their number is no multiple of four: a scan reads four rows at a time."""
        if len(lead_codes) % SCANNED_AT_ONCE:
            room = _room(lead_codes.shape)
            room[:] = lead_codes
            lead_codes = room
        return Preview(codes, scalars, lead_codes, lead_scalars)

    @staticmethod
    def empty(vocab_size: int, *, width: int, lead: int) -> Preview:
        """Room for all rows; fill() writes them. lead: a multiple of LEAD_STEP."""
        huge = partial(resident_array, huge_pages=True)
        codes: Codes = huge((vocab_size, width), np.dtype(np.uint8)).view(np.uint8)
        return Preview(
            codes,
            np.empty((vocab_size, 2), np.float32),
            _room((vocab_size, lead // 2)),
            np.empty((2, vocab_size), np.float32),
        )

    def fill(self, start: int, coordinates: Floats, biases: Floats) -> None:
        """Write rows start.. from coordinates float32 (m, >= width) and biases float32 (m,)."""
        rows = slice(start, start + len(coordinates))
        encode(coordinates[:, : self.width], biases, self.codes[rows], self.scalars[rows])
        leading = np.zeros((len(coordinates), self.lead), np.float32)
        leading[:, : self.width] = coordinates[:, : min(self.width, self.lead)]
        encode_lead(leading, biases, self.lead_codes[rows], self.lead_scalars[:, rows])


def _room(shape: tuple[int, ...]) -> Codes:
    """uint8 of this shape, followed in memory by enough for a last step of a scan."""
    rows, lead = shape
    return resident_array((rows + SCANNED_AT_ONCE - 1, lead), np.dtype(np.uint8), huge_pages=True).view(np.uint8)[:rows]


def encode(coordinates: Floats, biases: Floats, codes: Codes, scalars: Floats) -> None:
    """codes uint8 (m, width) and scalars float32 (m, 2) of coordinates float32 (m, width) with biases float32 (m,)."""
    largest = np.maximum(np.abs(coordinates).max(axis=1), np.float32(1e-20))
    scale = (largest / np.float32(MIDDLE)).astype(np.float32)
    codes[:] = np.clip(np.rint(coordinates / scale[:, None] + np.float32(MIDDLE)), 0, 255).astype(np.uint8)
    scalars[:, 0] = -2.0 * biases
    scalars[:, 1] = scale


def encode_lead(leading: Floats, biases: Floats, codes: Codes, scalars: Floats) -> None:
    """codes uint8 (m, lead / 2) and scalars float32 (2, m) of leading coordinates float32 (m, lead) with biases (m,)."""
    ratios = np.array(RATIOS[LEAD_BITS], np.float32)
    lengths, scales = np.empty(len(leading), np.float32), np.empty(len(leading), np.float32)
    # Of size 1, for squares of very long rows would overflow.
    largest = np.maximum(np.abs(leading).max(axis=1), np.float32(1e-20))
    encode_rows(leading / largest[:, None], LEAD_BITS, ratios, codes, lengths, scales)
    scalars[0] = -2.0 * biases
    scalars[1] = scales * largest


def decode_lead(codes: Codes, scalars: Floats) -> Floats:
    """The leading coordinates that codes uint8 (m, lead / 2) with scalars (2, m) stand for, float32 (m, lead)."""
    levels = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32)
    values: Floats = (levels - np.float32(LEAD_MIDDLE)) * scalars[1][:, None]
    return values


def decode(codes: Codes, scalars: Floats) -> Floats:
    """The coordinates that codes stand for, float32 (m, width)."""
    values: Floats = (codes.astype(np.float32) - np.float32(MIDDLE)) * scalars[:, 1:]
    return values
