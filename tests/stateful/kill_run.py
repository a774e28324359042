"""A server that is killed again and again under load, and what it has to show afterwards.

Writer     one collection, one model; each request is acknowledged or not, and what was not may have been done whole or not
KillRun    server, writers, readers, compactions, kills
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx2
from operations_run import LiveServer
from points_model import Model, Operations, check_all, check_query, order_of


class Writer(threading.Thread):
    """Random writes until the server is gone."""

    def __init__(self, url: str, name: str, operations: Operations) -> None:
        super().__init__(daemon=True)
        self.url, self.collection, self.operations = url, name, operations
        self.before: dict[Any, Any] | None = None
        """The model before the request that was not acknowledged; None: none is open."""
        self.acknowledged = 0
        self.failure: str | None = None

    def run(self) -> None:
        model = self.operations.model
        with httpx2.Client(base_url=self.url, timeout=30) as client:
            while True:
                self.before = dict(model.points)
                body = {"operations": []}
                for _ in range(int(self.operations.random.integers(1, 5))):
                    name, one = self.operations.operation()
                    body["operations"].append({name: one})
                try:
                    answer = client.post(f"/collections/{self.collection}/points/batch", json=body)
                except httpx2.HTTPError:
                    return
                if answer.status_code != 200:
                    self.failure = f"{answer.status_code}: {answer.text[:500]}"
                    return
                self.before = None
                self.acknowledged += 1


class Reader(threading.Thread):
    """Queries until the server is gone: every answer well-formed, no id twice."""

    def __init__(self, url: str, name: str, dim: int) -> None:
        super().__init__(daemon=True)
        self.url, self.collection, self.dim = url, name, dim
        self.answers = 0
        self.failure: str | None = None

    def run(self) -> None:
        with httpx2.Client(base_url=self.url, timeout=30) as client:
            while True:
                try:
                    answer = client.post(
                        f"/collections/{self.collection}/points/query", json={"query": [1.0] * self.dim, "limit": 20}
                    )
                except httpx2.HTTPError:
                    return
                ids = [hit["id"] for hit in answer.json()["result"]["points"]] if answer.status_code == 200 else None
                if ids is None or len(set(ids)) != len(ids):
                    self.failure = f"{answer.status_code}: {answer.text[:500]}"
                    return
                self.answers += 1


class KillRun:
    """names: one collection each."""

    def __init__(self, folder: Path, *, seed: int, names: tuple[str, ...] = ("a", "b"), dim: int = 8) -> None:
        self.data_dir, self.names, self.dim = folder / "data", names, dim
        self.operations = {name: Operations(Model(dim), seed + at, ids=300) for at, name in enumerate(names)}
        self.random = self.operations[names[0]].random
        self.kills = self.in_compaction = self.acknowledged = self.answers = self.kept_open = 0
        self.server = LiveServer(self.data_dir)
        self.server.wait_ready()
        for name in names:
            body = {"vectors": {"size": dim, "distance": "Cosine"}}
            assert self.server.client.put(f"/collections/{name}", json=body).status_code == 200

    def round(self, *, compaction: bool) -> None:
        """Load, a kill at a random moment, a restart, and everything compared."""
        server = self.server
        writers = [Writer(server.url, name, self.operations[name]) for name in self.names]
        readers = [Reader(server.url, name, self.dim) for name in self.names]
        for thread in (*writers, *readers):
            thread.start()
        running = False
        if compaction:
            time.sleep(float(self.random.uniform(0.02, 0.2)))
            jobs = [server.client.post(f"/v1/admin/collections/{name}/compact").json()["job"] for name in self.names]
            time.sleep(float(self.random.uniform(0.0, 4.0)))
            running = any(server.job(job)["state"] in ("queued", "running") for job in jobs)
        else:
            time.sleep(float(self.random.uniform(0.02, 0.8)))
        server.kill()
        self.kills += 1
        self.in_compaction += running
        for thread in (*writers, *readers):
            thread.join(timeout=60)
            assert thread.failure is None, thread.failure
        self.acknowledged += sum(writer.acknowledged for writer in writers)
        self.answers += sum(reader.answers for reader in readers)
        self.server = LiveServer(self.data_dir)
        self.server.wait_ready()
        for writer in writers:
            self._compare(writer)

    def _compare(self, writer: Writer) -> None:
        model = writer.operations.model

        def post(route: str, body: dict[str, Any]) -> Any:
            answer = self.server.client.post(f"/collections/{writer.collection}{route}", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["result"]

        if writer.before is not None:
            # One request was open: done whole, or not at all.
            try:
                check_all(post, model)
                self.kept_open += 1
            except AssertionError:
                model.points = writer.before
        check_all(post, model)
        check_query(post, model, writer.operations.vector(), None, exact=True)
        check_query(post, model, writer.operations.vector(), writer.operations.predicate(), exact=False)
        assert post("/points/count", {}) == {"count": len(model.points)}
        ids = sorted(model.points, key=order_of)[:50]
        assert len(post("/points", {"ids": ids})) == len(ids)

    def end(self) -> None:
        if self.server.process.poll() is None:
            self.server.terminate()
