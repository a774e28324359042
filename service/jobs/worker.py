"""The process of one build: `python -m service.jobs.worker`, started by service.jobs.runner.

Reads a BuildSpec, a FoldSpec or a DecoderSpec from stdin, builds, writes messages to stdout. A thread waits on stdin:
`cancel` sets the flag that the build looks at; the end of stdin means that the server is gone, and the whole process group
ends at once.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from index.errors import BuildCancelledError
from index.options import BuildOptions
from index.progress import peak_bytes
from service.errors import status_of
from service.jobs.foresight import require_dim
from service.jobs.kept_queries import QUERIES_NAME, keep_queries
from service.jobs.messages import (
    BuildSpec,
    Cancelled,
    DecoderSpec,
    Done,
    Failed,
    FoldSpec,
    Message,
    Progress,
    RestoreSpec,
    SnapshotSpec,
    Spec,
)

_PROGRESS_EVERY_S = 0.1

Build = Callable[..., Any]


def main(build: Build | None = None, build_decoder: Build | None = None) -> int:
    """Run one build. Returns the exit code: 0 unless it failed.

    build, build_decoder: stand in for index.build and service.jobs.decoder_build.build_decoder in tests.
    """
    logging.basicConfig(stream=sys.stderr)
    messages = _own_stdout()
    # The descriptor itself, not sys.stdin: a thread that waits inside a buffered file aborts the interpreter at its end.
    line, rest = _read_line(sys.stdin.fileno())
    spec = msgspec.json.decode(line, type=Spec)
    cancel = threading.Event()
    threading.Thread(target=_obey, args=(sys.stdin.fileno(), rest, cancel), daemon=True).start()
    send = _Sender(messages)
    try:
        if isinstance(spec, BuildSpec):
            result = _run(spec, build or _index_build(), send, cancel)
        elif isinstance(spec, FoldSpec):
            result = _run_fold(spec, send, cancel)
        elif isinstance(spec, SnapshotSpec | RestoreSpec):
            result = _run_snapshot(spec, send, cancel)
        else:
            result = _run_decoder(spec, build_decoder or _decoder_build(), send, cancel)
    except BuildCancelledError:
        result = Cancelled()
    except Exception as error:
        problem = status_of(error)
        if problem is None:
            logging.exception("the build failed")
        message = problem.sentence if problem is not None else f"{type(error).__name__}: {error}"
        result = Failed(code=problem.code if problem is not None else "internal", message=message)
    send(result)
    return 0 if isinstance(result, Done) else 1


def _run(spec: BuildSpec, build: Build, send: _Sender, cancel: threading.Event) -> Message:
    if spec.expected_dim is not None:
        _require_dim(spec)
    report = build(
        spec.source,
        spec.out,
        options=BuildOptions(**spec.options),
        ids=spec.id,
        payload=spec.payload_names,
        queries=spec.queries,
        vector=spec.vector,
        on_progress=send.progress,
        cancel=cancel,
    )
    if spec.queries is not None:
        keep_queries(spec.queries, Path(spec.out).with_name(QUERIES_NAME))
    return _done(report, metric=str(getattr(report.metric, "value", report.metric)))


def _run_decoder(spec: DecoderSpec, build: Build, send: _Sender, cancel: threading.Event) -> Message:
    return _done(build(spec, on_progress=send.progress, cancel=cancel))


def _run_fold(spec: FoldSpec, send: _Sender, cancel: threading.Event) -> Message:
    from service.jobs.fold_points import fold_points

    report = fold_points(spec, on_progress=send.progress, cancel=cancel)
    if report is None:
        nothing = {"rows": 0, "choices": ["no point with a vector is left: nothing was built"]}
        return Done(
            dim=spec.dim, metric=spec.options["metric"], report=nothing, peak_memory_bytes=peak_bytes(), empty=True
        )
    return _done(report, metric=str(getattr(report.metric, "value", report.metric)))


def _run_snapshot(spec: SnapshotSpec | RestoreSpec, send: _Sender, cancel: threading.Event) -> Message:
    from service.jobs.snapshot_jobs import make_snapshot, restore_snapshot

    if isinstance(spec, SnapshotSpec):
        report = make_snapshot(spec, on_progress=send.progress, cancel=cancel)
    else:
        report = restore_snapshot(spec, on_progress=send.progress, cancel=cancel)
    return Done(report=report, peak_memory_bytes=peak_bytes())


def _done(report: Any, *, metric: str | None = None) -> Done:
    return Done(
        dim=int(report.dim),
        metric=metric,
        report=msgspec.to_builtins(report.to_dict(), enc_hook=_plain),
        peak_memory_bytes=peak_bytes(),
    )


def _require_dim(spec: BuildSpec) -> None:
    from index.sources import open_source

    require_dim(spec, open_source(spec.source, vector=spec.vector).dim)


def _index_build() -> Build:
    from index import build

    chosen: Build = build
    return chosen


def _decoder_build() -> Build:
    from service.jobs.decoder_build import build_decoder

    chosen: Build = build_decoder
    return chosen


def _own_stdout() -> BinaryIO:
    """The pipe to the server, out of reach of anything that prints: file descriptor 1 leads to stderr from here on."""
    pipe = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), line_buffering=True)
    return pipe


def _read_line(descriptor: int) -> tuple[bytes, bytes]:
    """The first line, and what came after it."""
    came = b""
    while b"\n" not in came:
        chunk = os.read(descriptor, 65_536)
        if not chunk:
            break
        came += chunk
    line, _, rest = came.partition(b"\n")
    return line, rest


def _obey(descriptor: int, came: bytes, cancel: threading.Event) -> None:
    while True:
        if b"cancel\n" in came:
            cancel.set()
        chunk = os.read(descriptor, 4096)
        if not chunk:
            break
        came = came[-16:] + chunk
    # The runner starts each build in a process group of its own: helpers of the build go with it.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


class _Sender:
    """Writes messages; progress at most ten times a second, but the first of each phase always."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe, self._phase, self._sent_at = pipe, "", 0.0
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self._pipe.write(msgspec.json.encode(message) + b"\n")

    def progress(self, event: Any) -> None:
        now = time.monotonic()
        finished = event.done >= event.total
        if event.phase == self._phase and not finished and now - self._sent_at < _PROGRESS_EVERY_S:
            return
        self._phase, self._sent_at = event.phase, now
        self(
            Progress(
                phase=event.phase,
                done=int(event.done),
                total=int(event.total),
                rate=float(event.rate),
                eta_s=None if event.eta_s is None else float(event.eta_s),
                peak_memory_bytes=peak_bytes(),
            )
        )


def _plain(value: Any) -> Any:
    """What msgspec does not know: numpy scalars and arrays, paths, dataclasses."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
