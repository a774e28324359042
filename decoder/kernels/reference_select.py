"""Slow twins of select.py: the same names and signatures, written to be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.kernels.select import SAMPLE


def nth_smallest(values: Any, count: Any, n: Any) -> Any:
    """The n-th smallest (from 0)."""
    return np.sort(values[:count])[n]


def spread(total: Any) -> Any:
    """At most SAMPLE of range(total), at even distances: what thresholds are estimated from."""
    taken = min(total, SAMPLE)
    return (np.arange(taken) * ((total << 32) // taken)) >> 32


def threshold(values: Any, wanted: Any, sample: Any) -> Any:
    """The bound that the wanted share of a sample does not exceed."""
    if wanted >= len(values):
        return np.float32(np.inf)
    some = np.sort(values[spread(len(values))])
    return some[min(len(some) - 1, wanted * len(some) // len(values))]


def passing_rows(values: Any, bound: Any, rows: Any) -> Any:
    """The places of values within the bound."""
    found = np.flatnonzero(values <= bound)
    rows[: len(found)] = found
    return len(found)


def keep_best(distances: Any, m: Any, rows: Any, keep: Any, who: Any, far: Any) -> Any:
    """The nearest, of equals the row that came first; in order, of equals the lower row first."""
    kept = min(keep, m)
    best = np.argsort(distances[:m], kind="stable")[:kept]
    best = best[np.lexsort((rows[best], distances[best]))]
    who[:kept], far[:kept] = rows[best], distances[best]
    return kept


def best_first(who: Any, logits: Any, count: Any, far: Any) -> None:
    """Larger logits first, of equals lower ids."""
    order = np.lexsort((who[:count], -logits[:count]))
    who[:count], logits[:count] = who[:count][order], logits[:count][order]
