"""Rearranging the rows of an array in place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def permute_rows(rows: Any, order: Any) -> None:
    """rows[i] = old rows[order[i]]. rows: (n, width), C order; order: int32 (n,), a permutation."""
    n = order.shape[0]
    width = rows.shape[1]
    moved = np.zeros(n, np.bool_)
    saved = np.empty(width, rows.dtype)
    for start in range(n):
        if moved[start]:
            continue
        for t in range(width):
            saved[t] = rows[start, t]
        at = start
        while True:
            moved[at] = True
            come = order[at]
            if come == start:
                break
            for t in range(width):
                rows[at, t] = rows[come, t]
            at = come
        for t in range(width):
            rows[at, t] = saved[t]
