"""Rows in an order in which near rows lie side by side, for disk pages and for the memory of codes and links."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import numpy as np
from numpy.typing import NDArray

from index.graph.build import GraphRows
from index.kernels.bisect import bisect


def nearby_order(
    rows: GraphRows, *, page_rows: int, seed: int, on_progress: Callable[[int, int], None] | None = None
) -> NDArray[np.int32]:
    """A permutation int32 (n,) of the rows: every `page_rows` consecutive ones, from the first on, are near each other.

    on_progress: called ten times a second with (rows placed, rows in all); may raise to stop.
    """
    order = np.arange(len(rows), dtype=np.int32)
    signal = np.zeros(2, np.int64)
    scales = np.ascontiguousarray(rows.scalars[:, 1])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bisect, rows.codes, scales, order, page_rows, seed, signal)
        while True:
            try:
                running.result(timeout=0.1)
                break
            except NotYet:
                if on_progress is not None:
                    try:
                        on_progress(int(signal[1]), len(rows))
                    except BaseException:
                        signal[0] = 1
                        raise
    if on_progress is not None:
        on_progress(len(rows), len(rows))
    return order
