"""Of many scored rows the best: thresholds from a sample, heaps, and the order in which answers stand.

nth_smallest             a bound that so many values do not exceed
threshold                about that, from a sample
passing_rows             the rows within a bound
keep_best, best_first    the best few, in order; ties by row
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.scan import sift_down

SAMPLE = 2048
FEW = 16
"""A share of one in so many is found by a heap: nearly all values are passed over by one comparison, which is foreseen."""
STEP = 64


@njit(cache=True, nogil=True)
def _sink(values: Any, place: Any, count: Any) -> None:
    """Restore the heap values[:count], largest first, where values[place] may be too small."""
    value = values[place]
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and values[child + 1] > values[child]:
            child += 1
        if values[child] <= value:
            break
        values[place] = values[child]
        place = child
    values[place] = value


@njit(cache=True, nogil=True)
def _nth_of_few(values: Any, count: Any, n: Any) -> Any:
    kept = n + 1
    for place in range(kept // 2 - 1, -1, -1):
        _sink(values, place, kept)
    for j in range(kept, count):
        if values[j] < values[0]:
            values[j], values[0] = values[0], values[j]
            _sink(values, 0, kept)
    return values[0]


@njit(cache=True, nogil=True)
def nth_smallest(values: Any, count: Any, n: Any) -> Any:
    """The n-th smallest (from 0) of values[:count], whose order changes: by a heap of the smallest, or Hoare's selection."""
    if n < count // FEW:
        return _nth_of_few(values, count, n)
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
def threshold(values: Any, wanted: Any, sample: Any) -> Any:
    """A bound that about `wanted` of the values do not exceed, from at most SAMPLE of them. sample: float32, scratch."""
    count = values.shape[0]
    if wanted >= count:
        return np.float32(np.inf)
    taken = min(count, SAMPLE)
    ratio = (np.int64(count) << 32) // taken
    for j in range(taken):
        sample[j] = values[(j * ratio) >> 32]
    return nth_smallest(sample, taken, min(taken - 1, wanted * taken // count))


@njit(cache=True, nogil=True)
def passing_rows(values: Any, bound: Any, rows: Any) -> Any:
    """rows[:m]: the places of values within the bound, ascending; returns m. rows: int32 (>= values + 1,)."""
    m = 0
    j = 0
    while j + STEP <= values.shape[0]:
        # Most steps hold none: that is one comparison of a vector, and a sum of integers, which vectorises.
        within = np.int32(0)
        for e in range(STEP):
            within += np.int32(values[j + e] <= bound)
        if within > 0:
            for e in range(STEP):
                rows[m] = j + e
                m += np.int64(values[j + e] <= bound)
        j += STEP
    while j < values.shape[0]:
        rows[m] = j
        m += np.int64(values[j] <= bound)
        j += 1
    return m


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
