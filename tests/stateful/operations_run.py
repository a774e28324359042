"""Random operations run against a server of their own, which is checked, compacted, restarted and killed on the way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from points_model import Model, Operations, check_all, check_filter, check_query

sys.path.append(str(Path(__file__).parents[1] / "service"))
from live import LiveServer

COLLECTION = "points"


class Run:
    """One server, one collection, one model."""

    def __init__(self, folder: Path, *, seed: int, ids: int, dim: int) -> None:
        self.data_dir = folder / "data"
        self.model = Model(dim)
        self.operations = Operations(self.model, seed, ids=ids)
        self.random = self.operations.random
        self.compactions = self.restarts = self.done = self.checks = 0
        self.next_compaction: int | None = None
        self.next_restart: int | None = None
        self.job: str | None = None
        self.server = LiveServer(self.data_dir)
        self.server.wait_ready()
        created = self.server.client.put(
            f"/collections/{COLLECTION}", json={"vectors": {"size": dim, "distance": "Cosine"}}
        )
        assert created.status_code == 200, created.text

    def post(self, route: str, body: dict[str, Any]) -> Any:
        answer = self.server.client.post(f"/collections/{COLLECTION}{route}", json=body)
        assert answer.status_code == 200, (route, body, answer.text)
        return answer.json()["result"]

    def go(self, count: int, *, compact_every: int, restart_every: int) -> None:
        """`count` operations, in batches of a few, each followed by a check."""
        self.next_compaction = self.next_compaction or compact_every
        self.next_restart = self.next_restart or restart_every
        while self.done < count:
            some = [self.operations.operation() for _ in range(int(self.random.integers(1, 6)))]
            self.post("/points/batch", {"operations": [{name: body} for name, body in some]})
            self.done += len(some)
            self.check_some()
            if self.done >= self.next_compaction:
                self.next_compaction += compact_every
                self.compact()
            if self.done >= self.next_restart:
                self.next_restart += restart_every
                self.restart()
        self.wait_for_compaction()
        check_all(self.post, self.model)

    def fill(self) -> None:
        """A point for each id, so that compactions have rows to keep."""
        for start in range(0, len(self.operations.ids), 200):
            points = []
            for id_ in self.operations.ids[start : start + 200]:
                vector, payload = self.operations.vector(), self.operations.payload()
                self.model.points[id_] = vector, payload
                points.append({"id": id_, "vector": vector.tolist(), "payload": payload})
            self.post("/points/batch", {"operations": [{"upsert": {"points": points}}]})

    def check_some(self) -> None:
        self.checks += 1
        wanted = self.operations.predicate() if self.random.random() < 0.7 else None
        kind = int(self.random.integers(4))
        if kind == 0 and wanted is not None:
            check_filter(self.post, self.model, wanted)
        elif kind < 3:
            exact = bool(self.random.integers(2))
            query = self.operations.vector()
            if query.any():
                check_query(self.post, self.model, query, wanted, exact=exact, limit=int(self.random.integers(1, 30)))
        elif self.random.random() < 0.05:
            check_all(self.post, self.model)

    def compact(self) -> None:
        """Start one; the last one has ended before. Operations go on while it runs."""
        self.wait_for_compaction()
        answer = self.server.client.post(f"/v1/admin/collections/{COLLECTION}/compact")
        assert answer.status_code == 202, answer.text
        self.job = answer.json()["job"]

    def wait_for_compaction(self) -> None:
        if self.job is not None:
            job = self.server.wait_job(self.job)
            assert job["state"] in ("done", "interrupted"), job
            self.compactions += job["state"] == "done"
            self.job = None

    def restart(self) -> None:
        """Ended in order or killed, in the middle of a compaction or not."""
        if self.random.integers(2):
            self.wait_for_compaction()
        if self.random.integers(2):
            self.server.kill()
        else:
            self.server.terminate()
        self.restarts += 1
        self.server = LiveServer(self.data_dir)
        self.server.wait_ready()

    def end(self) -> None:
        if self.server.process.poll() is None:
            self.server.terminate()
