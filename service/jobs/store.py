"""Build jobs on the disk: what was asked, in which state it is, what came of it.

Invariant: a job that was running when the server died is `interrupted` after the next start; a queued one stays queued.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from service.database import Database
from service.errors import ConflictError, NotFoundError

# `collection` is the name of what is built, of either kind.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, collection TEXT NOT NULL, state TEXT NOT NULL, submitted_at REAL NOT NULL, record BLOB NOT NULL
) STRICT
"""

ACTIVE = ("queued", "running")
RESTARTABLE = ("failed", "cancelled", "interrupted")
JobKindName = Literal["collection", "compaction", "append", "restore", "snapshot", "decoder"]
"""What a job does; all but the last two make a generation of a collection."""
Target = Literal["collection", "snapshot", "decoder"]
STATES = ("queued", "running", "done", "failed", "cancelled", "interrupted")


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job failed."""

    code: str
    message: str


class Job(msgspec.Struct, kw_only=True):
    """One build job, as it is stored and as clients see it. Times in seconds since 1970, sizes in bytes."""

    job: str
    kind: JobKindName = "collection"
    """What it does."""
    collection: str | None = None
    decoder: str | None = None
    mode: str
    alias: str | None = None
    request: msgspec.Raw
    """The body that was sent, for restarts."""
    state: str = "queued"
    phase: str | None = None
    done: int = 0
    total: int = 0
    rate: float = 0.0
    """Rows (or other units of the phase) a second."""
    eta_s: float | None = None
    peak_memory_bytes: int = 0
    passes: int = 1
    """How often the source is read."""
    warnings: list[str] = msgspec.field(default_factory=list)
    error: JobError | None = None
    report: dict[str, Any] | None = None
    submitted_at: float = msgspec.field(default_factory=time.time)
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def name(self) -> str:
        """Of the collection or the decoder that it builds."""
        return str(self.decoder if self.kind == "decoder" else self.collection)

    @property
    def builds(self) -> Target:
        """What it builds."""
        return self.kind if self.kind in ("decoder", "snapshot") else "collection"

    @property
    def target(self) -> str:
        """Of what kind that is and its name, for sentences."""
        return f"{self.builds} {self.name!r}"


class JobStore:
    """All jobs. Threads: any. Progress lives in memory; changes of state are on the disk before save() returns."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, schema=_SCHEMA)
        rows = self._database.rows("SELECT record FROM jobs ORDER BY submitted_at, id")
        self._jobs = {job.job: job for job in (msgspec.json.decode(row["record"], type=Job) for row in rows)}
        for job in self._jobs.values():
            if job.state == "running":
                job.state, job.ended_at, job.eta_s = "interrupted", time.time(), None
                job.error = JobError(
                    code="interrupted", message="The server ended while this build ran. Restart the job."
                )
                self.save(job)

    def new(self, job: Job) -> Job:
        """Keep a new job; it is on the disk afterwards."""
        self._jobs[job.job] = job
        try:
            self.save(job)
        except BaseException:
            del self._jobs[job.job]
            raise
        return job

    def save(self, job: Job) -> None:
        """Write a job's state."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state,"
                " record = excluded.record",
                (job.job, job.name, job.state, job.submitted_at, msgspec.json.encode(job)),
            )

    def get(self, job_id: str) -> Job:
        """Raises NotFoundError."""
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(f"Build job {job_id!r} does not exist. GET /v1/admin/builds lists those that do.")
        return job

    def find(self, job_id: str) -> Job | None:
        """The job, or None."""
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """All jobs, the oldest first."""
        return list(self._jobs.values())

    def active_for(self, name: str, *, builds: Target = "collection") -> Job | None:
        """The queued or running job of the collection or decoder of that name."""
        return next((j for j in self.all() if (j.builds, j.name) == (builds, name) and j.state in ACTIVE), None)

    def delete(self, job_id: str) -> None:
        """Forget a job that has ended. Raises NotFoundError, ConflictError."""
        job = self.get(job_id)
        if job.state in ACTIVE:
            raise ConflictError(f"Build job {job_id} is {job.state}. Cancel it before you delete it.")
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
        self._jobs.pop(job_id, None)

    def close(self) -> None:
        """No call may follow."""
        self._database.close()
