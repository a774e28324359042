"""The body of POST /v1/admin/builds: what it may hold, what is checked at once, what the build's process is told.

check()        everything that can be refused before a job exists
to_spec()      body -> BuildSpec, paths resolved again at the moment of the build

Invariant: members that a body leaves out take the collection's own settings where it has some, else the defaults of
index.BuildOptions, which stand nowhere else.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from index.options import BuildOptions
from service.engine import Engine
from service.errors import ConflictError, MalformedError, NotFoundError, OutOfRangeError
from service.import_paths import resolve
from service.jobs.messages import CHANGE_ADVICE, BuildSpec
from service.names import check_name
from service.served import METRIC_OF_DISTANCE
from service.settings import Settings
from service.uploads import upload_file


class FileBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where rows come from: a path inside the import root, or an upload."""

    path: str | None = None
    upload: str | None = None


class SourceBody(FileBody, forbid_unknown_fields=True, kw_only=True):
    """The rows to build from."""

    vector: str | None = None
    id: str | None = None
    payload: list[str] | Literal["*"] | None = None


class BuildBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/admin/builds."""

    collection: str
    source: SourceBody
    metric: Literal["cosine", "dot", "l2"] | None = None
    memory_budget: str | float | None = None
    preview: Literal["auto", "graph", "ivf", "flat"] | None = None
    bits: int | str | None = None
    recall: float | None = None
    queries: FileBody | None = None
    on_bad_rows: Literal["fail", "skip"] | None = None
    mode: Literal["create", "replace", "append"] = "create"
    allow_change: bool = False
    """With mode replace: the build may have another dimension or metric than the collection."""
    alias: str | None = None
    threads: int | None = None
    seed: int | None = None


class FullviewBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """`fullview` in the body that creates a collection: what its builds take unless they say otherwise."""

    memory_budget: str | float | None = None
    preview: Literal["auto", "graph", "ivf", "flat"] | None = None
    bits: int | str | None = None
    recall: float | None = None


class _Kept(msgspec.Struct):
    fullview: FullviewBody | None = None


_OPTION_NAMES = tuple(field.name for field in fields(BuildOptions))


def check(body: BuildBody, engine: Engine) -> None:
    """Raises what can be known at once: names, paths, mode, options. Reads the file system."""
    check_name(body.collection, "collection")
    if engine.is_alias(body.collection):
        raise MalformedError(f"collection {body.collection!r} is an alias. Name the collection itself.")
    if body.alias is not None:
        check_name(body.alias, "alias")
        if body.alias == body.collection or (engine.exists(body.alias) and not engine.is_alias(body.alias)):
            raise ConflictError(f"alias {body.alias!r}: a collection has that name. Choose another alias.")
    if body.allow_change and body.mode != "replace":
        raise MalformedError(f'allow_change came with mode {body.mode!r}; it only goes with mode "replace".')
    if engine.exists(body.collection):
        record = engine.find(body.collection).record
        if body.mode == "create" and engine.has_points(body.collection):
            raise ConflictError(f'Collection {body.collection!r} already exists. mode "replace" replaces it.')
        metric = METRIC_OF_DISTANCE[record.distance]
        if not body.allow_change and body.metric not in (None, metric):
            raise ConflictError(
                f"Collection {body.collection!r} has metric {metric}, the build asks for {body.metric}. "
                f"Leave metric out, or {CHANGE_ADVICE}."
            )
    elif body.mode == "append":
        raise NotFoundError(f'Collection {body.collection!r} does not exist. Build it with mode "create".')
    _require_ranges(body)
    engine.require_descriptors()
    source_file(body.source, engine.settings, member="source.path")
    if body.queries is not None:
        source_file(body.queries, engine.settings, member="queries.path")


def to_spec(body: BuildBody, engine: Engine, out: Path) -> BuildSpec:
    """What the build's process is told. Raises as check() does."""
    check(body, engine)
    expected_dim = None
    given = {name: getattr(body, name) for name in _OPTION_NAMES if getattr(body, name, None) is not None}
    if engine.exists(body.collection):
        record = engine.find(body.collection).record
        given = {"metric": METRIC_OF_DISTANCE[record.distance]} | collection_options(record.config) | given
        expected_dim = None if body.allow_change else record.size
    return BuildSpec(
        source=source_file(body.source, engine.settings, member="source.path"),
        out=str(out),
        vector=body.source.vector,
        id=body.source.id,
        payload=body.source.payload,
        queries=None if body.queries is None else source_file(body.queries, engine.settings, member="queries.path"),
        options=given,
        expected_dim=expected_dim,
    )


def source_file(body: FileBody, settings: Settings, *, member: str) -> str:
    """The absolute path of a source. Raises MalformedError, NotFoundError."""
    if (body.path is None) == (body.upload is None):
        raise MalformedError(f"{member.removesuffix('.path')} needs either path or upload. Give one of them.")
    if body.path is not None:
        return resolve(settings.import_folder, body.path, member=member)
    return str(upload_file(settings.data_dir, str(body.upload)))


def collection_options(config: bytes) -> dict[str, Any]:
    """Options of builds that a collection was created with."""
    kept = msgspec.json.decode(config, type=_Kept).fullview
    given: dict[str, Any] = msgspec.to_builtins(kept) if kept is not None else {}
    return given


def _require_ranges(body: BuildBody | FullviewBody) -> None:
    if body.recall is not None and not 0.0 < body.recall < 1.0:
        raise OutOfRangeError(f"recall is {body.recall}; it must be above 0 and below 1.")
    if body.bits is not None and body.bits not in (1, 2, 4, 8, "auto", "pq"):
        raise OutOfRangeError(f'bits is {body.bits!r}; it must be 1, 2, 4, 8, "pq" or "auto".')
    threads = getattr(body, "threads", None)
    if threads is not None and threads < 1:
        raise OutOfRangeError(f"threads is {threads}; it must be at least 1.")


def require_ranges(body: FullviewBody) -> None:
    """Raises OutOfRangeError for settings of a collection that no build could take."""
    _require_ranges(body)
