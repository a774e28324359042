"""A job of the server, followed to its end."""

from __future__ import annotations

import time
from typing import Any

from service.demo.server import DemoServerError, Server
from service.demo.show import Show

POLL_S = 0.1


def follow_job(server: Server, job: dict[str, Any], show: Show) -> dict[str, Any]:
    """Show progress until the job is done; returns its report. Raises DemoServerError where it failed."""
    with show.build() as progress:
        while job["state"] in ("queued", "running"):
            time.sleep(POLL_S)
            job = server.ask("GET", f"/v1/admin/builds/{job['job']}")
            progress.show(job)
    if job["state"] != "done":
        raise DemoServerError(f"The build ended as {job['state']}: {(job['error'] or {}).get('message')}")
    report: dict[str, Any] = job["report"]
    return report
