"""Jobs that fold what was written to a collection into its generation: compactions, and builds with mode `append`.

FoldJobs    a JobKind (kinds.py), for both
Compactor   starts a compaction where a write made one worth it

What is written while a job runs stays in the delta, on top of the new generation.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from service.engine import Engine
from service.errors import ConflictError, ServiceError
from service.jobs.collection_job import publish_built, words_of_report
from service.jobs.foresight import Foresight, foresee
from service.jobs.kept_queries import queries_of
from service.jobs.messages import Done, FoldSpec, Spec
from service.jobs.request import BuildBody, collection_options, to_spec
from service.jobs.runner import JobRunner
from service.jobs.store import ACTIVE, Job
from service.served import METRIC_OF_DISTANCE, Collection

log = logging.getLogger("fullview.compaction")

_AGAIN_AFTER_S = 60.0
"""After a compaction that failed the next one is not tried sooner: what failed, a full disk say, fails again."""


class CompactBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/admin/collections/{c}/compact."""

    rebuild: bool = False
    """Build the generation from nothing, even where it could be kept."""
    threads: int | None = None
    seed: int | None = None
    automatic: bool = False


class FoldJobs:
    """A JobKind (kinds.py). Threads: any."""

    def __init__(self, engine: Engine, kind: Literal["compaction", "append"]) -> None:
        self._engine, self._kind = engine, kind

    def foresee(self, request: msgspec.Raw) -> Foresight:
        """Raises ServiceError, OptionsError."""
        if self._kind == "append":
            body = msgspec.json.decode(request, type=BuildBody)
            return foresee(to_spec(body, self._engine, self._engine.settings.data_dir))
        return Foresight(passes=1)

    def spec(self, job: Job, out: Path) -> FoldSpec:
        """Raises NotFoundError, and as foresee() does."""
        engine = self._engine
        collection = engine.find(job.name)
        record = collection.record
        options = {"metric": METRIC_OF_DISTANCE[record.distance]} | collection_options(record.config)
        added = None
        if self._kind == "append":
            added = to_spec(msgspec.json.decode(job.request, type=BuildBody), engine, out)
            options |= added.options
        else:
            body = msgspec.json.decode(job.request, type=CompactBody)
            options |= {name: value for name in ("threads", "seed") if (value := getattr(body, name)) is not None}
        folder = engine.folder_of(record.id)
        return FoldSpec(
            out=str(out),
            old=None if record.generation is None else str(folder / record.generation),
            store=str(collection.written.store.path),
            sequence=collection.written.store.sequence,
            folded=record.folded,
            given_up=record.given_up,
            dim=record.size,
            options=options,
            added=added,
            queries=queries_of(folder),
            rebuild=added is None and msgspec.json.decode(job.request, type=CompactBody).rebuild,
        )

    def publish(self, job: Job, spec: Spec, done: Done, built: Path, *, is_stopped: Callable[[], bool]) -> None:
        """The generation enters its collection. Raises ConflictError where that changed meanwhile."""
        assert isinstance(spec, FoldSpec), "the runner hands each kind its own specs"
        engine = self._engine
        old = engine.find(job.name).record
        if str(engine.folder_of(old.id) / str(old.generation)) != (spec.old or str(engine.folder_of(old.id) / "None")):
            raise ConflictError(
                f"Collection {job.name!r} was built anew while this job ran. Nothing was changed by it."
            )
        generation = None if done.empty else os.urandom(8).hex()
        record = replace(old, generation=generation, folded=max(spec.sequence, old.folded))
        if done.empty:
            engine.publish(record, None, alias=job.alias, may_replace=True)
        else:
            publish_built(engine, record, built, alias=job.alias, may_replace=True, is_stopped=is_stopped)

    def finished(self, job: Job) -> None:
        """Nothing is held."""

    def words_of(self, report: Mapping[str, Any], seconds: float) -> str:
        """Rows, seconds and recall."""
        return words_of_report(report, seconds)


@dataclass(slots=True)
class _Attempt:
    at: float
    job: str


class Compactor:
    """Starts compactions by itself. Threads: any."""

    def __init__(self, engine: Engine, runner: JobRunner) -> None:
        self._engine, self._runner = engine, runner
        self._attempts: dict[str, _Attempt] = {}

    def after_write(self, collection: Collection) -> None:
        """Start a compaction of the collection where enough of it changed."""
        settings, view = self._engine.settings, collection.written.view
        rows = view.n
        changed = view.count
        if not settings.compact_auto or changed < max(settings.compact_rows, settings.compact_share * rows):
            return
        name = collection.record.name
        before = self._attempts.get(collection.record.id)
        if before is not None:
            job = self._runner.store.find(before.job)
            failed = job is not None and job.state not in (*ACTIVE, "done")
            if (job is not None and job.state in ACTIVE) or (failed and time.monotonic() - before.at < _AGAIN_AFTER_S):
                return
        if self._runner.store.active_for(name) is not None:
            return
        try:
            job = compact(self._runner, name, CompactBody(automatic=True))
        except ServiceError as error:
            log.warning("collection %s is not compacted: %s", name, error)
            return
        if before is not None:
            self._forget(before.job)
        self._attempts[collection.record.id] = _Attempt(time.monotonic(), job.job)

    def _forget(self, job: str) -> None:
        """Of compactions that started by themselves the last one is kept."""
        try:
            self._runner.store.delete(job)
        except ServiceError:
            return


def compact(runner: JobRunner, name: str, body: CompactBody) -> Job:
    """A compaction in the queue. Raises ConflictError where the collection has an active job."""
    raw = msgspec.Raw(msgspec.json.encode(body))
    foresight = runner.foresee("compaction", raw)
    return runner.submit("compaction", name, mode="compact", request=raw, foresight=foresight)


__all__ = ["CompactBody", "Compactor", "FoldJobs", "compact"]
