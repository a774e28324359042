"""Rows in an order in which near rows lie side by side, for disk pages and for the memory of codes and links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index.graph.build import GraphRows
from index.kernels.bisect import bisect


def nearby_order(
    rows: GraphRows, *, page_rows: int, seed: int, stop: NDArray[np.uint8] | None = None
) -> NDArray[np.int32]:
    """A permutation int32 (n,) of the rows: every `page_rows` consecutive ones, from the first on, are near each other.

    stop: uint8 (1,), set from another thread to give up (InterruptedError).
    """
    order = np.arange(len(rows), dtype=np.int32)
    flag = np.zeros(1, np.uint8) if stop is None else stop
    if not bisect(rows.codes, np.ascontiguousarray(rows.scalars[:, 1]), order, page_rows, seed, flag):
        raise InterruptedError("ordering rows was stopped")
    return order
