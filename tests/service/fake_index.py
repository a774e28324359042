"""An index in memory for tests of the service: brute force in numpy, with hooks to make it slow, damaged or blocked.

fake_build() stands in for index.build (a pickle in a folder), FakeIndex for index.OpenIndex, open_fake for the opener.
Only hooks are its reason: what real indexes can show is tested with real ones.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from index.errors import BadQueryError, CorruptIndexError, CorruptReason, IndexClosedError
from index.options import Metric, SearchOptions

VECTORS = [[1, 0, 0], [0, 1, 0], [0.9, 0.1, 0]]
PAYLOAD = [{"n": 1, "a": {"b": 2, "c": 3}}, {"n": 2}, None]
"""Of the collection `three`, with ids 1, 2, 3."""


@dataclass
class FakeWork:
    rows_scored: np.ndarray
    hops: np.ndarray
    candidates: np.ndarray
    rows_reranked: np.ndarray
    pages_read: np.ndarray
    bytes_read: np.ndarray
    microseconds: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class FakeHits:
    ids: np.ndarray
    scores: np.ndarray
    counts: np.ndarray
    rows: np.ndarray
    work: FakeWork


class FakeIds:
    def __init__(self, ids: list[Any]) -> None:
        self._row_of = {id_: row for row, id_ in enumerate(ids)}
        self._sorted = sorted(ids, key=lambda id_: (isinstance(id_, str), id_))
        self.strings = any(isinstance(id_, str) for id_ in ids)

    def rows_of(self, ids: Any) -> np.ndarray:
        return np.array([self._row_of.get(id_, -1) for id_ in ids], dtype=np.int64)

    def in_order(self, start: Any, limit: int) -> tuple[np.ndarray, np.ndarray]:
        key = (lambda id_: (isinstance(id_, str), id_)) if start is not None else None
        chosen = [id_ for id_ in self._sorted if key is None or key(id_) >= key(start)][:limit]
        return np.array(chosen, dtype=object if self.strings else np.uint64), self.rows_of(chosen)


class FakePayload:
    def __init__(self, payloads: list[dict[str, Any] | None]) -> None:
        self._payloads = payloads

    def get(self, rows: np.ndarray) -> list[bytes | None]:
        return [None if self._payloads[row] is None else json.dumps(self._payloads[row]).encode() for row in rows]


class FakeIndex:
    """blocked: an event that every search waits for; opened and closed count."""

    def __init__(self, path: Path) -> None:
        manifest = path / "manifest.json"
        if not manifest.exists():
            raise CorruptIndexError(
                path=manifest, offset_bytes=0, reason=CorruptReason.MISSING, expected="a file", found="nothing"
            )
        content = json.loads(manifest.read_text())
        self.path = path
        self._vectors = np.array(content["vectors"], dtype=content["dtype"])
        self._ids = content["ids"]
        self.metric = Metric(content["metric"])
        self.n, self.dim = self._vectors.shape
        self.ids = FakeIds(self._ids)
        self.payload = FakePayload(content["payload"]) if content["payload"] else None
        self.blocked: threading.Event | None = None
        self.closed = False

    columns = None

    def search(
        self, queries: np.ndarray, k: int = 10, options: SearchOptions | None = None, *, allowed: Any = None
    ) -> FakeHits:
        if self.closed:
            raise IndexClosedError("used after close()")
        if self.blocked is not None:
            self.blocked.wait(20)
        if not np.isfinite(queries).all():
            raise BadQueryError("a query holds NaN or infinity")
        if self.metric is Metric.COSINE and not np.abs(queries).sum(axis=1).all():
            raise BadQueryError("a query is the zero vector, which has no direction under cosine")
        scores = self._scores(queries.astype(np.float32))
        order_by = scores if self.metric is Metric.L2 else -scores
        ranks = {id_: rank for rank, id_ in enumerate(sorted(self._ids, key=lambda i: (isinstance(i, str), i)))}
        id_ranks = np.array([ranks[id_] for id_ in self._ids])
        rows = np.stack([np.lexsort((id_ranks, order_by[i]))[:k] for i in range(len(queries))])
        found = np.take_along_axis(scores, rows, axis=1)
        counts = np.full(len(queries), rows.shape[1], dtype=np.int64)
        if allowed is not None:
            rows = np.stack([sorted(each, key=lambda row: not allowed.mask[row]) for each in rows])
            found = np.take_along_axis(scores, rows, axis=1)
            counts = allowed.mask[rows].sum(axis=1).astype(np.int64)
        if options is not None and options.score_threshold is not None:
            good = found <= options.score_threshold if self.metric is Metric.L2 else found >= options.score_threshold
            counts = good.sum(axis=1).astype(np.int64)
        ids = np.array(self._ids, dtype=object if self.ids.strings else np.uint64)[rows]
        m = len(queries)
        each = np.full(m, self.n, dtype=np.int64)
        work = FakeWork(each, each * 0, each * 0 + k, each, each * 0 + 1, each * 0 + 4096, {"rerank": np.ones(m)})
        return FakeHits(ids, found.astype(np.float32), counts, rows.astype(np.int64), work)

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        stored = self._vectors.astype(np.float32)
        if self.metric is Metric.L2:
            return np.sqrt(((queries[:, None, :] - stored[None]) ** 2).sum(axis=2))
        dots = np.stack([(stored * query).sum(axis=1) for query in queries])
        if self.metric is Metric.DOT:
            return dots
        lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(queries, axis=1)[:, None]
        return np.clip(np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0), -1, 1)

    def vectors(self, rows: Any) -> np.ndarray:
        return self._vectors[np.asarray(rows, dtype=np.int64)]

    def stats(self) -> dict[str, Any]:
        return {"preview": "flat", "bits": 8, "resident_bytes": {"codes": 100}, "io_mode": "buffered"}

    def close(self) -> None:
        self.closed = True


def open_fake(path: Path, options: Any) -> FakeIndex:
    return FakeIndex(path)


def write_fake(
    folder: Path,
    vectors: Any,
    *,
    metric: str = "cosine",
    ids: list[Any] | None = None,
    payload: list[Any] | None = None,
) -> None:
    """A folder that open_fake() opens."""
    vectors = np.asarray(vectors)
    folder.mkdir(parents=True)
    content = {
        "vectors": vectors.tolist(),
        "dtype": str(vectors.dtype),
        "metric": metric,
        "ids": ids if ids is not None else list(range(len(vectors))),
        "payload": payload,
    }
    (folder / "manifest.json").write_text(json.dumps(content))


def put_fake(engine: Any, name: str, vectors: Any, **rest: Any) -> Any:
    """Publish a fake index as a collection, as a build would; returns the open FakeIndex."""
    import os
    import time
    from dataclasses import replace

    from service.catalogue import CollectionRecord

    distance = {"cosine": "Cosine", "dot": "Dot", "l2": "Euclid"}[rest.get("metric", "cosine")]
    vectors = np.asarray(vectors, dtype=np.float32) if not isinstance(vectors, np.ndarray) else vectors
    if engine.exists(name):
        record = replace(engine.find(name).record, generation=os.urandom(8).hex())
    else:
        record = CollectionRecord(
            id=os.urandom(8).hex(), name=name, size=vectors.shape[1], distance=distance, config=b"{}",
            generation=os.urandom(8).hex(), generation_number=0, created_at=time.time(),
        )  # fmt: skip
    folder = engine.folder_of(record.id) / str(record.generation)
    write_fake(folder, vectors, **rest)
    index = engine.open(folder)
    engine.publish(record, index, alias=None, may_replace=True)
    return index
