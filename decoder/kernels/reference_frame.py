"""Slow twins of frame.py and shaping.py: the same names and signatures, written to be read."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.kernels.dots import FLOAT16


def project(projection: Any, kind: Any, moved: Any, out: Any) -> None:
    """out[i] = projection[i] . moved, in float64."""
    rows = projection.view(np.float16 if kind == FLOAT16 else np.float32).astype(np.float64)
    out[: len(rows)] = rows @ moved.astype(np.float64)


def quantise(values: Any, out: Any) -> Any:
    """Levels of at most 127, by the largest value; returns (scale, sum of levels)."""
    scale = max(np.abs(values).max(initial=0.0), np.float32(1e-30)) / np.float32(127.0)
    # Times the inverse, as the kernel has it: where a value lies between two levels, a division may round it elsewhere.
    out[:] = np.rint(values * (np.float32(1.0) / scale))
    return scale, np.float32(out.sum(dtype=np.int64))


def is_finite(values: Any) -> Any:
    """Whether no value is infinite or NaN."""
    return bool(np.isfinite(values).all())


def into_frame(state: Any, mean: Any, projection: Any, kind: Any, moved: Any, query: Any, levels: Any) -> Any:
    """Coordinates and offset of a state, and the coordinates as levels."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved[:] = state - mean
        project(projection, kind, moved, query)
    width = len(levels)
    if not is_finite(query[: width + 1]):
        return np.float32(0.0), np.float32(0.0), False
    return *quantise(query[:width], levels), True


def nearest_centroid(centroids: Any, halves: Any, query: Any, scores: Any) -> Any:
    """The first of the centroids with the largest c . q - |c|^2 / 2."""
    scores[:] = centroids.astype(np.float64) @ query[: centroids.shape[1]].astype(np.float64) - halves
    return int(np.argmax(scores))


def merge_links(links: Any, targets: Any, starts: Any, share: Any, degree: Any, out: Any) -> None:
    """Each row's first targets, then its own links, each once."""
    for i, own in enumerate(links):
        mine = targets[starts[i] : starts[i + 1]][:share].tolist()
        mine += [target for target in _until_none(own) if target not in mine]
        out[i, : len(mine[:degree])] = mine[:degree]


def add_links(links: Any, rows: Any, degrees: Any, hosts: Any, enough: Any) -> Any:
    """Links to rows[a] from hosts that have room, the first ones first; how many were added."""
    added = 0
    for row, degree, candidates in zip(rows, degrees, hosts):
        for host in candidates:
            own = _until_none(links[host]) if host >= 0 else []
            if degree >= enough or host < 0 or host == row or len(own) == links.shape[1] or row in own:
                continue
            links[host, len(own)] = row
            degree += 1
            added += 1
    return added


def _until_none(row: Any) -> list[int]:
    mine: list[int] = row.tolist()
    return mine[: mine.index(-1)] if -1 in mine else mine
