"""The worker's side of the protocol: one JSON object a line, and the measurements that must happen in this process.

serve            read commands from stdin until it ends
measure_batch    queries a second, CPU time, bytes read (/proc/self/io), rows found
measure_single   the time of each query alone, on one thread
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from service.bench.workers.searcher import Job, Searcher, Setting, queries_of

ORPHAN_CHECK_SECONDS = 0.5
WARM_QUERIES = 100


class Worker:
    """Answers commands with one Searcher. Lives in one process, used by one thread."""

    def __init__(self, searcher: Searcher, tell: Callable[[str, int, int], None]) -> None:
        self.searcher, self.tell = searcher, tell
        self.queries: NDArray[Any] = np.zeros((0, 0), np.float32)

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command; its name stands under "do"."""
        what = command.pop("do")
        if what == "hello":
            return {"versions": self.searcher.versions()}
        if what in ("prepare", "build", "warm", "open"):
            return self._about_job(what, Job(**command["job"]))
        if what == "finish":
            self.searcher.finish(Job(**command["job"]), command["said"])
            return {}
        if what == "settings":
            return {"settings": self.searcher.settings()}
        if what == "batch":
            return measure_batch(self.searcher, self.queries, **command)
        if what == "single":
            return measure_single(self.searcher, self.queries, **command)
        if what == "exact":
            found = self.searcher.exact(self.queries, command["k"], command["threads"])
            np.save(command["rows"], found.rows)
            return {}
        raise ValueError(f"no command {what!r}")

    def _about_job(self, what: str, job: Job) -> dict[str, Any]:
        if what == "prepare":
            self.searcher.prepare(job)
            give_back_memory()
            return {}
        if what == "build":
            begun = time.perf_counter()
            said = self.searcher.build(job, self.tell)
            said["seconds"] = time.perf_counter() - begun
            return said
        if what == "warm":
            self.queries = queries_of(job, self.searcher)
            self.searcher.warm(job)
            give_back_memory()
            return {}
        return self.searcher.open(job)


def measure_batch(
    searcher: Searcher,
    queries: NDArray[Any],
    *,
    k: int,
    setting: Setting,
    threads: int,
    seconds: float,
    rows: str | None = None,
) -> dict[str, Any]:
    """A few queries to warm up (all, where rows are wanted), then all until `seconds` have passed.

    Returns qps, cpu_us and read_bytes a query (None where the system does not tell), the counted work, passes.
    rows: the npy file that the rows found go to.
    """
    found = searcher.search(queries if rows is not None else queries[:WARM_QUERIES], k, setting, threads)
    if rows is not None:
        np.save(rows, found.rows)
    passes, read_before, cpu_before, begun = 0, bytes_read(), time.process_time(), time.perf_counter()
    while passes == 0 or time.perf_counter() - begun < seconds:
        searcher.search(queries, k, setting, threads)
        passes += 1
    spent, cpu, read = time.perf_counter() - begun, time.process_time() - cpu_before, bytes_read()
    done = passes * len(queries)
    return {
        "qps": done / spent,
        "cpu_us": cpu / done * 1e6,
        "read_bytes": None if read is None or read_before is None else (read - read_before) / done,
        "work": found.work,
        "passes": passes,
    }


def measure_single(
    searcher: Searcher, queries: NDArray[Any], *, k: int, setting: Setting, count: int
) -> dict[str, Any]:
    """Microseconds of single queries on one thread: p50, p95, p99 over the first `count`, after a few unmeasured ones."""
    some = queries[:count]
    for query in some[:20]:
        searcher.search_one(query, k, setting)
    times = np.empty(len(some))
    for i, query in enumerate(some):
        begun = time.perf_counter_ns()
        searcher.search_one(query, k, setting)
        times[i] = (time.perf_counter_ns() - begun) / 1e3
    p50, p95, p99 = np.percentile(times, [50, 95, 99])
    return {"p50_us": float(p50), "p95_us": float(p95), "p99_us": float(p99), "queries": len(some)}


def bytes_read() -> int | None:
    """Bytes that this process had read from the device so far."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:  # noqa: PTH123 (a peer's numpy is all there is)
            return next(int(line.split()[1]) for line in file if line.startswith("read_bytes:"))
    except (OSError, StopIteration):
        return None


def give_back_memory() -> None:
    """Return freed memory to the system: reused later it would not show as growth. Nothing where libc cannot."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def serve(name: str) -> None:
    """Answer commands from stdin with the Searcher of module on_NAME. Ends with stdin, or with the parent."""
    # Peers print to stdout; the protocol keeps the real one and everything else goes to stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
        worker = Worker(_searcher(name), lambda *event: _send(out, {"progress": list(event)}))
        for line in sys.stdin:
            try:
                answer: dict[str, Any] = {"ok": worker.answer(json.loads(line))}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            _send(out, answer)


def _searcher(name: str) -> Searcher:
    module = importlib.import_module(f"service.bench.workers.on_{name}")
    made: Searcher = module.searcher()
    return made


def _send(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _end_with_parent(parent: int) -> None:
    """A build does not look at stdin: end it when nobody waits for it any more."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_SECONDS)
    os._exit(1)
