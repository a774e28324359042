"""What previews share when they search among allowed nodes: the scan of their codes, and candidates found in tries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index.codes import PreparedQueries
from index.kernels.allowed import scan_nodes
from index.preview.allowed import AllowedNodes
from index.preview.base import Candidates


def scan_codes(
    codes: NDArray[np.uint8],
    scalars: NDArray[np.float32],
    bits: int,
    queries: PreparedQueries,
    *,
    keep: int,
    allowed: AllowedNodes,
) -> Candidates:
    """The `keep` nearest allowed nodes by these codes; every one of them is scored."""
    m, keep = len(queries), min(keep, allowed.count)
    nodes, distances = np.empty((m, keep), np.int32), np.empty((m, keep), np.float32)
    if keep:
        scan_nodes(codes, scalars, bits, allowed.listed, queries.planes, queries.scales, queries.sums, nodes, distances)
    full = np.full(m, keep, np.int64)
    found = Candidates(nodes, distances, full, np.zeros(m, np.int64), np.full(m, allowed.count, np.int64))
    return found._replace(horizons=horizons_of(found, complete=keep == allowed.count))


def horizons_of(found: Candidates, *, complete: bool) -> NDArray[np.float32]:
    """The distance of the last candidate of each query; complete: there are no others, so infinity."""
    if complete or not found.nodes.shape[1]:
        return np.full(len(found.nodes), np.inf, np.float32)
    last = np.maximum(found.counts - 1, 0)[:, None]
    return np.asarray(np.take_along_axis(found.distances, last, axis=1)[:, 0])


class AllowedFound:
    """Candidates of m queries, put here as tries find them; the work of every try is counted."""

    def __init__(self, m: int, keep: int) -> None:
        self._nodes, self._distances = np.empty((m, keep), np.int32), np.empty((m, keep), np.float32)
        self._counts, self._hops, self._scored = (np.zeros(m, np.int64) for _ in range(3))
        self._horizons = np.full(m, np.inf, np.float32)

    def put(self, queries: NDArray[np.int64], some: Candidates, good: NDArray[np.bool_]) -> None:
        """What a try for `queries` found: its work, and where it is good its candidates."""
        self._hops[queries] += some.hops
        self._scored[queries] += some.scored
        width = min(self._nodes.shape[1], some.nodes.shape[1])
        self._nodes[queries[good], :width] = some.nodes[good, :width]
        self._distances[queries[good], :width] = some.distances[good, :width]
        self._counts[queries[good]] = some.counts[good]
        if some.horizons is not None:
            self._horizons[queries[good]] = some.horizons[good]

    def candidates(self) -> Candidates:
        """What is here."""
        return Candidates(self._nodes, self._distances, self._counts, self._hops, self._scored, self._horizons)
