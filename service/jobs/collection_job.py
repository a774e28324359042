"""Jobs that build collections: what their body asks, what their process is told, how the index comes to serve."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from index.errors import BuildCancelledError, VectorIndexError
from service.catalogue import CollectionRecord
from service.engine import Engine
from service.errors import ConflictError
from service.folders import move_into, remove_generation
from service.jobs.foresight import Foresight, foresee
from service.jobs.kept_queries import take_queries
from service.jobs.messages import CHANGE_ADVICE, BuildSpec, Done, Spec
from service.jobs.request import BuildBody, to_spec
from service.jobs.store import Job
from service.served import DISTANCE_OF_METRIC


class CollectionJobs:
    """A JobKind (kinds.py)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def foresee(self, request: msgspec.Raw) -> Foresight:
        """Reads headers of files. Raises ServiceError, OptionsError."""
        return foresee(to_spec(_body(request), self._engine, self._engine.settings.data_dir))

    def spec(self, job: Job, out: Path) -> BuildSpec:
        """Raises as foresee() does."""
        spec = to_spec(_body(job.request), self._engine, out)
        if job.mode == "replace" and self._engine.exists(job.name):
            # What is written from now on stays, on top of what is built.
            spec.given_up = self._engine.find(job.name).written.store.sequence
        return spec

    def publish(self, job: Job, spec: Spec, done: Done, built: Path, *, is_stopped: Callable[[], bool]) -> None:
        """The index enters its collection. Raises ConflictError where that changed meanwhile."""
        assert isinstance(spec, BuildSpec), "the runner hands each kind its own specs"
        engine, name = self._engine, job.name
        old = engine.find(name).record if engine.exists(name) else None
        record = CollectionRecord(
            id=old.id if old is not None else job.job,
            name=name,
            size=done.dim,
            distance=DISTANCE_OF_METRIC[str(done.metric)],
            config=old.config if old is not None else b"{}",
            generation=os.urandom(8).hex(),
            generation_number=0,
            created_at=old.created_at if old is not None else time.time(),
            folded=max(spec.given_up, old.folded if old is not None else 0),
            given_up=max(spec.given_up, old.given_up if old is not None else 0),
        )
        if old is not None and spec.expected_dim is not None:
            _require_same_kind(old, record)
        publish_built(engine, record, built, alias=job.alias, may_replace=job.mode == "replace", is_stopped=is_stopped)
        take_queries(built, engine.folder_of(record.id))

    def finished(self, job: Job) -> None:
        """Nothing is held."""

    def words_of(self, report: Mapping[str, Any], seconds: float) -> str:
        """Rows, seconds and recall."""
        return words_of_report(report, seconds)


def words_of_report(report: Mapping[str, Any], seconds: float) -> str:
    """What the log says of a generation."""
    recall = report.get("measured_recall") or {}
    shown = ", ".join(f"{name} {value:.4g}" for name, value in recall.items())
    return f"{report.get('rows')} rows in {seconds:.1f} s, measured: {shown}"


def publish_built(
    engine: Engine,
    record: CollectionRecord,
    built: Path,
    *,
    alias: str | None = None,
    may_replace: bool,
    is_stopped: Callable[[], bool],
) -> None:
    """Put a built folder in its place, open it and let it serve. Raises ConflictError, BuildCancelledError."""
    folder = move_into(engine.folder_of(record.id), built, str(record.generation))
    try:
        index = engine.open(folder)
    except (VectorIndexError, OSError):
        remove_generation(folder)
        raise
    if is_stopped():
        index.close()
        remove_generation(folder)
        raise BuildCancelledError("cancelled while the index was being opened")
    engine.publish(record, index, alias=alias, may_replace=may_replace)


def _body(request: msgspec.Raw) -> BuildBody:
    return msgspec.json.decode(request, type=BuildBody)


def _require_same_kind(old: CollectionRecord, new: CollectionRecord) -> None:
    if (old.size, old.distance) != (new.size, new.distance):
        raise ConflictError(
            f"Collection {old.name!r} has vectors of dimension {old.size} and {old.distance}, the build has {new.size} and "
            f"{new.distance}. Build what the collection has, or {CHANGE_ADVICE}."
        )
