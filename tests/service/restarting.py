"""A live server that can be stopped and started again over the same data, and what scenarios do with points over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from live import LiveServer


class RestartingServer:
    """ask() sends JSON to whatever process runs now."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.server = LiveServer(data_dir)
        self.server.wait_ready()

    def restart(self) -> None:
        assert self.server.terminate() == 0
        self.server = LiveServer(self.data_dir)
        self.server.wait_ready()

    def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """`result` of a success, the sentence of an error."""
        answer = self.server.client.request(method, path, **({} if body is None else {"json": body}))
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        found = answer.json()
        return found.get("result") if status == 200 else found["status"]["error"]

    def create(self, name: str, *, size: int, distance: str = "Cosine") -> str:
        """The path of a collection that was made."""
        self.ask("PUT", f"/collections/{name}", {"vectors": {"size": size, "distance": distance}})
        return f"/collections/{name}"

    def upsert(self, at: str, vectors: Any, *, first: int = 0) -> None:
        """Rows of an array under ascending ids."""
        points = [{"id": first + row, "vector": vector} for row, vector in enumerate(np.asarray(vectors).tolist())]
        for start in range(0, len(points), 2000):
            self.ask("PUT", f"{at}/points", {"points": points[start : start + 2000]})

    def query(self, at: str, **body: Any) -> list[dict[str, Any]]:
        """Points, exactly."""
        return self.ask("POST", f"{at}/points/query", {"params": {"exact": True}} | body)["points"]

    def count(self, at: str, wanted: Any = None) -> int:
        return self.ask("POST", f"{at}/points/count", {"filter": wanted})["count"]

    def compact(self, at: str) -> None:
        """Everything that was written is in a generation afterwards."""
        answer = self.server.client.post(f"/v1/admin{at}/compact")
        assert answer.status_code == 202, answer.text
        job = self.server.wait_job(answer.json()["job"])
        assert job["state"] == "done", job

    def moments(self, at: str) -> Iterator[str]:
        """The same points from the delta, from the delta after a restart, from a generation, and after another restart."""
        yield "written"
        self.restart()
        yield "restarted"
        self.compact(at)
        yield "compacted"
        self.restart()
        yield "restarted after the compaction"

    def close(self) -> None:
        if self.server.process.poll() is None:
            self.server.terminate()
