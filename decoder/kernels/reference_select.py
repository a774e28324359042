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


def threshold(values: Any, count: Any, wanted: Any, sample: Any) -> Any:
    """The bound that the wanted share of a sample does not exceed."""
    if wanted >= count:
        return np.float32(np.inf)
    some = values[:count][spread(count)]
    return np.sort(some)[min(len(some) - 1, wanted * len(some) // count)]


def passing_rows(values: Any, first: Any, bound: Any, rows: Any, m: Any) -> Any:
    """Append the places of values within the bound."""
    found = first + np.flatnonzero(values <= bound)
    rows[m : m + len(found)] = found
    return m + len(found)


def divide(
    values: Any, rows: Any, m: Any, passing: Any, least: Any, sample: Any, distances: Any, ordered: Any, band: Any
) -> Any:
    """About `passing` of the rows, at least `least`, before the others."""
    mine = values[rows[:m]]
    bound = threshold(mine, m, passing, sample)
    if np.count_nonzero(mine <= bound) < least:
        bound = np.sort(mine)[least - 1]
    near = mine <= bound
    p = int(np.count_nonzero(near))
    ordered[:p], ordered[p:m], band[: m - p] = rows[:m][near], rows[:m][~near], mine[~near]
    return p


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
