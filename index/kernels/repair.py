"""A graph whose rows go: the links to them are replaced by links that they had."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from index.kernels.insert import between, select_diverse


@njit(cache=True, nogil=True)
def repair_links(
    rows: Any, scalars: Any, links: Any, places: Any, alpha: Any, first: Any, last: Any, repaired: Any
) -> Any:
    """repaired[places[t]] = the links of t as they are after rows went, for first <= t < last; returns how many lost one.

    A row that lost links keeps the diverse ones (as in `link_rows`) of the links left and of the first half of the links of
    rows that it lost: those that they chose themselves.
    links: int32 (n, degree), -1 ends a row, in the old numbering; places: int32 (n,), each row's new number, -1 where it
    goes; rows: int8 (n', width), scalars: float32 (n', 3), by new number; repaired: int32 (n', degree).
    """
    degree = links.shape[1]
    seen = np.full(rows.shape[0], -1, np.int32)
    near = np.empty(degree * (degree + 1), np.int32)
    far = np.empty(near.shape[0], np.float32)
    chosen = np.empty(degree, np.int32)
    lost_some = 0
    for t in range(first, last):
        own = places[t]
        if own < 0:
            continue
        seen[own] = own
        count = 0
        lost = False
        for e in range(degree):
            i = links[t, e]
            if i < 0:
                break
            if places[i] < 0:
                lost = True
            elif seen[places[i]] != own:
                seen[places[i]] = own
                near[count] = places[i]
                count += 1
        if lost:
            lost_some += 1
            for e in range(degree):
                i = links[t, e]
                if i < 0:
                    break
                if places[i] >= 0:
                    continue
                for f in range((degree + 1) // 2):
                    j = links[i, f]
                    if j < 0:
                        break
                    if places[j] >= 0 and seen[places[j]] != own:
                        seen[places[j]] = own
                        near[count] = places[j]
                        count += 1
            for e in range(count):
                far[e] = between(rows, scalars, near[e], own) - scalars[own, 0]
            order = np.argsort(far[:count], kind="mergesort")
            count = select_diverse(rows, scalars, own, near[order], far[order], count, degree, alpha, chosen)
            near[:count] = chosen[:count]
        for e in range(degree):
            repaired[own, e] = near[e] if e < count else -1
    return lost_some
