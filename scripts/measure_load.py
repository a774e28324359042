#!/usr/bin/env python
"""Upserts and queries at fixed rates while compactions run: the rates that were kept, and how long each took.

    scripts/measure_load.py DATA [--seconds 120] [--upserts 2000] [--queries 100] [--compact always|auto|never]

DATA: the folder wordnet_minilm that scripts/fetch_data.py makes. A server of its own is filled with all rows and compacted;
then two processes write batches of 100 points (one half new ids, one half ids that are there) and query, each on a clock of
its own: a request that is late is sent at once and counted from when it was due.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests" / "service"))
from live import live_server

BATCH = 100
JSON = {"content-type": "application/json"}


def bodies(vectors: np.ndarray, count: int, seed: int) -> list[bytes]:
    """Bodies of upserts: rows with some noise, half of them under new ids."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        rows = random.integers(len(vectors), size=BATCH)
        noisy = vectors[rows].astype(np.float32) + 0.02 * random.standard_normal((BATCH, vectors.shape[1]))
        ids = np.where(random.random(BATCH) < 0.5, rows, random.integers(10**6, 10**9, BATCH))
        points = [
            {"id": int(id_), "vector": np.round(row, 6).tolist(), "payload": {"n": int(row_), "w": "noun.animal"}}
            for id_, row, row_ in zip(ids, noisy, rows, strict=True)
        ]
        made.append(json.dumps({"points": points}).encode())
    return made


def paced(url: str, method: str, path: str, content: list[bytes], rate: float, seconds: float, out: Any) -> None:
    """Requests at a rate; (due, sent, answered, status) of each, in seconds of this clock."""
    took = []
    with httpx2.Client(base_url=url, timeout=60) as client:
        begun = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = begun + number / rate
            wait = due - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            sent = time.perf_counter()
            status = client.request(method, path, content=content[number % len(content)], headers=JSON).status_code
            took.append((due - begun, sent - begun, time.perf_counter() - begun, status))
    out.put(took)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--upserts", type=float, default=2000.0)
    parser.add_argument("--queries", type=float, default=100.0)
    parser.add_argument("--compact", choices=["always", "auto", "never"], default="always")
    parser.add_argument("--rows", type=int, default=None)
    given = parser.parse_args()
    vectors = np.load(given.data / "base.npy", mmap_mode="r")[: given.rows]
    queries = np.load(given.data / "queries.npy").astype(np.float32)
    writes = bodies(vectors, int(given.upserts * given.seconds / BATCH), seed=1)
    asked = [json.dumps({"query": query.tolist(), "limit": 10}).encode() for query in queries]
    with tempfile.TemporaryDirectory() as folder:
        flags = [] if given.compact == "auto" else ["--no-compact-auto"]
        with live_server(Path(folder) / "data", *flags) as server:
            fill(server, vectors)
            run(server, given, writes, asked)


def fill(server: Any, vectors: np.ndarray) -> None:
    """All rows, compacted."""
    server.client.put("/collections/w", json={"vectors": {"size": vectors.shape[1], "distance": "Cosine"}})
    for start in range(0, len(vectors), 500):
        rows = vectors[start : start + 500].astype(np.float32)
        points = [{"id": start + at, "vector": row.tolist()} for at, row in enumerate(rows)]
        assert server.client.put("/collections/w/points", json={"points": points}).status_code == 200
    job = server.client.post("/v1/admin/collections/w/compact").json()["job"]
    assert server.wait_job(job, timeout_s=1800)["state"] == "done"


def run(server: Any, given: argparse.Namespace, writes: list[bytes], asked: list[bytes]) -> None:
    """Both loads at once, compactions between."""
    context = multiprocessing.get_context("spawn")
    outs = [context.Queue(), context.Queue()]
    loads = [
        context.Process(
            target=paced,
            args=(server.url, "PUT", "/collections/w/points", writes, given.upserts / BATCH, given.seconds, outs[0]),
        ),
        context.Process(
            target=paced,
            args=(server.url, "POST", "/collections/w/points/query", asked, given.queries, given.seconds, outs[1]),
        ),
    ]
    stop, jobs, sizes = threading.Event(), [], []

    def compact() -> None:
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            while not stop.is_set():
                if given.compact == "always":
                    answer = client.post("/v1/admin/collections/w/compact", json={"threads": 1})
                    if answer.status_code == 202:
                        jobs.append(answer.json()["job"])
                sizes.append(client.get("/collections/w").json()["result"]["fullview"]["delta_rows"])
                stop.wait(0.5)

    compactor = threading.Thread(target=compact)
    for load in loads:
        load.start()
    compactor.start()
    results = [np.array(out.get()) for out in outs]
    stop.set()
    compactor.join()
    for load in loads:
        load.join()
    for name, result, each in (("upserts", results[0], BATCH), ("queries", results[1], 1)):
        due, sent, answered, status = result.T
        served, waited = (answered - sent) * 1e3, (answered - due) * 1e3
        print(
            f"{name}: {len(result) * each / answered.max():,.0f} a second of {len(result) * each / given.seconds:,.0f} "
            f"asked, {np.count_nonzero(status != 200)} refused; request p50 {np.median(served):.1f} ms, "
            f"p99 {np.percentile(served, 99):.1f}; from when it was due p50 {np.median(waited):.1f} ms, "
            f"p99 {np.percentile(waited, 99):.1f}, most {waited.max():.0f}"
        )
    listed = server.client.get("/v1/admin/builds").json()["builds"]
    ended = [job for job in listed if job["kind"] == "compaction" and job["state"] == "done"][1:]
    seconds = [round(job["ended_at"] - job["started_at"], 1) for job in ended]
    told = [(job["report"].get("fold") or {}).get("done") for job in ended]
    print(f"compactions that ended: {len(ended)} ({told}), seconds each {seconds}; delta up to {max(sizes):,} points")


if __name__ == "__main__":
    main()
