#!/usr/bin/env python
"""Filtered queries of a collection over HTTP: recall, pages and time beside unfiltered ones, from the delta and compacted.

    scripts/measure_filtered_queries.py DATA [--queries 300] [--rows N]

DATA: the folder wordnet_minilm that scripts/fetch_data.py makes. A server of its own gets all rows by upserts, is measured,
compacted, and measured again. Each filtered query runs right after the same one without a filter.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[1] / "tests" / "service"))
from live import live_server

BATCH = 500


def filters_of(n: int) -> list[tuple[str, dict[str, Any]]]:
    """Name and filter, by falling share of the rows."""

    def below(share: float) -> dict[str, Any]:
        return {"must": [{"key": "made", "range": {"lt": max(1, round(share * n))}}]}

    def equal(key: str, value: Any) -> dict[str, Any]:
        return {"must": [{"key": key, "match": {"value": value}}]}

    return [
        ("pos = n", equal("pos", "n")),
        ("made < 50 %", below(0.5)),
        ("pos != n", {"must_not": equal("pos", "n")["must"]}),
        ("made < 10 %", below(0.1)),
        ("lexname = noun.artifact", equal("lexname", "noun.artifact")),
        ("made < 1 %", below(0.01)),
        ("lexname = noun.event", equal("lexname", "noun.event")),
        ("made < 0.1 %", below(0.001)),
        ("lexname = verb.weather", equal("lexname", "verb.weather")),
        ("made < 0.01 %", below(0.0001)),
        ("lemmas = run", equal("lemmas", "run")),
        ("none", equal("lemmas", "no such lemma")),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--rows", type=int, default=None)
    given = parser.parse_args()
    vectors = np.load(given.data / "base.npy", mmap_mode="r")[: given.rows]
    payloads = pq.read_table(given.data / "meta.parquet", columns=["pos", "lexname", "lemmas"])[
        : given.rows
    ].to_pylist()
    queries = np.load(given.data / "queries.npy")[: given.queries].astype(np.float32)
    made = np.random.default_rng(0).permutation(len(vectors))
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--no-compact-auto", "--delta-memory-mb", "4000")
        with live_server(Path(folder) / "data", *flags) as server:
            fill(server.client, vectors, payloads, made)
            measure(server.client, queries, len(vectors), "from the delta")
            begun = time.monotonic()
            job = server.client.post("/v1/admin/collections/w/compact").json()["job"]
            ended = server.wait_job(job, timeout_s=1800)
            assert ended["state"] == "done", ended
            print(f"compacted in {time.monotonic() - begun:.0f} s")
            measure(server.client, queries, len(vectors), "from the generation")


def fill(client: httpx2.Client, vectors: Any, payloads: list[dict[str, Any]], made: np.ndarray) -> None:
    """All rows by upserts."""
    client.put("/collections/w", json={"vectors": {"size": vectors.shape[1], "distance": "Cosine"}})
    begun = time.monotonic()
    for start in range(0, len(vectors), BATCH):
        rows = vectors[start : start + BATCH].astype(np.float32)
        points = [
            {
                "id": start + at,
                "vector": row.tolist(),
                "payload": payloads[start + at] | {"made": int(made[start + at])},
            }
            for at, row in enumerate(rows, start)
        ]
        answer = client.put("/collections/w/points", json={"points": points})
        assert answer.status_code == 200, answer.text
    print(f"{len(vectors):,} points in {time.monotonic() - begun:.0f} s")


def ask(
    client: httpx2.Client, query: np.ndarray, wanted: Any, **params: Any
) -> tuple[list[dict[str, Any]], float, Any]:
    """Hits, seconds, profile."""
    body = json.dumps({"query": query.tolist(), "limit": 10, "filter": wanted, "params": params})
    begun = time.perf_counter()
    answer = client.post("/collections/w/points/query", content=body, headers={"content-type": "application/json"})
    seconds = time.perf_counter() - begun
    result = answer.json()["result"]
    return result["points"], seconds, result.get("profile")


def measure(client: httpx2.Client, queries: np.ndarray, n: int, where: str) -> None:
    """A table of filters."""
    columns = ("filter", "share", "recall@10", "pages", "rows scored", "p50 ms", "unfiltered p50 ms", "ratio")
    print(f"\n{where}\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for query in queries[:20]:
        ask(client, query, None)
    for name, wanted in filters_of(n):
        matching = client.post("/collections/w/points/count", json={"filter": wanted}).json()["result"]["count"]
        found, pages, scored, filtered, plain = [], [], [], [], []
        for query in queries[:5]:
            ask(client, query, wanted)
        for query in queries:
            plain.append(ask(client, query, None)[1])
            hits, seconds, _ = ask(client, query, wanted)
            filtered.append(seconds)
            true, _, _ = ask(client, query, wanted, exact=True)
            assert len(hits) == min(10, matching) == len(true), (name, len(hits), len(true))
            limit = true[-1]["score"] if true else 0.0
            found.append(sum(hit["score"] >= limit for hit in hits) / len(true) if true else 1.0)
        for query in queries[:100]:
            _, _, profile = ask(client, query, wanted, profile=True)
            pages.append(profile["pages_read"])
            scored.append(profile["rows_scored"] + profile["rows_reranked"])
        one, other = np.median(filtered) * 1e3, np.median(plain) * 1e3
        cells = (
            name,
            f"{matching / n:.4%}",
            f"{np.mean(found):.4f}",
            f"{np.mean(pages):.1f}",
            f"{np.mean(scored):,.0f}",
        )
        print(f"| {' | '.join(cells)} | {one:.2f} | {other:.2f} | {one / other:.2f} |", flush=True)


if __name__ == "__main__":
    main()
