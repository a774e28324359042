"""The graph preview among allowed nodes: a scan of their codes, or a walk through all nodes with a wider beam.

The cheaper of the two by counts is taken: a scan costs a code for each allowed node, a walk grows as the allowed get
fewer. A walk that met too few allowed nodes (those near the query are others) is widened, then given up for the scan.
Figures: docs/decisions/0011-filtered-search.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from index.codes import PreparedQueries
from index.kernels.allowed import keep_allowed
from index.preview.allowed import AllowedNodes
from index.preview.allowed_scan import AllowedFound, horizons_of
from index.preview.base import Candidates, Scratch

if TYPE_CHECKING:
    from index.preview.graph import GraphPreview

WALKED_PER_LINK = 0.45
"""Codes that a hop scores, for each link of the node."""
WALK_COST = 4.0
"""A code scored by a walk costs as much as so many scored by a scan (75 ns and 17 to 24 ns)."""
WIDENING = 0.75
"""The beam is effort / share ** WIDENING: with 1 the recall rises as the share falls (0.976 to 0.998)."""
SPARE = 1.25
"""The beam holds so many times the allowed nodes that are needed: a share of one beam is not that of all nodes."""
AS_EXPECTED = 1.3
DEEPEST = 0.35
"""A walk is widened where it met the wanted nodes later than AS_EXPECTED times where their share puts them and deeper than
this in the beam: what lies deep in a beam is found less surely (24,000 rows, all but the 100 nearest allowed: 0.92)."""
LEAST_KEPT = 300
"""A scan keeps at least so many, so that the stop rule, not the heap, decides how many are read."""


def allowed_candidates(
    preview: GraphPreview, queries: PreparedQueries, *, effort: int, width: int, allowed: AllowedNodes, scratch: Scratch
) -> Candidates:
    """As GraphPreview.candidates, of allowed nodes only."""
    keep = min(max(effort, 4 * width, LEAST_KEPT), allowed.count)
    found = AllowedFound(len(queries), keep)
    left = np.arange(len(queries))
    share = allowed.share
    beam = max(effort, int(np.ceil(effort / share**WIDENING)), int(np.ceil(SPARE * width / share)))
    wanted = min(width, allowed.count)
    reached = np.empty(len(queries), np.int64)
    while len(left) and walk_pays(beam, preview.links.shape[1], allowed):
        some = preview.candidates(queries.only(left), effort=beam, width=width, scratch=scratch)
        some = some._replace(horizons=horizons_of(some, complete=beam >= preview.nodes))
        keep_allowed(some.nodes, some.distances, some.counts, allowed.mask, keep, wanted, reached)
        deepest = max(AS_EXPECTED * wanted / share, DEEPEST * beam)
        good = (reached[: len(left)] > 0) & (reached[: len(left)] <= deepest)
        found.put(left, some, good)
        left, beam = left[~good], 2 * beam
    if len(left):
        some = preview.allowed_scan(queries.only(left), keep=keep, allowed=allowed)
        found.put(left, some, np.ones(len(left), np.bool_))
    return found.candidates()


def walk_pays(beam: int, degree: int, allowed: AllowedNodes) -> bool:
    """Whether a walk with this beam costs less than a scan of the allowed nodes."""
    return beam * degree * WALKED_PER_LINK * WALK_COST < allowed.count
