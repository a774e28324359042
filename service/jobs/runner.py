"""Runs build jobs: a queue, and for each running job a process of its own that this side starts, hears and ends.

submit() cancel() restart() delete()      what the routes ask for
start() close()                           leftovers out and queued jobs on; at the end running jobs are interrupted

Invariant: a build works in building/<job>/, which is removed when the job ends, however it ends. An index enters its
collection by one rename and one transaction of the catalogue, after it was opened and has answered a query.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import msgspec

from index.errors import VectorIndexError
from service.catalogue import CollectionRecord
from service.engine import DISTANCE_OF_METRIC, Engine
from service.errors import ConflictError, status_of
from service.generation import remove_folder, remove_folder_if_there
from service.jobs.messages import BuildSpec, Done, Failed, Message, Progress
from service.jobs.store import RESTARTABLE, Job, JobError, JobStore

log = logging.getLogger("fullview.jobs")

BUILDING_FOLDER = "building"
INDEX_FOLDER = "index"
WORKER_COMMAND = (sys.executable, "-m", "service.jobs.worker")

# A build looks at its cancel flag often; one that does not within this time is killed. Together under 5 seconds.
_CANCEL_GRACE_S = 3.0


@dataclass(slots=True)
class _Running:
    """The process of a running job. `stop` is why it has to end: cancelled or interrupted."""

    process: subprocess.Popen[bytes]
    stop: str | None = None
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=20))


class JobRunner:
    """All builds of a server. Threads: any."""

    def __init__(
        self,
        store: JobStore,
        engine: Engine,
        make_spec: Callable[[Job, Path], BuildSpec],
        *,
        worker_command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self.store = store
        self._engine, self._make_spec = engine, make_spec
        self._worker_command = list(worker_command)
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._closing = False
        self._threads: list[threading.Thread] = []

    @property
    def _root(self) -> Path:
        return self._engine.settings.data_dir / BUILDING_FOLDER

    def start(self) -> None:
        """Remove what a crash left; run what was queued."""
        self._root.mkdir(exist_ok=True)
        for leftover in self._root.iterdir():
            log.info("removing what an unfinished build left: %s", leftover)
            remove_folder(leftover)
        for job in self.store.all():
            if job.state == "queued":
                self._queue.put(job.job)
        for number in range(self._engine.settings.builds_parallel):
            thread = threading.Thread(target=self._serve, name=f"fullview-builds-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Ends running builds; their jobs are interrupted, queued ones stay queued."""
        self._closing = True
        with self._lock:
            running = list(self._running)
        for job_id in running:
            self._stop(job_id, "interrupted", grace_s=0.0)
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def submit(
        self, *, collection: str, mode: str, alias: str | None, request: msgspec.Raw, passes: int, warnings: list[str]
    ) -> Job:
        """A new job in the queue. Raises ConflictError where the collection has an active one."""
        with self._lock:
            active = self.store.active_for(collection)
            if active is not None:
                raise ConflictError(
                    f"Build job {active.job} for collection {collection!r} is {active.state}. Cancel it, or wait."
                )
            job = self.store.new(collection=collection, mode=mode, alias=alias, request=request)
            job.passes, job.warnings = passes, warnings
        self._queue.put(job.job)
        return job

    def cancel(self, job_id: str) -> Job:
        """The job ends within 5 seconds. Raises NotFoundError, ConflictError for a job that has ended."""
        job = self.store.get(job_id)
        with self._lock:
            if job.state == "queued":
                self._end(job, "cancelled")
                return job
        if job.state != "running":
            raise ConflictError(f"Build job {job_id} is {job.state}; only queued and running jobs can be cancelled.")
        self._stop(job_id, "cancelled", grace_s=_CANCEL_GRACE_S)
        return job

    def cancel_builds_of(self, collection: str) -> None:
        """Cancel the active job of a collection, if there is one."""
        job = self.store.active_for(collection)
        if job is not None:
            self.cancel(job.job)

    def restart(self, job_id: str) -> Job:
        """Queue a job again that failed, was cancelled or interrupted. Raises NotFoundError, ConflictError."""
        job = self.store.get(job_id)
        with self._lock:
            if job.state not in RESTARTABLE:
                raise ConflictError(f"Build job {job_id} is {job.state}; only {', '.join(RESTARTABLE)} ones restart.")
            active = self.store.active_for(job.collection)
            if active is not None:
                raise ConflictError(f"Build job {active.job} for collection {job.collection!r} is {active.state}.")
            job.state, job.phase, job.done, job.total, job.rate, job.eta_s = "queued", None, 0, 0, 0.0, None
            job.error = job.report = job.started_at = job.ended_at = None
            self.store.save(job)
        self._queue.put(job_id)
        return job

    # --- one job, in a thread of the runner -----------------------------------

    def _serve(self) -> None:
        while True:
            job_id = self._queue.get()
            if job_id is None or self._closing:
                return
            try:
                self._run(job_id)
            except Exception:
                # The thread must live on for the next job.
                log.exception("job %s", job_id)

    def _run(self, job_id: str) -> None:
        with self._lock:
            job = self.store.find(job_id)
            if job is None or job.state != "queued":
                return
            job.state, job.started_at = "running", time.time()
            self.store.save(job)
        folder = self._root / job_id
        error: JobError | None = None
        try:
            folder.mkdir()
            state, error = self._build(job, folder)
        except Exception as failure:
            problem = status_of(failure)
            if problem is None:
                log.exception("job %s", job_id)
            state, error = "failed", JobError(code=problem.code if problem else "internal", message=str(failure))
        # The state changes last: who reads `cancelled` finds nothing left on the disk.
        remove_folder_if_there(folder)
        self._end(job, state, error)

    def _build(self, job: Job, folder: Path) -> tuple[str, JobError | None]:
        spec = self._make_spec(job, folder / INDEX_FOLDER)
        outcome, stop = self._hear(job, self._start_process(job.job, spec))
        if stop is not None:
            return stop, None
        if isinstance(outcome, Done):
            self._publish(job, outcome, folder / INDEX_FOLDER)
            job.report, job.peak_memory_bytes = outcome.report, outcome.peak_memory_bytes
            job.warnings = [*job.warnings, *map(str, outcome.report.get("warnings", ()))]
            return "done", None
        if isinstance(outcome, Failed):
            return "failed", JobError(code=outcome.code, message=outcome.message)
        return "cancelled", None

    def _start_process(self, job_id: str, spec: BuildSpec) -> _Running:
        process = subprocess.Popen(
            self._worker_command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that helpers of the build can be ended with it, and Ctrl-C reaches only us
        )
        running = _Running(process)
        with self._lock:
            self._running[job_id] = running
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()
        if self._closing:
            self._stop(job_id, "interrupted", grace_s=0.0)
        return running

    def _hear(self, job: Job, running: _Running) -> tuple[Message, str | None]:
        """Read messages until the process ends: its last one, and why it was stopped from here, if it was."""
        process = running.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        errors = threading.Thread(target=lambda: _keep_lines(process, running.last_words), daemon=True)
        errors.start()
        outcome: Message | None = None
        for line in process.stdout:
            message = msgspec.json.decode(line, type=Message)
            if isinstance(message, Progress):
                _take(job, message)
            else:
                outcome = message
        code = process.wait()
        errors.join()
        with self._lock:
            del self._running[job.job]
        process.stdin.close()
        process.stdout.close()
        process.stderr.close()
        if outcome is None:
            words = " ".join(running.last_words)[-1000:]
            outcome = Failed(code="crashed", message=f"The build's process ended with {_ending(code)}. {words}")
        return outcome, running.stop

    def _publish(self, job: Job, done: Done, built: Path) -> None:
        engine = self._engine
        old = engine.find(job.collection).record if engine.exists(job.collection) else None
        record = CollectionRecord(
            id=old.id if old is not None else job.job,
            name=job.collection,
            size=done.dim,
            distance=DISTANCE_OF_METRIC[done.metric],
            config=old.config if old is not None else b"{}",
            generation=os.urandom(8).hex(),
            generation_number=0,
            created_at=old.created_at if old is not None else time.time(),
        )
        if old is not None and job.mode == "create" and old.generation is None:
            _require_same_kind(old, record)
        home = engine.folder_of(record.id)
        folder = home / str(record.generation)
        home.mkdir(parents=True, exist_ok=True)
        built.rename(folder)
        for changed in (home, home.parent):
            _sync_folder(changed)
        try:
            index = engine.open(folder)
        except (VectorIndexError, OSError):
            remove_folder(folder)
            raise
        engine.publish(record, index, alias=job.alias, may_replace=job.mode == "replace")

    def _end(self, job: Job, state: str, error: JobError | None = None) -> None:
        job.state, job.error, job.ended_at, job.eta_s = state, error, time.time(), None
        try:
            self.store.save(job)
        except Exception:
            # A full disk: the state in memory is right, and the next start says `interrupted`.
            log.exception("job %s: its state %s could not be written", job.job, state)

    def _stop(self, job_id: str, why: str, *, grace_s: float) -> None:
        with self._lock:
            running = self._running.get(job_id)
            if running is None:
                return
            first = running.stop is None
            running.stop = running.stop or why
        if grace_s > 0 and first:
            assert running.process.stdin is not None
            try:
                running.process.stdin.write(b"cancel\n")
                running.process.stdin.flush()
            except OSError:
                return  # it has just ended
            timer = threading.Timer(grace_s, _kill, (running.process,))
            timer.daemon = True
            timer.start()
        elif grace_s == 0:
            _kill(running.process)


def _take(job: Job, message: Progress) -> None:
    job.phase, job.done, job.total = message.phase, message.done, message.total
    job.rate, job.eta_s, job.peak_memory_bytes = message.rate, message.eta_s, message.peak_memory_bytes


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def _keep_lines(process: subprocess.Popen[bytes], lines: deque[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line.decode(errors="replace").strip())


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _require_same_kind(old: CollectionRecord, new: CollectionRecord) -> None:
    if (old.size, old.distance) != (new.size, new.distance):
        raise ConflictError(
            f"Collection {old.name!r} was created for {old.size} components and {old.distance}, the build has "
            f"{new.size} and {new.distance}. Delete the collection, or build what it was created for."
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
