"""/collections and /collections/{c}: create, get, delete, list, exists."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Raw
from starlette.responses import Response

from service.answers import DONE, decode, ok, read_body
from service.collection_info import collection_info
from service.errors import ConflictError, MalformedError, OutOfRangeError, UnsupportedError
from service.jobs.request import FullviewBody, require_ranges
from service.names import check_name
from service.routes.context import parts, started
from service.slips import decode_known

DIMENSION_MAX = 65_536
_DISTANCES = ("Cosine", "Dot", "Euclid")
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
        raise ConflictError(f"Build job {active.job}, which is {active.state}, will create collection {collection!r}.")
    config = await _kept_config(request)
    await asyncio.to_thread(own.engine.create, collection, size=vector.size, distance=vector.distance, config=config)
    return ok(DONE, started(request))


@router.get("/collections/{collection}")
async def info(request: Request, collection: str) -> Response:
    """Qdrant's CollectionInfo, and ours under `fullview`."""
    state = parts(request).engine.find(collection)
    return ok(collection_info(state), started(request))


@router.delete("/collections/{collection}")
async def delete(request: Request, collection: str) -> Response:
    """False where there is no such collection. A build for it is cancelled."""
    own = parts(request)
    await asyncio.to_thread(own.runner.cancel_builds_of, collection)
    deleted = await asyncio.to_thread(own.engine.delete, collection)
    if deleted:
        own.metrics.forget(collection)
    return ok(deleted, started(request))


@router.get("/collections/{collection}/cluster")
async def cluster(request: Request, collection: str) -> Response:
    """One node, one shard: the least that clients read."""
    state = parts(request).engine.find(collection)
    generation = state.generation
    shard = {"shard_id": 0, "points_count": generation.index.n if generation is not None else 0, "state": "Active"}
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
