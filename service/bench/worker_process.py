"""The parent's side of the protocol: a contender's process, asked one thing at a time, watched from outside.

WorkerProcess   start, ask, memory, close. A context manager: leaving it ends the process, whatever it is doing.
Memory          resident memory of a process by kind
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from index.errors import VectorIndexError
from service.bench.workers.searcher import Job

START = Path(__file__).parent / "workers" / "start.py"
SAMPLE_SECONDS = 0.02
END_SECONDS = 5.0


class WorkerError(VectorIndexError):
    """A contender failed at what it was asked; the text says what it said."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of a process. anonymous: its own; file: mapped files, which the system may drop."""

    anonymous: int = 0
    file: int = 0

    def __sub__(self, other: Memory) -> Memory:
        return Memory(self.anonymous - other.anonymous, self.file - other.file)

    @property
    def total(self) -> int:
        """Both kinds."""
        return self.anonymous + self.file


class WorkerProcess:
    """One contender's process. Used by one thread. peak: the most anonymous memory seen during the last ask()."""

    def __init__(self, worker: str, python: Path, log: Path) -> None:
        self.worker, self.peak = worker, 0
        self._log = log
        self._errors: BinaryIO = log.open("ab")
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        # Threads of a peer that spin while they wait would slow down whoever is measured after it.
        environment |= {"OMP_WAIT_POLICY": "PASSIVE", "RUST_LOG": "error", "PYTHONUNBUFFERED": "1"}
        self._child = subprocess.Popen(
            [str(python), "-P", str(START), worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, do: str, *, on_progress: Callable[[str, int, int], None] | None = None, **fields: Any) -> Any:
        """Send one command and wait for its answer. Raises WorkerError."""
        if isinstance(fields.get("job"), Job):
            fields["job"] = asdict(fields["job"])
        self.peak = self.memory().anonymous
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._ended(do)) from None
        while True:
            try:
                line = self._answers.get(timeout=SAMPLE_SECONDS)
            except queue.Empty:
                self.peak = max(self.peak, self.memory().anonymous)
                continue
            if line is None:
                raise WorkerError(self._ended(do))
            message = json.loads(line)
            if "progress" in message:
                if on_progress is not None:
                    on_progress(*message["progress"])
            elif "error" in message:
                raise WorkerError(f"{self.worker}, {do}: {message['error']}")
            else:
                return message["ok"]

    def memory(self) -> Memory:
        """Resident memory now; zeros where the process has ended or the system does not tell."""
        try:
            text = Path(f"/proc/{self._child.pid}/status").read_text(encoding="ascii")
        except OSError:
            return Memory()
        kinds = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if line[:3] == "Rss"}
        return Memory(kinds.get("RssAnon", 0) + kinds.get("RssShmem", 0), kinds.get("RssFile", 0))

    def close(self) -> None:
        """End the process: by closing its stdin, else by signals to all that it started."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(END_SECONDS)
                break
        self._reader.join()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._errors.close()

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _ended(self, do: str) -> str:
        code = self._child.wait()
        self._errors.flush()
        lines = [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f"{self.worker} ended with code {code} while it was asked to {do}: {' '.join(lines[-3:])[-500:]}"
