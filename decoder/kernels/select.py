"""Of many scored rows the best: thresholds from a sample, heaps, and the order in which answers stand.

nth_smallest, threshold    a bound that about so many values do not exceed
passing_rows, divide       the rows within a bound, and the next best
keep_best, best_first      the best few, in order; ties by row
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.scan import sift_down

SAMPLE = 2048


@njit(cache=True, nogil=True)
def nth_smallest(values: Any, count: Any, n: Any) -> Any:
    """The n-th smallest (from 0) of values[:count], whose order changes (Hoare's selection)."""
    low = 0
    high = count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i = low
        j = high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if n <= j:
            high = j
        elif n >= i:
            low = i
        else:
            break
    return values[n]


@njit(cache=True, nogil=True)
def threshold(values: Any, count: Any, wanted: Any, sample: Any) -> Any:
    """A bound that about `wanted` of values[:count] do not exceed, from at most SAMPLE of them. sample: float32, scratch."""
    if wanted >= count:
        return np.float32(np.inf)
    taken = min(count, SAMPLE)
    ratio = (np.int64(count) << 32) // taken
    for j in range(taken):
        sample[j] = values[(j * ratio) >> 32]
    return nth_smallest(sample, taken, min(taken - 1, wanted * taken // count))


@njit(cache=True, nogil=True)
def passing_rows(values: Any, first: Any, bound: Any, rows: Any, m: Any) -> Any:
    """Append first + j to rows[:m] for each value within the bound; returns the new m."""
    for j in range(values.shape[0]):
        rows[m] = first + j
        m += np.int64(values[j] <= bound)
    return m


@njit(cache=True, nogil=True)
def divide(
    values: Any, rows: Any, m: Any, passing: Any, least: Any, sample: Any, distances: Any, ordered: Any, band: Any
) -> Any:
    """ordered[:p]: about `passing` of rows[:m] with the smallest values; ordered[p:m]: the others, band[:m - p] their values.

    Returns p, at least `least` <= m. values: of all rows; distances float32, ordered int32 (>= m + 1,), band float32 (>= m,):
    the first is scratch.
    """
    for j in range(m):
        distances[j] = values[rows[j]]
    bound = threshold(distances, m, passing, sample)
    p = 0
    for j in range(m):
        ordered[p] = rows[j]
        p += np.int64(distances[j] <= bound)
    if p < least:
        band[:m] = distances[:m]
        bound = nth_smallest(band, m, least - 1)
        p = 0
        for j in range(m):
            ordered[p] = rows[j]
            p += np.int64(distances[j] <= bound)
    b = np.int64(0)
    for j in range(m):
        if distances[j] > bound:
            ordered[p + b] = rows[j]
            band[b] = distances[j]
            b += 1
    return p


@njit(cache=True, nogil=True)
def keep_best(distances: Any, m: Any, rows: Any, keep: Any, who: Any, far: Any) -> Any:
    """The `keep` nearest of rows[:m] into who and far, nearest first; returns how many."""
    kept = min(keep, m)
    for j in range(kept):
        who[j] = rows[j]
        far[j] = distances[j]
    for place in range(kept // 2 - 1, -1, -1):
        sift_down(far, who, place, kept)
    for j in range(kept, m):
        if distances[j] < far[0]:
            far[0] = distances[j]
            who[0] = rows[j]
            sift_down(far, who, 0, kept)
    for last in range(kept - 1, 0, -1):
        far[0], far[last] = far[last], far[0]
        who[0], who[last] = who[last], who[0]
        sift_down(far, who, 0, last)
    return kept


@njit(cache=True, nogil=True)
def best_first(who: Any, logits: Any, count: Any, far: Any) -> None:
    """Sort who[:count] and logits[:count]: larger logits first, of equals lower ids. far: float32 (>= count,), scratch."""
    for j in range(count):
        far[j] = -logits[j]
    for at in range(count // 2 - 1, -1, -1):
        sift_down(far, who, at, count)
    for last in range(count - 1, 0, -1):
        far[0], far[last] = far[last], far[0]
        who[0], who[last] = who[last], who[0]
        sift_down(far, who, 0, last)
    for j in range(count):
        logits[j] = -far[j]
