"""Building the links: batches of rows are linked into the graph as it stood before the batch.

Rows come in a random order fixed by the seed; batches double until they are 2 % of all rows. Within a batch each row
walks the frozen graph, so threads share the batch and the links are the same for any number of them. Then each target's
reverse links are added, grouped by target, each target by one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.kernels import insert
from index.kernels.reach import connect_rows

LATE_SHARE = 0.005
"""Under dot a long row that comes late is often not linked to (see _insertion_order). That many rows may come late; for
more the graph is built again."""

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all) several times a second; may raise to stop."""

PIECE = 2048
"""Rows a thread links between two looks at progress and cancel; the graph stays frozen for the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """What shapes the links."""

    degree: int = 32
    """Most links of a row: 4 bytes each."""
    beam: int = 200
    """Rows kept by the walks that look for neighbours. Larger is slower to build and better to walk."""
    alpha: float = 1.0
    """A found row is left out where alpha * its distance to a kept row is below its own distance; above 1 keeps more."""
    seed: int = 0
    """Order in which rows are inserted."""


@dataclass(frozen=True, slots=True)
class GraphRows:
    """Rows as building sees them: codes int8 (n, width); scalars float32 (n, 3), see kernels/insert.py."""

    codes: NDArray[np.int8]
    scalars: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.codes)


def build_graph(
    rows: GraphRows,
    *,
    options: GraphOptions,
    threads: int,
    among: NDArray[np.int32] | None = None,
    on_progress: Progress | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Links over `among` (all rows if None): int32 (n, degree), -1 after a row's last; and entry rows int32 (<= 64,)."""
    chosen = np.arange(len(rows), dtype=np.int32) if among is None else among
    order = _insertion_order(rows, np.random.default_rng(options.seed).permutation(chosen).astype(np.int32))
    links = np.full((len(rows), options.degree), -1, np.int32)
    entries = order[: min(64, len(order))].copy()
    if len(order) > 1:
        _insert(rows, links, order, 1, entries, options, threads, on_progress)
    connect_rows(links, entries, order)
    return links, entries


def _insertion_order(rows: GraphRows, order: NDArray[np.int32]) -> NDArray[np.int32]:
    """The order as it is; where rows have an extra coordinate (dot), the longest rows first.

    The rows that win under dot are the long ones, and they are far from each other: inserted among many short rows they
    are linked with those only, and each diversity rule drops the links to them. First among themselves they keep theirs
    (8,000 rows with lengths from 0.01 to 100, beam 256: recall@10 1.00 in place of 0.51).
    """
    extra = rows.scalars[order, 2]
    return order[np.argsort(extra, kind="stable")] if extra.any() else order


def insert_rows(
    rows: GraphRows,
    links: NDArray[np.int32],
    entries: NDArray[np.int32],
    new: NDArray[np.int32],
    *,
    options: GraphOptions,
    threads: int,
    on_progress: Progress | None = None,
) -> None:
    """Link the rows `new`, which have no links yet, into a graph; links and entries change in place."""
    if rows.scalars[new, 2].any() and len(new) > LATE_SHARE * len(rows):
        among = np.union1d(np.flatnonzero(links[:, 0] >= 0), new).astype(np.int32)
        links[:], first = build_graph(rows, options=options, threads=threads, among=among, on_progress=on_progress)
        entries[:] = first[: len(entries)]
        return
    there = int(np.count_nonzero(links[:, 0] >= 0)) or 1
    order = np.concatenate([np.empty(there, np.int32), new.astype(np.int32)])
    _insert(rows, links, order, there, entries, options, threads, on_progress)
    connect_rows(links, entries, np.flatnonzero(links[:, 0] >= 0).astype(np.int32))


def _insert(
    rows: GraphRows,
    links: NDArray[np.int32],
    order: NDArray[np.int32],
    done: int,
    entries: NDArray[np.int32],
    options: GraphOptions,
    threads: int,
    on_progress: Progress | None,
) -> None:
    total = len(order)
    most = max(1, options.degree // 2)
    visited = np.zeros((threads, len(rows)), np.uint8)
    marks = [0] * threads
    with ThreadPoolExecutor(threads) as pool:
        while done < total:
            size = max(1, min(done, total // 50, total - done))
            batch = np.sort(order[done : done + size])
            beam = min(options.beam, max(8, done))

            def link(t: int, piece: NDArray[np.int32], beam: int = beam, there: int = done) -> None:
                # Rows are dealt out in turn: they differ in cost, and the slowest thread decides when a piece ends.
                marks[t] = insert.link_rows(
                    rows.codes,
                    rows.scalars,
                    links,
                    piece[t::threads],
                    entries[: min(len(entries), there)],
                    beam,
                    most,
                    np.float32(options.alpha),
                    visited[t],
                    marks[t],
                )

            for start in range(0, size, PIECE * threads):
                piece = batch[start : start + PIECE * threads]
                list(pool.map(link, range(threads), [piece] * threads))
                if on_progress is not None:
                    on_progress(done + min(start + len(piece), size - 1), total)
            _add_reverse(rows, links, batch, options, threads, pool)
            done += size
            if on_progress is not None:
                on_progress(done, total)


def _add_reverse(
    rows: GraphRows,
    links: NDArray[np.int32],
    batch: NDArray[np.int32],
    options: GraphOptions,
    threads: int,
    pool: ThreadPoolExecutor,
) -> None:
    """Add the reverse of the batch's links, grouped by target: no two threads touch one row."""
    sources = np.empty(len(batch) * links.shape[1], np.int32)
    targets = np.empty_like(sources)
    pairs = insert.reverse_pairs(links, batch, sources, targets)
    order = np.argsort(targets[:pairs], kind="stable")
    sources, targets = sources[:pairs][order], targets[:pairs][order]
    unique, starts = np.unique(targets, return_index=True)
    starts = np.append(starts, pairs)
    cuts = [len(unique) * t // (4 * threads) for t in range(4 * threads + 1)]

    def add(part: int) -> None:
        insert.add_reverse(
            rows.codes,
            rows.scalars,
            links,
            sources,
            starts,
            unique,
            np.float32(options.alpha),
            cuts[part],
            cuts[part + 1],
        )

    list(pool.map(add, range(4 * threads)))
