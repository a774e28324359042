"""Runs build jobs: a queue, and for each running job a process of its own that this side starts, hears and ends.

submit() cancel() restart()      what the routes ask for
start() close()                  leftovers out and queued jobs on; at the end running jobs are interrupted

What is built, and how it comes to serve, is the business of a JobKind (kinds.py). Invariant: a build works in
building/<job>/, which is removed when the job ends, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import msgspec

from service.errors import ConflictError, status_of
from service.folders import remove_folder, remove_folder_if_there
from service.jobs.foresight import Foresight
from service.jobs.kinds import JobKind
from service.jobs.messages import Done, Failed, Message, Progress, Spec
from service.jobs.store import RESTARTABLE, Job, JobError, JobKindName, JobStore, Target
from service.settings import Settings

log = logging.getLogger("fullview.jobs")

BUILDING_FOLDER = "building"
BUILT_FOLDER = "built"
WORKER_COMMAND = (sys.executable, "-m", "service.jobs.worker")

# A build looks at its cancel flag often; one that does not within this time is killed. Together under 5 seconds.
_CANCEL_GRACE_S = 3.0


@dataclass(slots=True)
class _Running:
    """The process of a running job, and the last lines of its stderr."""

    process: subprocess.Popen[bytes]
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=20))


class JobRunner:
    """All builds of a server. Threads: any."""

    def __init__(
        self,
        store: JobStore,
        settings: Settings,
        kinds: Mapping[JobKindName, JobKind],
        *,
        worker_command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self.store = store
        self._settings, self._kinds = settings, kinds
        self._worker_command = list(worker_command)
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        # Snapshots and restores only copy: they do not wait until a long build has ended.
        self._copies: SimpleQueue[str | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        # Why a running job has to end: cancelled or interrupted. Kept apart from processes: a job may be told before it
        # has one, or when it has none any more and its index is being opened.
        self._stops: dict[str, str] = {}
        self._closing = False
        self._threads: list[threading.Thread] = []

    @property
    def _root(self) -> Path:
        return self._settings.data_dir / BUILDING_FOLDER

    def start(self) -> None:
        """Remove what a crash left; run what was queued."""
        self._root.mkdir(exist_ok=True)
        for leftover in self._root.iterdir():
            log.info("removing what an unfinished build left: %s", leftover)
            remove_folder(leftover)
        for job in self.store.all():
            if job.state == "queued":
                self._enqueue(job)
        for number in range(self._settings.builds_parallel + 1):
            queue = self._queue if number else self._copies
            thread = threading.Thread(target=self._serve, args=(queue,), name=f"fullview-builds-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Ends running builds; their jobs are interrupted, queued ones stay queued."""
        self._closing = True
        for job in self.store.all():
            if job.state == "running":
                self._stop(job.job, "interrupted", grace_s=0.0)
        for _ in self._threads:
            self._queue.put(None)
        self._copies.put(None)
        for thread in self._threads:
            thread.join()

    def foresee(self, kind: JobKindName, request: msgspec.Raw) -> Foresight:
        """Check what can be known of a body before it is queued. Raises what its kind's foresee() raises."""
        return self._kinds[kind].foresee(request)

    def submit(
        self,
        kind: JobKindName,
        name: str,
        *,
        mode: str,
        alias: str | None = None,
        request: msgspec.Raw,
        foresight: Foresight,
    ) -> Job:
        """A new job in the queue. Raises ConflictError where what it builds has an active one."""
        job = Job(
            job=uuid.uuid4().hex,
            kind=kind,
            collection=name if kind != "decoder" else None,
            decoder=name if kind == "decoder" else None,
            mode=mode,
            alias=alias,
            request=request,
            passes=foresight.passes,
            warnings=foresight.warnings,
        )
        with self._lock:
            self._require_none_active(job)
            self.store.new(job)
        self._enqueue(job)
        return job

    def _enqueue(self, job: Job) -> None:
        (self._copies if job.kind in ("snapshot", "restore") else self._queue).put(job.job)

    def _require_none_active(self, job: Job) -> None:
        active = self.store.active_for(job.name, builds=job.builds)
        if active is not None:
            raise ConflictError(f"Build job {active.job} for {job.target} is {active.state}. Cancel it, or wait.")

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

    def is_stopping(self, job_id: str) -> bool:
        """True while a job still runs that was told to end."""
        return job_id in self._stops

    def cancel_builds_of(self, name: str, *, builds: Target = "collection") -> Job | None:
        """Cancel the active job of a collection or decoder; None where there is none."""
        job = self.store.active_for(name, builds=builds)
        if job is not None:
            with contextlib.suppress(ConflictError):  # it has just ended
                self.cancel(job.job)
        return job

    def restart(self, job_id: str) -> Job:
        """Queue a job again that failed, was cancelled or interrupted. Raises what its kind's foresee() raises too."""
        job = self.require_restartable(job_id)
        foresight = self.foresee(job.kind, job.request)
        with self._lock:
            self.require_restartable(job_id)
            self._require_none_active(job)
            job.state, job.phase, job.done, job.total, job.rate, job.eta_s = "queued", None, 0, 0, 0.0, None
            job.passes, job.warnings = foresight.passes, foresight.warnings
            job.error = job.report = job.started_at = job.ended_at = None
            self.store.save(job)
        self._enqueue(job)
        return job

    def require_restartable(self, job_id: str) -> Job:
        """The job. Raises NotFoundError, ConflictError."""
        job = self.store.get(job_id)
        if job.state not in RESTARTABLE:
            raise ConflictError(f"Build job {job_id} is {job.state}; only {', '.join(RESTARTABLE)} ones restart.")
        return job

    # --- one job, in a thread of the runner -----------------------------------

    def _serve(self, queue: SimpleQueue[str | None]) -> None:
        while True:
            job_id = queue.get()
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
            self._stops.pop(job_id, None)
        try:
            self.store.save(job)
        except Exception as failure:
            self._end(job, "failed", _error_of(failure, job_id))
            return
        log.info("job %s: building %s %s, mode %s", job_id, job.kind, job.name, job.mode)
        folder = self._root / job_id
        error: JobError | None = None
        try:
            folder.mkdir()
            state, error = self._build(job, folder)
        except Exception as failure:
            state, error = self._stops.get(job_id, "failed"), None
            if state == "failed":
                error = _error_of(failure, job_id)
        self._kinds[job.kind].finished(job)
        # The state changes last: who reads `cancelled` finds nothing left on the disk.
        remove_folder_if_there(folder)
        self._end(job, state, error)
        self._stops.pop(job_id, None)

    def _build(self, job: Job, folder: Path) -> tuple[str, JobError | None]:
        kind = self._kinds[job.kind]
        spec = kind.spec(job, folder / BUILT_FOLDER)
        outcome = self._hear(job, self._start_process(job.job, spec))
        if job.job not in self._stops and isinstance(outcome, Done):
            kind.publish(job, spec, outcome, folder / BUILT_FOLDER, is_stopped=lambda: job.job in self._stops)
            job.report, job.peak_memory_bytes = outcome.report, outcome.peak_memory_bytes
            job.warnings = [*job.warnings, *map(str, outcome.report.get("warnings", ()))]
            return "done", None
        if job.job not in self._stops and isinstance(outcome, Failed):
            return "failed", JobError(code=outcome.code, message=outcome.message)
        return self._stops.get(job.job, "cancelled"), None

    def _start_process(self, job_id: str, spec: Spec) -> _Running:
        process = subprocess.Popen(
            self._worker_command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that helpers of the build can be ended with it, and Ctrl-C reaches only us
        )
        running = _Running(process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()
        with self._lock:
            self._running[job_id] = running
            stopped = job_id in self._stops
        if stopped:
            _kill(process)
        return running

    def _hear(self, job: Job, running: _Running) -> Message:
        """Read messages until the process ends; the last one."""
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
        return outcome

    def _end(self, job: Job, state: str, error: JobError | None = None) -> None:
        job.error, job.ended_at, job.eta_s = error, time.time(), None
        self._log_end(job, state)
        job.state = state
        try:
            self.store.save(job)
        except Exception:
            # A full disk: the state in memory is right, and the next start says `interrupted`.
            log.exception("job %s: its state %s could not be written", job.job, state)

    def _log_end(self, job: Job, state: str) -> None:
        if state == "done" and job.report is not None and job.started_at is not None and job.ended_at is not None:
            said = self._kinds[job.kind].words_of(job.report, job.ended_at - job.started_at)
            log.info("job %s: %s %s done: %s", job.job, job.kind, job.name, said)
        else:
            reason = job.error.message if job.error is not None else "nothing is left of it"
            log.warning("job %s: %s %s %s: %s", job.job, job.kind, job.name, state, reason)

    def _stop(self, job_id: str, why: str, *, grace_s: float) -> None:
        with self._lock:
            first = self._stops.setdefault(job_id, why) == why
            running = self._running.get(job_id)
        if running is None:
            return
        if grace_s == 0.0 or not first:
            _kill(running.process)
            return
        assert running.process.stdin is not None
        with contextlib.suppress(OSError):  # it has just ended
            running.process.stdin.write(b"cancel\n")
            running.process.stdin.flush()
        timer = threading.Timer(grace_s, _kill, (running.process,))
        timer.daemon = True
        timer.start()


def _error_of(failure: Exception, job_id: str) -> JobError:
    problem = status_of(failure)
    if problem is None:
        log.error("job %s", job_id, exc_info=failure)
        return JobError(code="internal", message=f"{type(failure).__name__}: {failure}")
    return JobError(code=problem.code, message=problem.sentence)


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
