"""What is kept of a collection's configuration, as JSON in the catalogue: how PATCH and payload indexes change it.

changed_config()   PATCH merged into it
with_index() without_index() parse_schema()   payload indexes, which are only told of
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from service.answers import decode_any
from service.errors import MalformedError

INDEX_TYPES = ("keyword", "integer", "float", "geo", "text", "bool", "datetime", "uuid")


def changed_config(config: bytes, given: dict[str, Any]) -> bytes:
    """`given`, the body of a PATCH, merged into the configuration; null takes a member of metadata out."""
    kept: dict[str, Any] = msgspec.json.decode(config)
    for name, value in given.items():
        if name == "vectors":
            kept["vector"] = kept.get("vector", {}) | value.get("", value)
        elif name == "params":
            kept |= value
        elif name == "metadata":
            merged = kept.get("metadata", {}) | value
            kept["metadata"] = {key: member for key, member in merged.items() if member is not None}
        elif isinstance(value, dict) and isinstance(kept.get(name), dict):
            kept[name] = kept[name] | value
        else:
            kept[name] = value
    return msgspec.json.encode(kept)


def parse_schema(raw: Raw, *, path: str) -> dict[str, Any]:
    """data_type, and params where they came as an object. Raises MalformedError."""
    value = decode_any(raw, path=path)
    if value is None:
        return {"data_type": "keyword"}
    kind = value.get("type") if isinstance(value, dict) else value
    if kind not in INDEX_TYPES:
        raise MalformedError(f"{path} is {kind!r}; the types of payload indexes are {', '.join(INDEX_TYPES)}.")
    return {"data_type": kind, "params": value} if isinstance(value, dict) else {"data_type": kind}


def with_index(config: bytes, field: str, schema: dict[str, Any]) -> bytes:
    """The configuration with one payload index more."""
    kept: dict[str, Any] = msgspec.json.decode(config)
    kept["payload_schema"] = kept.get("payload_schema", {}) | {field: schema}
    return msgspec.json.encode(kept)


def without_index(config: bytes, field: str) -> bytes:
    """The configuration with one payload index less."""
    kept: dict[str, Any] = msgspec.json.decode(config)
    kept.get("payload_schema", {}).pop(field, None)
    return msgspec.json.encode(kept)
