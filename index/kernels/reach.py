"""Every row of a graph can be reached from the entries: links are added where none leads to a row.

The diversity rule drops the last link to a row now and then (one row in 300 of 8,000 whose lengths differ much); no beam,
however wide, finds such a row again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _spread(links: Any, parents: Any, queue: Any, head: Any, count: Any) -> Any:
    """Breadth first from queue[head:count]; parents[i] becomes the row from which i was reached; returns the count."""
    while head < count:
        at = queue[head]
        head += 1
        for e in range(links.shape[1]):
            i = links[at, e]
            if i < 0:
                break
            if parents[i] < 0:
                parents[i] = at
                queue[count] = i
                count += 1
    return count


@njit(cache=True, nogil=True)
def _hang(links: Any, parents: Any, at: Any, row: Any) -> Any:
    """Link `at` to `row`, in a free place or for the last link by which nothing was reached; False where none is so."""
    for e in range(links.shape[1]):
        if links[at, e] < 0:
            links[at, e] = row
            return True
    for e in range(links.shape[1] - 1, -1, -1):
        if parents[links[at, e]] != at:
            links[at, e] = row
            return True
    return False


@njit(cache=True, nogil=True)
def connect_rows(links: Any, entries: Any, members: Any) -> Any:
    """Make every row of `members` reachable from the entries; returns how many links were added.

    links: int32 (n, degree), -1 ends a row, changed in place; entries: int32 (e,), at least one; members: int32 (m,), they
    link only to each other. A row is hung from the nearest row that it links to itself and that is reached already.
    """
    parents = np.full(links.shape[0], -1, np.int32)
    queue = np.empty(links.shape[0], np.int32)
    count = 0
    for i in entries:
        if parents[i] < 0:
            parents[i] = i
            queue[count] = i
            count += 1
    count = _spread(links, parents, queue, 0, count)
    added = 0
    anywhere = False
    host = 0
    while True:
        hung = 0
        left = 0
        for row in members:
            if parents[row] >= 0:
                continue
            found = -1
            for e in range(links.shape[1]):
                at = links[row, e]
                if at < 0:
                    break
                if parents[at] >= 0 and _hang(links, parents, at, row):
                    found = at
                    break
            if found < 0 and anywhere:
                # Who has no place for one row has none for the next: each row is asked once, however many hang here.
                while host < count:
                    if _hang(links, parents, queue[host], row):
                        found = queue[host]
                        break
                    host += 1
            if found < 0:
                left += 1
                continue
            hung += 1
            parents[row] = found
            queue[count] = row
            count = _spread(links, parents, queue, count, count + 1)
        added += hung
        if left == 0 or (hung == 0 and anywhere):
            return added
        # Pieces of the graph that no link leaves are hung from whatever row has a place.
        anywhere = hung == 0
