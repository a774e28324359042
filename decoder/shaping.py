"""Links shaped by what calibration states answer: tokens that answer one state together become neighbours.

shape_links    links of a graph over the rows -> links of which a share leads to frequent co-answers
weak_rows      rows that few others link to
link_to_weak   such rows get links from the rows that win where they nearly win

A token that few rows link to is missed when it is the answer: of the best tokens that a walk over 262,144 rows misses, half
have fewer than ten links to them, where the median winner has 292. The rows that know a weak row best are found by
asking for the state that it points at: its own coordinates, as long as states are.
Invariant: -1 ends a row's links; no row links to itself or twice to another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoder.kernels import shaping as kernel

LEAD = 8
"""Leading answers of a state that are linked with all of its answers."""

Links = NDArray[np.int32]


def shape_links(links: Links, answers: NDArray[np.int32], *, degree: int, share: int, room: int = 0) -> Links:
    """Up to `share` links to a row's most frequent co-answers, then its own, up to `degree`; int32 (n, degree + room).

    links: int32 (n, any); answers: int32 (states, k), best first. room: places left free after them.
    """
    n, k = len(links), answers.shape[1]
    lead = min(LEAD, k)
    some = np.repeat(answers[:, :lead], k, axis=1).ravel().astype(np.int64)
    others = np.tile(answers, (1, lead)).ravel().astype(np.int64)
    apart = some != others
    some, others = some[apart], others[apart]
    pairs, counts = np.unique(np.concatenate([some * n + others, others * n + some]), return_counts=True)
    sources, targets = pairs // n, pairs % n
    order = np.lexsort((targets, -counts, sources))
    starts = np.searchsorted(sources[order], np.arange(n + 1))
    out = np.full((n, degree + room), -1, np.int32)
    kernel.merge_links(links, targets[order].astype(np.int32), starts, share, degree, out)
    return out


def in_degrees(links: Links) -> NDArray[np.int64]:
    """How many rows link to each row, int64 (n,)."""
    return np.bincount(links[links >= 0], minlength=len(links))


def weak_rows(links: Links, *, below: int) -> NDArray[np.int32]:
    """Rows with fewer than `below` links to them, ascending."""
    return np.flatnonzero(in_degrees(links) < below).astype(np.int32)


def link_to_weak(links: Links, weak: NDArray[np.int32], hosts: NDArray[np.int32], *, enough: int) -> int:
    """Add links to weak[i] from the first of hosts[i] that have a free place, until `enough` lead there; how many were added.

    links changes in place; hosts: int32 (len(weak), h), -1 for none, the best first.
    """
    return int(kernel.add_links(links, weak, in_degrees(links)[weak], hosts, enough))
