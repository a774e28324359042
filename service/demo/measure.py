"""What the demo did, in figures: recall against the oracle, memory by part, pages, latency over HTTP and without it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index import open_index
from index.exact import RecallEstimate, interval, recall_of
from service.demo.server import Server

K = 10
WARM_UP = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All of it. Bytes, seconds, microseconds; *_per_query are means, *_us_p50 medians of single queries."""

    rows: int
    dim: int
    dtype: str
    metric: str
    preview: str
    bits: int | str
    queries: int
    k: int
    promised_recall: float
    recall: float
    recall_low: float
    recall_high: float
    raw_float32_bytes: int
    budget_bytes: int
    resident_bytes: dict[str, int]
    pages_per_query: float
    bytes_per_query: float
    rows_scored_per_query: float
    latency_us_p50_http: float
    latency_us_p50_library: float
    build_seconds: float
    build_peak_bytes: int
    build_phases: dict[str, float]
    io_mode: str
    io_reason: str

    @property
    def resident_bytes_total(self) -> int:
        """Memory of all parts."""
        return sum(self.resident_bytes.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self) | {"resident_bytes_total": self.resident_bytes_total}


def measure(server: Server, collection: str, queries: NDArray[np.float32], report: dict[str, Any]) -> Figures:
    """Ask every query in the ways that are compared. queries: float32 [m, dim]; report: of the build's job."""
    recall = _recall(server, collection, queries)
    bodies = [{"query": query.tolist(), "limit": K} for query in queries]
    path = f"/collections/{collection}/points/query"
    http_us = _median_us(lambda i: server.ask("POST", path, bodies[i]), len(bodies))
    own = server.ask("GET", f"/collections/{collection}")["result"]["fullview"]
    with open_index(_generation(server)) as index:
        library_us = _median_us(lambda i: index.search(queries[i], k=K), len(queries))
        work = index.search(queries, k=K).work
    return Figures(
        rows=own["rows"],
        dim=own["dim"],
        dtype=own["dtype"],
        metric=own["metric"],
        preview=own["preview"],
        bits=own["bits"],
        queries=len(queries),
        k=K,
        promised_recall=report["promised_recall"],
        recall=recall.mean,
        recall_low=recall.low,
        recall_high=recall.high,
        raw_float32_bytes=own["rows"] * own["dim"] * 4,
        budget_bytes=report["budget_bytes"],
        resident_bytes=own["resident_bytes"] | {"scratch": own["scratch_bytes"]},
        pages_per_query=float(work.pages_read.mean()),
        bytes_per_query=float(work.bytes_read.mean()),
        rows_scored_per_query=float(work.rows_scored.mean()),
        latency_us_p50_http=http_us,
        latency_us_p50_library=library_us,
        build_seconds=report["seconds"],
        build_peak_bytes=report["peak_bytes"],
        build_phases=report["phases"],
        io_mode=own["io_mode"],
        io_reason=own["io_reason"] or "",
    )


def _recall(server: Server, collection: str, queries: NDArray[np.float32]) -> RecallEstimate:
    """Answers of the default operating point against exact ones, both over HTTP."""
    path, body = f"/collections/{collection}/points/query?limit={K}", queries.astype("<f4").tobytes()
    found, found_counts = _scores(server.ask_raw(path, body))
    true, true_counts = _scores(server.ask_raw(f"{path}&exact=true", body))
    return interval(recall_of(found, found_counts, true, true_counts))


def _scores(answer: bytes) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores float32 [m, k] and counts int64 [m] of an octet-stream answer: a line of JSON, the ids, the scores."""
    end = answer.index(b"\n") + 1
    header = json.loads(answer[:end])
    m, k = header["shape"]
    scores = np.frombuffer(answer, "<f4", m * k, offset=end + 8 * m * k).reshape(m, k)
    return scores, np.array(header["counts"], np.int64)


def _median_us(one: Callable[[int], Any], count: int) -> float:
    for i in range(min(WARM_UP, count)):
        one(i)
    spent = []
    for i in range(count):
        begun = time.perf_counter()
        one(i)
        spent.append(time.perf_counter() - begun)
    return float(np.median(spent)) * 1e6


def _generation(server: Server) -> Path:
    """The folder of the one index that the server serves; reading it beside the server harms nothing."""
    (manifest,) = (server.folder / "data" / "collections").glob("*/*/manifest.json")
    return manifest.parent
