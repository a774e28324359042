"""What GET /collections/{c} says: Qdrant's CollectionInfo with all that its client requires, and ours beside it.

Invariant: no member inside config.params.vectors but Qdrant's own: the official client refuses others.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from service.engine import METRIC_OF_DISTANCE, Collection

_HNSW = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}
_OPTIMIZER = {"default_segment_number": 0, "flush_interval_sec": 5}
_VECTOR_MEMBERS = ("on_disk", "datatype", "hnsw_config", "quantization_config", "memory")
_PARAM_MEMBERS = ("shard_number", "replication_factor", "write_consistency_factor", "on_disk_payload")


def collection_info(state: Collection) -> dict[str, Any]:
    """The result of GET /collections/{c}. Reads no file."""
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
        "points_count": stats.get("rows", 0),
        "indexed_vectors_count": stats.get("rows", 0),
        "payload_schema": {},
        "created_at": datetime.datetime.fromtimestamp(record.created_at, datetime.UTC).isoformat(),
        "config": _config(state, kept),
        "fullview": _own(state, kept, stats),
    }


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
        "delta_rows": 0,
        "hidden_rows": 0,
        "metric": metric,
        "order": "lower is better" if metric == "l2" else "higher is better",
        "settings": kept.get("fullview", {}),
    } | own


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays, paths."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
