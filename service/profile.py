"""The profile of one query: what its search did, and the operating point that it was done with.

profile_of()   the member `profile` of an answer

Invariant: the operating point is the one that the search used, never only what was asked for.
"""

from __future__ import annotations

from typing import Any

from index.operating_points import FixedDepth, effort_for
from index.options import PreviewKind, SearchOptions
from service.generation import SearchableIndex
from service.points.view import PointsView

COUNTERS = ("rows_scored", "hops", "candidates", "rows_reranked", "pages_read", "bytes_read")

_EFFORT = {PreviewKind.GRAPH.value: "beam", PreviewKind.IVF.value: "probes", PreviewKind.FLAT.value: "kept"}


def profile_of(view: PointsView, work: Any, place: int, *, k: int, options: SearchOptions) -> dict[str, Any]:
    """Counters, microseconds by stage, operating point and io mode of query `place` of a search for k hits."""
    profile: dict[str, Any] = {name: int(getattr(work, name)[place]) for name in COUNTERS}
    profile["microseconds"] = {stage: float(spent[place]) for stage, spent in work.microseconds.items()}
    index = view.index
    if index is None:
        return profile | {"operating_point": _scan(1.0 if options.recall is None else options.recall)}
    k = min(k, index.n)
    stats = index.stats()
    # A search for very many hits scans the file without being asked to; only its stages tell.
    scanned = options.exact or "exact" in work.microseconds
    promised = float(stats["promise"]["recall"])
    asked = promised if options.recall is None else options.recall
    profile["operating_point"] = _scan(asked) if scanned else _point(index, stats["preview"], k, options, asked)
    return profile | {name: stats[name] for name in ("io_mode", "io_reason") if name in stats}


def _scan(asked: float) -> dict[str, Any]:
    perfect = {"recall": 1.0, "low": 1.0, "high": 1.0}
    return {"preview": None, "exact": True, **perfect, "recall_asked": asked, "reached": True}


def _point(index: SearchableIndex, preview: str, k: int, options: SearchOptions, asked: float) -> dict[str, Any]:
    point = index.point(k, options.recall)
    beam_or_probes = options.probes if preview == PreviewKind.IVF.value else options.beam
    effort = effort_for(point, k) if beam_or_probes is None else beam_or_probes
    used: dict[str, Any] = {"preview": preview, "exact": False, _EFFORT[preview]: effort}
    if options.rerank is not None:
        used["depth"] = options.rerank
    elif isinstance(point.rule, FixedDepth):
        used["depth"] = point.rule.depth
    else:
        used["z"] = point.rule.z
    if beam_or_probes is not None or options.rerank is not None:
        # Nobody measured what the request made up itself.
        unknown = dict.fromkeys(("recall", "low", "high", "pages", "measured_k", "recall_asked", "reached"))
        return used | unknown
    measured = {"recall": point.recall, "low": point.low, "high": point.high, "pages": point.pages}
    reached = point.low >= asked
    return used | measured | {"measured_k": point.k, "recall_asked": asked, "reached": reached}
