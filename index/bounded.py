"""Rows in memory, searched exactly without reading all of them: bytes bound each score, and few rows are left to score.

BoundedCodes   bytes of rows, and what bounds the error of a score made from them
candidates     slots that may be among the k best, certainly with all that are

A row x is stored as bytes with a scale; what they leave out has a known length e, and |<q, x> - <q, code>| <= |q| e. So a
row whose upper bound is below the k-th best lower bound cannot be a hit: the answer is exact, and a pass reads a quarter of
the memory. Under cosine the rows are scaled to length 1 first; under l2 -|q - x|^2 is bounded by way of 2 <q, x> - |x|^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.kernels import bounds
from index.options import Metric

WIDTH = 64
"""Codes are as wide as a multiple of this."""
_LEVELS = 127


@dataclass(frozen=True, slots=True)
class BoundedCodes:
    """codes uint8 (n, width); scalars float32 (n, 4): see kernels/bounds.py."""

    codes: NDArray[np.uint8]
    scalars: NDArray[np.float32]

    @classmethod
    def of(cls, vectors: NDArray[np.float32], metric: Metric) -> BoundedCodes:
        """Of rows float32 (m, dim)."""
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
        rows = vectors
        if metric is Metric.COSINE:
            rows = (vectors / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32)
            lengths = np.minimum(lengths, 1.0)
            lengths[lengths > 0] = 1.0
        levels, scales, errors = _levels(rows)
        codes = np.full((len(rows), padded_width(rows.shape[1])), bounds.MIDDLE, np.uint8)
        codes[:, : rows.shape[1]] = (levels + bounds.MIDDLE).astype(np.uint8)
        additive = np.square(lengths) if metric is Metric.L2 else np.zeros(len(rows))
        return cls(codes, np.column_stack([scales, errors, additive, lengths]).astype(np.float32))


def padded_width(dim: int) -> int:
    """Bytes of a code."""
    return -(-dim // WIDTH) * WIDTH


def candidates(
    rows: BoundedCodes, slots: NDArray[np.int64], query: NDArray[np.float32], *, k: int, metric: Metric
) -> NDArray[np.int64]:
    """Those of `slots` int64 (p,), ascending as they came, that may be among the k best for a query float32 (dim,)."""
    if len(slots) <= k:
        return slots
    q = query.astype(np.float64)
    if metric is Metric.COSINE:
        q = q / np.sqrt(q @ q)
    levels, scales, errors = _levels(q[None, :].astype(np.float32))
    padded = np.zeros(rows.codes.shape[1], np.int8)
    padded[: len(q)] = levels[0]
    low, high = np.empty(len(slots), np.float32), np.empty(len(slots), np.float32)
    bounds.bound_scores(
        rows.codes,
        rows.scalars,
        slots,
        padded,
        np.float32(scales[0]),
        np.float32(np.sqrt(q @ q) * (1 + 1e-6)),
        np.float32(errors[0] * (1 + 1e-6)),
        np.float32(2.0 if metric is Metric.L2 else 1.0),
        low,
        high,
    )
    limit = np.partition(low, len(low) - k)[len(low) - k]
    near: NDArray[np.int64] = slots[high >= limit]
    return near


def _levels(rows: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float64], NDArray[np.float64]]:
    """(levels -127 to 127, scales, lengths of what they leave out, rounded up) of rows float32 (m, dim)."""
    largest = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)
    scales = np.where(largest > 0, largest / _LEVELS, 1.0).astype(np.float32).astype(np.float64)
    levels = np.clip(np.rint(rows / scales[:, None]), -_LEVELS, _LEVELS)
    rest = rows - levels * scales[:, None]
    errors = np.sqrt(np.einsum("ij,ij->i", rest, rest)) * (1 + 1e-6)
    return levels.astype(np.int16), scales, errors
