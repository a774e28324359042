"""What the runner has to know of one kind of job; collection_job.py and decoder_job.py have it.

Invariant: what a job built serves only after publish(), which puts it in place by one rename and one transaction of the
catalogue, after it was opened and has answered. Whatever goes wrong there leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from service.jobs.foresight import Foresight
from service.jobs.messages import Done, Spec
from service.jobs.store import Job


class JobKind(Protocol):
    """One kind of job. Threads: any."""

    def foresee(self, request: msgspec.Raw) -> Foresight:
        """Check everything that can be known of a body before it is queued. Raises what the client gets to read."""
        ...

    def spec(self, job: Job, out: Path) -> Spec:
        """What the job's process is told: paths are resolved and checked again. Raises as foresee() does."""
        ...

    def publish(self, job: Job, spec: Spec, done: Done, built: Path, *, is_stopped: Callable[[], bool]) -> None:
        """Let what lies at `built` serve. Raises BuildCancelledError where is_stopped() before it does."""
        ...

    def finished(self, job: Job) -> None:
        """The job has ended, however it did; called once for each job whose spec() was asked for."""
        ...

    def words_of(self, report: Mapping[str, Any], seconds: float) -> str:
        """What the log says of a report."""
        ...
