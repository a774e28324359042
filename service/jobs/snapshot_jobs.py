"""Jobs that make a snapshot of a collection, and that restore one: their kinds, and what their process does.

SnapshotJobs RestoreJobs   JobKinds (kinds.py)
make_snapshot() restore_snapshot()   in the process of the job

A snapshot is of one moment: the generation is held open, and points.db is copied while nobody writes, before the job's
process starts; what takes long goes on beside reads and writes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from index.errors import BuildCancelledError, VectorIndexError
from index.progress import Steps
from service.catalogue import CollectionRecord
from service.engine import SNAPSHOTS_FOLDER, Engine
from service.errors import ConflictError, MalformedError, NotFoundError, ServiceError
from service.folders import move_into, remove_folder_if_there
from service.jobs.foresight import Foresight
from service.jobs.messages import Done, RestoreSpec, SnapshotSpec, Spec
from service.jobs.request import FullviewBody, require_ranges
from service.jobs.store import Job
from service.served import DISTANCE_OF_METRIC, METRIC_OF_DISTANCE, Lease
from service.snapshots import (
    FORMAT_VERSION,
    GENERATION_FOLDER,
    PART_SUFFIX,
    STORE_NAME,
    Description,
    Part,
    read_snapshot,
    sha256_of,
    snapshot_path,
    write_snapshot,
)


class SnapshotBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a snapshot job is asked for. name: of the file."""

    name: str


class RestoreBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a restore job is asked for: a snapshot of a collection, or a file that was uploaded (deleted afterwards)."""

    collection: str | None = None
    snapshot: str | None = None
    uploaded: str | None = None
    checksum: str | None = None


class SnapshotJobs:
    """A JobKind (kinds.py). Threads: any."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._leases: dict[str, Lease] = {}

    def foresee(self, request: msgspec.Raw) -> Foresight:
        """Nothing that could be known."""
        return Foresight(passes=1)

    def spec(self, job: Job, out: Path) -> SnapshotSpec:
        """Takes the moment: the generation is held until finished(). Raises NotFoundError, NoRoomError."""
        engine = self._engine
        collection = engine.find(job.name)
        copied = out.with_name(STORE_NAME)
        with collection.written.lock:
            lease = engine.lease(job.name)
            self._leases[job.job] = lease
            there = collection.written.copy_to(copied)
            sequence = collection.written.store.sequence
        record = lease.record
        return SnapshotSpec(
            out=str(out),
            generation=None if lease.generation is None else str(lease.generation.folder),
            store=str(copied) if there else None,
            collection=record.name,
            size=record.size,
            distance=record.distance,
            config=msgspec.Raw(record.config),
            generation_number=record.generation_number,
            folded=record.folded,
            given_up=record.given_up,
            sequence=sequence,
        )

    def publish(self, job: Job, spec: Spec, done: Done, built: Path, *, is_stopped: Callable[[], bool]) -> None:
        """The file takes its name. Raises BuildCancelledError."""
        if is_stopped():
            raise BuildCancelledError("cancelled before the snapshot had its name")
        record = self._leases[job.job].record
        if not self._engine.exists(job.name) or self._engine.find(job.name).record.id != record.id:
            raise ConflictError(
                f"Collection {job.name!r} was deleted while its snapshot was made. Nothing is left of it."
            )
        folder = self._engine.folder_of(record.id) / SNAPSHOTS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        built.rename(folder / msgspec.json.decode(job.request, type=SnapshotBody).name)

    def finished(self, job: Job) -> None:
        """Let the generation go."""
        lease = self._leases.pop(job.job, None)
        if lease is not None:
            lease.release()

    def words_of(self, report: Mapping[str, Any], seconds: float) -> str:
        """Bytes and seconds."""
        return f"snapshot of {report.get('bytes', 0):,} bytes in {seconds:.1f} s"


class RestoreJobs:
    """A JobKind (kinds.py). Threads: any."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def foresee(self, request: msgspec.Raw) -> Foresight:
        """Raises NotFoundError, BadNameError."""
        self._path(msgspec.json.decode(request, type=RestoreBody))
        self._engine.require_descriptors()
        return Foresight(passes=1)

    def spec(self, job: Job, out: Path) -> RestoreSpec:
        """Raises as foresee() does."""
        body = msgspec.json.decode(job.request, type=RestoreBody)
        return RestoreSpec(out=str(out), path=str(self._path(body)), checksum=body.checksum)

    def publish(self, job: Job, spec: Spec, done: Done, built: Path, *, is_stopped: Callable[[], bool]) -> None:
        """The files enter a collection of a new id, which takes the name. Raises ConflictError, CorruptIndexError."""
        engine = self._engine
        described = msgspec.convert(done.report["described"], type=_Described)
        record = CollectionRecord(
            id=job.job,
            name=job.name,
            size=described.size,
            distance=described.distance,
            config=msgspec.json.encode(described.config),
            generation=os.urandom(8).hex() if described.generation else None,
            generation_number=described.generation_number,
            created_at=time.time(),
            folded=described.folded,
            given_up=described.given_up,
        )
        home = engine.folder_of(record.id)
        try:
            if record.generation is not None:
                move_into(home, built / GENERATION_FOLDER, record.generation)
            if (built / STORE_NAME).exists():
                move_into(home, built / STORE_NAME, STORE_NAME)
            engine.restore(record, sequence=described.sequence, is_stopped=is_stopped)
        except BaseException:
            remove_folder_if_there(home)
            raise
        done.report.pop("described")

    def finished(self, job: Job) -> None:
        """An uploaded file is not kept."""
        body = msgspec.json.decode(job.request, type=RestoreBody)
        if body.uploaded is not None:
            self._path(body).unlink(missing_ok=True)

    def words_of(self, report: Mapping[str, Any], seconds: float) -> str:
        """Bytes and seconds."""
        return f"restored from {report.get('bytes', 0):,} bytes in {seconds:.1f} s"

    def _path(self, body: RestoreBody) -> Path:
        if body.uploaded is not None:
            return uploaded_snapshot(self._engine, body.uploaded)
        assert body.collection is not None, "a body names an upload, or a collection and its snapshot"
        record = self._engine.find(body.collection).record
        return snapshot_path(self._engine.folder_of(record.id) / SNAPSHOTS_FOLDER, str(body.snapshot))


class _Described(msgspec.Struct):
    size: int
    distance: str
    config: dict[str, Any]
    generation: bool
    generation_number: int
    folded: int
    given_up: int
    sequence: int


def uploaded_snapshot(engine: Engine, upload: str) -> Path:
    """Where an uploaded snapshot waits for its job. upload: made here, never a client's word."""
    return engine.settings.data_dir / "uploads" / upload / f"uploaded{PART_SUFFIX}"


def make_snapshot(spec: SnapshotSpec, *, on_progress: Callable[[Any], None], cancel: threading.Event) -> dict[str, Any]:
    """Write the archive; a report."""
    steps = Steps(on_progress, cancel)
    steps.start("write", 1)

    def describe(parts: dict[str, Part]) -> Description:
        return Description(
            format_version=FORMAT_VERSION,
            collection=spec.collection,
            size=spec.size,
            distance=spec.distance,
            config=spec.config,
            generation=spec.generation is not None,
            generation_number=spec.generation_number,
            folded=spec.folded,
            given_up=spec.given_up,
            sequence=spec.sequence,
            created_at=time.time(),
            files=parts,
        )

    out = Path(spec.out)
    write_snapshot(
        out,
        generation=None if spec.generation is None else Path(spec.generation),
        store=None if spec.store is None else Path(spec.store),
        describe=describe,
        check=steps.advance,
    )
    return {"bytes": out.stat().st_size, "sha256": sha256_of(out)}


def restore_snapshot(
    spec: RestoreSpec, *, on_progress: Callable[[Any], None], cancel: threading.Event
) -> dict[str, Any]:
    """Unpack and verify the archive; a report. Raises MalformedError, CorruptIndexError."""
    steps = Steps(on_progress, cancel)
    path = Path(spec.path)
    if not path.exists():
        raise NotFoundError(f"Snapshot {path.name} went away while it was being restored. Nothing was changed.")
    steps.start("write", path.stat().st_size)
    if spec.checksum is not None and sha256_of(path) != spec.checksum.lower():
        raise MalformedError(
            f"{path.name} has SHA-256 {sha256_of(path)}, the request says {spec.checksum}. Nothing was changed; transfer it "
            "again."
        )
    described = read_snapshot(path, Path(spec.out), check=steps.advance)
    require_config(described.config, path.name)
    if described.distance not in METRIC_OF_DISTANCE:
        raise MalformedError(
            f"{path.name} has distance {described.distance!r}; there are {', '.join(METRIC_OF_DISTANCE)}."
        )
    if described.generation:
        _require_fitting(Path(spec.out) / GENERATION_FOLDER, described)
    members = msgspec.to_builtins(_members_of(described))
    return {"bytes": path.stat().st_size, "described": members}


def _members_of(described: Description) -> dict[str, Any]:
    """The description as plain members."""
    members = {name: getattr(described, name) for name in _Described.__struct_fields__ if name != "config"}
    return members | {"config": msgspec.json.decode(described.config)}


def require_config(config: msgspec.Raw, name: str) -> None:
    """Raises MalformedError for what no collection's configuration can be."""
    try:
        kept = msgspec.json.decode(config, type=_Config)
        if kept.fullview is not None:
            require_ranges(kept.fullview)
    except (msgspec.DecodeError, ServiceError) as error:
        raise MalformedError(
            f"{name}: the collection's configuration cannot be read: {error}. Nothing was changed."
        ) from None


class _Config(msgspec.Struct):
    """Members that are read, by the types they are read as."""

    vector: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    payload_schema: dict[str, dict[str, Any]] = {}
    hnsw_config: dict[str, Any] = {}
    optimizers_config: dict[str, Any] = {}
    optimizer_config: dict[str, Any] = {}
    fullview: FullviewBody | None = None


def _require_fitting(folder: Path, described: Description) -> None:
    """Raises MalformedError where the generation is not what the description says."""
    from index.manifest import read_manifest

    try:
        manifest = read_manifest(folder)
    except VectorIndexError as error:
        raise MalformedError(f"The snapshot's generation cannot be opened: {error}") from None
    if (manifest.dim, DISTANCE_OF_METRIC.get(manifest.metric)) != (described.size, described.distance):
        raise MalformedError(
            f"The snapshot's generation has dimension {manifest.dim} and metric {manifest.metric}, its description says "
            f"{described.size} and {described.distance}. Nothing was changed."
        )


__all__ = [
    "RestoreBody",
    "RestoreJobs",
    "SnapshotBody",
    "SnapshotJobs",
    "make_snapshot",
    "require_config",
    "restore_snapshot",
    "uploaded_snapshot",
]
