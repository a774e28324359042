"""A server as users run it: `fullview serve` in a process of its own, on a free port, ended by its own id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2


class LiveServer:
    """url, process; client: keeps its connection alive."""

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        environment: dict[str, str] | None = None,
        before: str = "",
    ) -> None:
        """before: Python that the process runs first."""
        self.data_dir = data_dir
        program = f"import sys\n{before}\nfrom service.cli import main; sys.exit(main())"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FULLVIEW_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--json", "--port", "0", "--data-dir", str(data_dir), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean | (environment or {}),
        )
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {self.process.stderr.read()}")
        self.url = json.loads(line)["url"]
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        wait_for(lambda: self.client.get("/readyz").status_code == 200, timeout_s)

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self.client.close()
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.errors = self.process.stderr.read()
        self.process.stderr.close()
        return code

    def build(self, **body: Any) -> dict[str, Any]:
        """Submit a build and wait for its end."""
        answer = self.client.post("/v1/admin/builds", json=body)
        assert answer.status_code == 202, answer.text
        return self.wait_job(answer.json()["job"])

    def wait_job(self, job: str, timeout_s: float = 120.0) -> dict[str, Any]:
        wait_for(lambda: self.job(job)["state"] not in ("queued", "running"), timeout_s)
        return self.job(job)

    def job(self, job: str) -> dict[str, Any]:
        return self.client.get(f"/v1/admin/builds/{job}").json()


@contextmanager
def live_server(
    data_dir: Path, *flags: str, environment: dict[str, str] | None = None, before: str = ""
) -> Iterator[LiveServer]:
    server = LiveServer(data_dir, *flags, environment=environment, before=before)
    try:
        server.wait_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.terminate()


def wait_for(condition: Any, timeout_s: float = 10.0) -> None:
    """Poll until the condition holds."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.02)
