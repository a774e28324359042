"""What the process of a compaction or an append does: entries of points.db, and rows of a source, to Changes of a generation.

fold_points()   a FoldSpec -> a new generation at spec.out, or None where no point with a vector is left

Points without vectors stay where they are, in points.db. An entry that is written anew while this reads belongs to what
comes after the fold, and is left to the delta: that it is missing here, or that its older row is still there, is hidden
by it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from index.build import build
from index.errors import BadRowsError, DuplicateIdError
from index.ids import canonical_id
from index.options import BuildOptions, Metric
from index.passes import unusable_rows
from index.search import open_index
from index.sources import open_source
from service.jobs.messages import BuildSpec, FoldSpec
from service.points.entries import EntryKind
from service.points.store import PointStore, RowsOf

_LISTED = 100


@dataclass(slots=True)
class _New:
    """Points to be put in, by id; the last one of an id counts."""

    vectors: dict[int | str, np.ndarray] = field(default_factory=dict)
    payloads: dict[int | str, bytes | None] = field(default_factory=dict)

    def put(self, id_: int | str, vector: np.ndarray, payload: bytes | None) -> None:
        self.vectors[id_] = vector
        self.payloads[id_] = payload

    def drop(self, id_: int | str) -> None:
        self.vectors.pop(id_, None)
        self.payloads.pop(id_, None)


def fold_points(spec: FoldSpec, *, on_progress: Callable[[Any], None], cancel: threading.Event) -> Any:
    """Returns the BuildReport, or None. Raises what index.fold.fold raises, CorruptIndexError, BadRowsError."""
    if spec.old is None:
        new, gone, repaid = _read(spec, None)
    else:
        with open_index(spec.old) as old:
            new, gone, repaid = _read(spec, old.ids.rows_of)
    if spec.added is not None:
        gone |= _take_source(spec.added, new, spec.options["metric"])
    keep, new_payloads = np.zeros(0, np.bool_), {}
    if spec.old is not None:
        with open_index(spec.old) as old:
            keep = np.ones(old.n, np.bool_)
            hidden = old.ids.rows_of([*gone, *new.vectors])
            keep[hidden[hidden >= 0]] = False
            rows = old.ids.rows_of(list(repaid))
            new_payloads = {
                int(row): payload for row, payload in zip(rows, repaid.values(), strict=True) if row >= 0 and keep[row]
            }
    if not keep.any() and not new.vectors:
        return None
    vectors = np.stack(list(new.vectors.values())) if new.vectors else np.zeros((0, spec.dim), np.float32)
    options = BuildOptions(**spec.options)
    queries = spec.queries
    if spec.added is not None and spec.added.queries is not None:
        queries = spec.added.queries
    if spec.old is None:
        payloads = [None if raw is None else msgspec.json.decode(raw) for raw in new.payloads.values()]
        return build(
            vectors,
            spec.out,
            options=options,
            ids=list(new.vectors),
            payload=payloads,
            queries=queries,
            on_progress=on_progress,
            cancel=cancel,
        )
    # Imported here: a first build does without.
    from index.fold import Changes, FoldOptions, fold

    changes = Changes(
        keep=keep,
        vectors=vectors,
        ids=list(new.vectors),
        payloads=list(new.payloads.values()),
        new_payloads=new_payloads,
    )
    return fold(
        Path(spec.old),
        Path(spec.out),
        changes,
        options=FoldOptions(threads=options.threads, rebuild=spec.rebuild),
        queries=queries,
        on_progress=on_progress,
        cancel=cancel,
    )


def _read(spec: FoldSpec, rows_of: RowsOf | None) -> tuple[_New, set[int | str], dict[int | str, bytes | None]]:
    """Entries, by what they do to the generation: (points to put in, ids whose rows go, payloads of rows that stay)."""
    new, gone, repaid = _New(), set(), {}
    store = PointStore(Path(spec.store), dim=spec.dim)
    try:
        counting = store.entries(folded=spec.folded, given_up=spec.given_up, upto=spec.sequence, rows_of=rows_of)
        for entry in counting:
            if entry.kind is EntryKind.PAYLOAD:
                repaid[entry.id] = entry.payload
            elif entry.kind is EntryKind.WHOLE and entry.vector is not None:
                new.put(entry.id, entry.vector, entry.payload)
            else:
                gone.add(entry.id)
    finally:
        store.close()
    return new, gone, repaid


def _take_source(spec: BuildSpec, new: _New, metric_name: str) -> set[int | str]:
    """Put a source's rows in, in place of what was written before. Returns their ids."""
    source = open_source(spec.source, vector=spec.vector, ids=spec.id, payload=spec.payload_names)
    bad: list[tuple[str, int, int, str]] = []
    seen: dict[int | str, int] = {}
    skip = spec.options.get("on_bad_rows") == "skip"
    metric = Metric(metric_name)
    for block in source.blocks():
        wrong = unusable_rows(block, metric)
        bad += [(block.file, block.file_start + row, column, reason) for row, column, reason in wrong]
        left_out = {row for row, _, _ in wrong}
        vectors = block.vectors.astype(np.float32)
        for row in range(len(block)):
            if row in left_out:
                continue
            id_ = canonical_id(block.ids[row] if block.ids is not None else block.start + row)
            if id_ in seen:
                raise DuplicateIdError(id=id_, rows=(seen[id_], block.start + row))
            seen[id_] = block.start + row
            payload = block.payload[row] if block.payload is not None else None
            new.drop(id_)
            new.put(id_, vectors[row], msgspec.json.encode(payload) if payload else None)
    if bad and not skip:
        raise BadRowsError(rows=bad[:_LISTED], count=len(bad))
    return set(seen)
