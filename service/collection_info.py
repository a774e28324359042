"""What GET /collections/{c} says: Qdrant's CollectionInfo with all that its client requires, and ours beside it.

Invariant: no member inside config.params.vectors but Qdrant's own: the official client refuses others.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from service.answers import encode
from service.filters import parse_filter
from service.points.view import PointsView
from service.served import METRIC_OF_DISTANCE, Collection

_HNSW = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}
_OPTIMIZER = {"default_segment_number": 0, "flush_interval_sec": 5}
_VECTOR_MEMBERS = ("on_disk", "datatype", "hnsw_config", "quantization_config", "memory")
_PARAM_MEMBERS = ("shard_number", "replication_factor", "write_consistency_factor", "on_disk_payload")


def collection_info(state: Collection, field_counts: Mapping[str, int]) -> dict[str, Any]:
    """The result of GET /collections/{c}. Reads no file. field_counts: points that have each indexed field."""
    record, generation = state.record, state.generation
    kept: dict[str, Any] = msgspec.json.decode(record.config)
    stats: dict[str, Any] = {}
    if generation is not None and generation.acquire():
        try:
            stats = {"rows": generation.index.n} | generation.index.stats()
        finally:
            generation.release()
    status = "red" if state.damage is not None else "yellow" if state.loading else "green"
    return {
        "status": status,
        "optimizer_status": "ok" if state.damage is None else {"error": state.damage},
        "segments_count": 1,
        "points_count": points_count(state),
        "indexed_vectors_count": stats.get("rows", 0) - state.written.view.hidden_count if stats else 0,
        "payload_schema": {
            name: schema | {"points": field_counts.get(name, 0)} for name, schema in indexed_fields(state).items()
        },
        "created_at": datetime.datetime.fromtimestamp(record.created_at, datetime.UTC).isoformat(),
        "config": _config(state, kept),
        "fullview": _own(state, kept, stats),
    }


def points_count(state: Collection) -> int:
    """Points that are there now."""
    view, generation = state.written.view, state.generation
    rows = generation.index.n if generation is not None else 0
    return rows - view.hidden_count + len(view.points)


def indexed_fields(state: Collection) -> dict[str, dict[str, Any]]:
    """Name of each payload index -> its data_type and params."""
    kept: dict[str, Any] = msgspec.json.decode(state.record.config)
    fields: dict[str, dict[str, Any]] = kept.get("payload_schema", {})
    return fields


def count_with(view: PointsView, field: str) -> int:
    """Points whose payload has something at a path."""
    return view.count(parse_filter(Raw(encode({"must_not": {"is_empty": {"key": field}}})), path="$.field_name"))


def _config(state: Collection, kept: dict[str, Any]) -> dict[str, Any]:
    record = state.record
    given = kept.get("vector", {})
    vectors = {"size": record.size, "distance": record.distance}
    vectors |= {name: given[name] for name in _VECTOR_MEMBERS if given.get(name) is not None}
    config: dict[str, Any] = {
        "params": {"vectors": vectors, "shard_number": 1, "replication_factor": 1, "write_consistency_factor": 1}
        | {name: kept[name] for name in _PARAM_MEMBERS if name in kept},
        "hnsw_config": _HNSW | kept.get("hnsw_config", {}),
        "optimizer_config": _OPTIMIZER | kept.get("optimizers_config", kept.get("optimizer_config", {})),
    }
    quantization = kept.get("quantization_config", kept.get("quantization"))
    if quantization is not None:
        config["quantization_config"] = quantization
    if "metadata" in kept:
        config["metadata"] = kept["metadata"]
    return config


def _own(state: Collection, kept: dict[str, Any], stats: dict[str, Any]) -> dict[str, Any]:
    record = state.record
    metric = METRIC_OF_DISTANCE[record.distance]
    own: dict[str, Any] = {"rows": 0} | msgspec.to_builtins(stats, enc_hook=_plain)
    reason = state.damage or ("being loaded" if state.loading else None)
    return {
        "generation": record.generation_number,
        "state": "damaged" if state.damage else "loading" if state.loading else "ready",
        "reason": reason,
        "delta_rows": len(state.written.view.points),
        "hidden_rows": state.written.view.hidden_count,
        "delta_bytes": state.written.resident_bytes,
        "metric": metric,
        "order": "lower is better" if metric == "l2" else "higher is better",
        "settings": kept.get("fullview", {}),
    } | own


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays, paths."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
