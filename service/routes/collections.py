"""/collections and /collections/{c}: create, get, change, delete, list, exists; payload indexes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Raw
from starlette.responses import Response

from service.answers import DONE, decode, ok, read_body
from service.collection_config import changed_config, parse_schema, with_index, without_index
from service.collection_info import collection_info, count_with, indexed_fields, points_count
from service.errors import ConflictError, MalformedError, OutOfRangeError, UnsupportedError
from service.jobs.request import FullviewBody, require_ranges
from service.jobs.store import ACTIVE, Target
from service.names import check_name
from service.payload_paths import parse_path
from service.routes.context import parts, started, timeout_s
from service.slips import decode_known

DIMENSION_MAX = 65_536
_DISTANCES = ("Cosine", "Dot", "Euclid")
_LOOK_EVERY_S = 0.02
_NULL = Raw(b"null")

router = APIRouter()


class VectorBody(msgspec.Struct, kw_only=True):
    """`vectors` of a create: one dense vector."""

    size: int
    distance: str
    multivector_config: Raw = _NULL


class CreateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """PUT /collections/{c}. Read by decode_known(): unknown members are ignored, but not those of ours, and no slips."""

    vectors: Raw = _NULL
    sparse_vectors: Raw = _NULL
    sharding_method: str | None = None
    fullview: FullviewBody | None = None
    # Qdrant's settings, echoed as they came.
    shard_number: Raw = _NULL
    replication_factor: Raw = _NULL
    write_consistency_factor: Raw = _NULL
    on_disk_payload: Raw = _NULL
    hnsw_config: Raw = _NULL
    wal_config: Raw = _NULL
    optimizers_config: Raw = _NULL
    optimizer_config: Raw = _NULL
    quantization_config: Raw = _NULL
    quantization: Raw = _NULL
    strict_mode_config: Raw = _NULL
    metadata: Raw = _NULL
    init_from: Raw = _NULL
    payload: Raw = _NULL
    id_tracker: Raw = _NULL


class ChangeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """PATCH /collections/{c}. Qdrant's settings are echoed; metadata is merged."""

    vectors: dict[str, Any] | None = None
    optimizers_config: dict[str, Any] | None = None
    optimizer_config: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    hnsw_config: dict[str, Any] | None = None
    quantization_config: Any = None
    sparse_vectors: Raw = _NULL
    strict_mode_config: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    fullview: FullviewBody | None = None


class IndexBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """PUT /collections/{c}/index."""

    field_name: str
    field_schema: Raw = _NULL


_OF_INDEXES = {"field": "field_name", "key": "field_name", "schema": "field_schema", "field_type": "field_schema"}
_INSTEAD = {
    "vector_config": "vectors",
    "vectors_config": "vectors",
    "size": "vectors.size",
    "distance": "vectors.distance",
} | {name: f"fullview.{name}" for name in ("memory_budget", "preview", "bits", "recall")}


@router.get("/collections")
async def list_collections(request: Request) -> Response:
    """Names of all collections."""
    names = [{"name": collection.record.name} for collection in parts(request).engine.all()]
    return ok({"collections": names}, started(request))


@router.get("/collections/{collection}/exists")
async def exists(request: Request, collection: str) -> Response:
    """True for a collection or an alias."""
    return ok({"exists": parts(request).engine.exists(collection)}, started(request))


@router.put("/collections/{collection}")
async def create(request: Request, collection: str) -> Response:
    """An empty collection."""
    own = parts(request)
    check_name(collection, "collection")
    body = decode_known(await read_body(request), CreateBody, _INSTEAD)
    vector = _vector_of(body)
    active = own.runner.store.active_for(collection)
    if active is not None:
        raise ConflictError(
            f"Job {active.job} ({active.kind}), which is {active.state}, makes collection {collection!r}. Wait, or cancel it."
        )
    config = await _kept_config(request)
    await asyncio.to_thread(own.engine.create, collection, size=vector.size, distance=vector.distance, config=config)
    return ok(DONE, started(request))


@router.get("/collections/{collection}")
async def info(request: Request, collection: str) -> Response:
    """Qdrant's CollectionInfo, and ours under `fullview`."""
    own = parts(request)
    state = own.engine.find(collection)
    fields = indexed_fields(state)
    counts: dict[str, int] = {}
    if fields and state.damage is None and not state.loading:
        counts = await own.engine.read(
            collection,
            lambda lease: {name: count_with(lease.view, name) for name in fields},
            timeout_s=timeout_s(request),
        )
    return ok(collection_info(state, counts), started(request))


@router.patch("/collections/{collection}")
async def change(request: Request, collection: str) -> Response:
    """Settings that are echoed, metadata (merged; null deletes a member), and ours under `fullview`."""
    body = decode_known(await read_body(request), ChangeBody, _INSTEAD)
    if bytes(body.sparse_vectors) not in (b"null", b"{}"):
        raise UnsupportedError("sparse vectors")
    if body.fullview is not None:
        require_ranges(body.fullview)
    given: dict[str, Any] = msgspec.to_builtins(body)
    await asyncio.to_thread(parts(request).engine.change, collection, lambda config: changed_config(config, given))
    return ok(DONE, started(request))


@router.put("/collections/{collection}/index")
async def create_index(request: Request, collection: str) -> Response:
    """Accepted and told in the collection's info. Filters need no index: every member of payloads has its column."""
    body = decode_known(await read_body(request), IndexBody, _OF_INDEXES)
    parse_path(body.field_name, path="$.field_name")
    schema = parse_schema(body.field_schema, path="$.field_schema")
    engine = parts(request).engine
    await asyncio.to_thread(engine.change, collection, lambda config: with_index(config, body.field_name, schema))
    return ok({"operation_id": 0, "status": "completed"}, started(request))


@router.delete("/collections/{collection}/index/{field:path}")
async def delete_index(request: Request, collection: str, field: str) -> Response:
    """Forget an index; one that is not there is no error."""
    engine = parts(request).engine
    await asyncio.to_thread(engine.change, collection, lambda config: without_index(config, field))
    return ok({"operation_id": 0, "status": "completed"}, started(request))


@router.delete("/collections/{collection}")
async def delete(request: Request, collection: str) -> Response:
    """False where there is no such collection. A build for it is cancelled."""
    own = parts(request)
    # What was cancelled has ended before the answer leaves: who deletes to create anew must not meet it.
    kinds: tuple[Target, ...] = ("collection", "snapshot")
    for builds in kinds:
        job = await asyncio.to_thread(own.runner.cancel_builds_of, collection, builds=builds)
        while job is not None and job.state in ACTIVE:
            await asyncio.sleep(_LOOK_EVERY_S)
    deleted = await asyncio.to_thread(own.engine.delete, collection)
    if deleted:
        own.metrics.forget(collection)
    return ok(deleted, started(request))


@router.get("/collections/{collection}/cluster")
async def cluster(request: Request, collection: str) -> Response:
    """One node, one shard: the least that clients read."""
    state = parts(request).engine.find(collection)
    shard = {"shard_id": 0, "points_count": points_count(state), "state": "Active"}
    result = {"peer_id": 0, "shard_count": 1, "local_shards": [shard], "remote_shards": [], "shard_transfers": []}
    return ok({"status": "disabled"} | result, started(request))


def _vector_of(body: CreateBody) -> VectorBody:
    if bytes(body.sparse_vectors) not in (b"null", b"{}"):
        raise UnsupportedError("sparse vectors")
    if body.sharding_method not in (None, "auto"):
        raise UnsupportedError("sharding methods")
    members = decode(body.vectors, dict[str, Raw], path="$.vectors") if bytes(body.vectors) != b"null" else {}
    if not members:
        raise UnsupportedError("collections without vectors", 'Send "vectors": {"size": ..., "distance": ...}.')
    raw = body.vectors
    if "size" not in members and "distance" not in members:
        # A map of names: LangChain sends one with the empty name.
        for name in members:
            if name:
                raise UnsupportedError(f"named vectors ({name!r})", 'A point has one vector; its name is "".')
        raw = members[""]
    vector = decode(raw, VectorBody, path="$.vectors")
    if bytes(vector.multivector_config) != b"null":
        raise UnsupportedError("multi vectors")
    if vector.distance == "Manhattan":
        raise UnsupportedError("distance Manhattan", f"There are {', '.join(_DISTANCES)}.")
    if vector.distance not in _DISTANCES:
        raise MalformedError(f"vectors.distance is {vector.distance!r}; it must be one of {', '.join(_DISTANCES)}.")
    if not 1 <= vector.size <= DIMENSION_MAX:
        raise OutOfRangeError(f"vectors.size: value {vector.size} invalid, must be from 1 to {DIMENSION_MAX}.")
    if body.fullview is not None:
        require_ranges(body.fullview)
    return vector


async def _kept_config(request: Request) -> bytes:
    """The body without what stands in columns of the catalogue, to be echoed by GET."""
    given: dict[str, Any] = msgspec.json.decode(await request.body())
    vectors = given.pop("vectors", {})
    given["vector"] = vectors.get("", vectors) if isinstance(vectors, dict) else {}
    return msgspec.json.encode({name: value for name, value in given.items() if value is not None})
