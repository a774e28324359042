"""What a writing request asks for: JSON bodies -> operations, checked as far as that needs nothing that is stored.

parse_upsert() parse_delete() parse_vectors() parse_delete_vectors() parse_payload() parse_delete_payload()
parse_clear_payload()   one body each
parse_batch()           a list of any of them

Invariant: an operation that was parsed can only fail for what is stored: ids that are not there, no room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from service.answers import decode, decode_any, encode
from service.errors import MalformedError, UnsupportedError
from service.filters import Filter, parse_filter
from service.names import PointId, point_id
from service.payload_paths import ALL, Path, parse_path
from service.points.vectors import point_vector, require_usable
from service.slips import decode_known

_NULL = Raw(b"null")
UpdateMode = Literal["upsert", "insert_only", "update_only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which points: `ids`, or all that `filter` matches (None: every point)."""

    ids: Sequence[PointId] | None = None
    filter: Filter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """Points put in, in place of those of their ids. vectors float32 (m, dim), of those with has_vector."""

    ids: Sequence[PointId]
    vectors: NDArray[np.float32]
    has_vector: NDArray[np.bool_]
    payloads: Sequence[bytes | None]
    mode: UpdateMode = "upsert"
    only_where: Filter | None = None
    """Points that are there and do not match stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Points taken out."""

    selector: Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVectors:
    """Other vectors for points that are there."""

    ids: Sequence[PointId]
    vectors: NDArray[np.float32]
    has_vector: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteVectors:
    """Points that stay without a vector."""

    selector: Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePayload:
    """change(payload) -> the payload from now on, for each selected point."""

    selector: Selector
    change: Callable[[dict[str, Any]], dict[str, Any]]


Operation = Upsert | Delete | UpdateVectors | DeleteVectors | ChangePayload


class _Point(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    id: Raw
    vector: Raw = _NULL
    payload: Raw = _NULL


class _Batch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    ids: list[Any]
    vectors: Raw
    payloads: list[Raw] | None = None


class _UpsertBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    points: list[Raw] | None = None
    batch: Raw = _NULL
    shard_key: Raw = _NULL
    update_filter: Raw = _NULL
    update_mode: UpdateMode | None = None


class _SelectorBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    points: list[Any] | None = None
    filter: Raw | msgspec.UnsetType = msgspec.UNSET
    shard_key: Raw = _NULL


class _VectorsBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    points: list[Raw]
    shard_key: Raw = _NULL
    update_filter: Raw = _NULL


class _DeleteVectorsBody(_SelectorBody, forbid_unknown_fields=True, kw_only=True):
    vector: list[str]


class _PayloadBody(_SelectorBody, forbid_unknown_fields=True, kw_only=True):
    payload: Raw
    key: str | None = None


class _DeletePayloadBody(_SelectorBody, forbid_unknown_fields=True, kw_only=True):
    keys: list[str]


class _BatchBody(msgspec.Struct, kw_only=True):
    operations: list[dict[str, Raw]]


_OF_WRITES = {
    "vector": "points[].vector",
    "id": "points[].id",
    "ids": "points: a list of ids",
    "where": "filter",
    "upsert": "points",
    "embedding": "vector",
    "embeddings": "vectors",
    "values": "vector: a list of numbers",
    "metadata": "payload",
}


def parse_upsert(raw: bytes | Raw, *, dim: int, metric: str, path: str = "$") -> Upsert:
    """Raises MalformedError naming the point, UnsupportedError."""
    body = decode_known(raw, _UpsertBody, _OF_WRITES, path=path)
    if (body.points is None) == (bytes(body.batch) == b"null"):
        raise MalformedError(f"{path} needs either points or batch. Give one of them.")
    if body.points is not None:
        points = [
            decode_known(one, _Point, _OF_WRITES, path=f"{path}.points[{at}]") for at, one in enumerate(body.points)
        ]
        ids = [point_id(decode_any(one.id, path=f"{path}.points[{at}].id")) for at, one in enumerate(points)]
        vectors: list[Raw] = [one.vector for one in points]
        payloads: list[Raw] = [one.payload for one in points]
    else:
        batch = decode_known(body.batch, _Batch, _OF_WRITES, path=f"{path}.batch")
        ids = [point_id(value) for value in batch.ids]
        vectors = _batch_vectors(batch, len(ids), path=f"{path}.batch.vectors")
        payloads = [_NULL] * len(ids) if batch.payloads is None else batch.payloads
        for name, given in (("vectors", vectors), ("payloads", payloads)):
            if len(given) != len(ids):
                raise MalformedError(
                    f"{path}.batch has {len(ids)} ids and {len(given)} {name}; one for each is needed."
                )
    if not ids:
        raise MalformedError(f"{path} holds no points. Send at least one.")
    matrix, has_vector = _matrix(ids, vectors, dim=dim, metric=metric)
    return Upsert(
        ids=ids,
        vectors=matrix,
        has_vector=has_vector,
        payloads=[_payload_bytes(one, f"the payload of point {id_!r}") for id_, one in zip(ids, payloads, strict=True)],
        mode=body.update_mode or "upsert",
        only_where=parse_filter(body.update_filter, path=f"{path}.update_filter"),
    )


def parse_delete(raw: bytes | Raw, *, path: str = "$") -> Delete:
    """Raises MalformedError."""
    return Delete(selector=_selector(decode_known(raw, _SelectorBody, _OF_WRITES, path=path), path))


def parse_vectors(raw: bytes | Raw, *, dim: int, metric: str, path: str = "$") -> UpdateVectors:
    """Raises MalformedError naming the point, UnsupportedError."""
    body = decode_known(raw, _VectorsBody, _OF_WRITES, path=path)
    if bytes(body.update_filter) != b"null":
        raise UnsupportedError("update_filter of vectors", "Select the points first.")
    points = [decode_known(one, _Point, _OF_WRITES, path=f"{path}.points[{at}]") for at, one in enumerate(body.points)]
    if not points:
        raise MalformedError(f"{path}.points is empty. Send at least one.")
    ids = [point_id(decode_any(one.id, path=f"{path}.points[{at}].id")) for at, one in enumerate(points)]
    matrix, has_vector = _matrix(ids, [one.vector for one in points], dim=dim, metric=metric)
    return UpdateVectors(ids=ids, vectors=matrix, has_vector=has_vector)


def parse_delete_vectors(raw: bytes | Raw, *, path: str = "$") -> DeleteVectors:
    """Raises MalformedError, UnsupportedError for a vector name other than the empty one."""
    body = decode_known(raw, _DeleteVectorsBody, _OF_WRITES, path=path)
    for name in body.vector:
        if name:
            raise UnsupportedError(f"named vectors ({name!r})", 'A point has one vector; its name is "".')
    if not body.vector:
        raise MalformedError(f'{path}.vector is empty. Name the vector: [""].')
    return DeleteVectors(selector=_selector(body, path))


def parse_payload(raw: bytes | Raw, *, path: str = "$", overwrite: bool) -> ChangePayload:
    """Members merged into payloads, or payloads put in their place. Raises MalformedError."""
    body = decode_known(raw, _PayloadBody, _OF_WRITES, path=path)
    given = _payload(body.payload, f"{path}.payload")
    if body.key is not None and not overwrite:
        place = parse_path(body.key, path=f"{path}.key")

        def merge_below(payload: dict[str, Any]) -> dict[str, Any]:
            merged: dict[str, Any] = _merged_below(payload, place, given)
            return merged

        return ChangePayload(selector=_selector(body, path), change=merge_below)

    def merge(payload: dict[str, Any]) -> dict[str, Any]:
        return dict(given) if overwrite else _merged(payload, given)

    return ChangePayload(selector=_selector(body, path), change=merge)


def parse_delete_payload(raw: bytes | Raw, *, path: str = "$") -> ChangePayload:
    """Members taken out of payloads. Raises MalformedError."""
    body = decode_known(raw, _DeletePayloadBody, _OF_WRITES, path=path)
    places = [parse_path(key, path=f"{path}.keys") for key in body.keys]

    def without(payload: dict[str, Any]) -> dict[str, Any]:
        for place in places:
            remove_path(payload, place)
        return payload

    return ChangePayload(selector=_selector(body, path), change=without)


def parse_clear_payload(raw: bytes | Raw, *, path: str = "$") -> ChangePayload:
    """Payloads emptied. Raises MalformedError."""
    body = decode_known(raw, _SelectorBody, _OF_WRITES, path=path)
    return ChangePayload(selector=_selector(body, path), change=lambda payload: {})


def parse_batch(raw: bytes | Raw, *, dim: int, metric: str) -> list[Operation]:
    """Operations in their order. Raises MalformedError."""
    operations: list[Operation] = []
    for at, one in enumerate(decode(raw, _BatchBody).operations):
        path = f"$.operations[{at}]"
        if len(one) != 1:
            raise MalformedError(f"{path} has {len(one)} members; it needs exactly one of {', '.join(_PARSERS)}.")
        ((name, body),) = one.items()
        if name not in _PARSERS:
            raise MalformedError(f"Unknown member {name!r} at {path}. Allowed are {', '.join(_PARSERS)}.")
        operations.append(_PARSERS[name](body, f"{path}.{name}", dim, metric))
    return operations


_PARSERS: dict[str, Callable[[Raw, str, int, str], Operation]] = {
    "upsert": lambda raw, path, dim, metric: parse_upsert(raw, dim=dim, metric=metric, path=path),
    "delete": lambda raw, path, dim, metric: parse_delete(raw, path=path),
    "set_payload": lambda raw, path, dim, metric: parse_payload(raw, path=path, overwrite=False),
    "overwrite_payload": lambda raw, path, dim, metric: parse_payload(raw, path=path, overwrite=True),
    "delete_payload": lambda raw, path, dim, metric: parse_delete_payload(raw, path=path),
    "clear_payload": lambda raw, path, dim, metric: parse_clear_payload(raw, path=path),
    "update_vectors": lambda raw, path, dim, metric: parse_vectors(raw, dim=dim, metric=metric, path=path),
    "delete_vectors": lambda raw, path, dim, metric: parse_delete_vectors(raw, path=path),
}


def remove_path(payload: Any, place: Path) -> None:
    """Take out what lies at a path. One element alone stays, as in Qdrant: the request could not be repeated."""
    head, rest = place[0], place[1:]
    if isinstance(head, str):
        if isinstance(payload, dict) and head in payload:
            if rest:
                remove_path(payload[head], rest)
            else:
                del payload[head]
    elif isinstance(payload, list):
        chosen = payload if head is ALL else payload[head : head + 1]
        if rest:
            for element in chosen:
                remove_path(element, rest)
        elif head is ALL:
            payload.clear()


def _merged(payload: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`given` put over the members of a payload; null takes a member out."""
    merged = payload | given
    return {name: value for name, value in merged.items() if value is not None or name not in given}


def _merged_below(payload: Any, place: Path, given: dict[str, Any]) -> Any:
    """`given` merged into the objects at a path; members on the way are made where there are none, elements are not."""
    if not place:
        return _merged(payload if isinstance(payload, dict) else {}, given)
    head, rest = place[0], place[1:]
    if isinstance(head, str):
        below = payload if isinstance(payload, dict) else {}
        return below | {head: _merged_below(below.get(head), rest, given)}
    if not isinstance(payload, list):
        return []
    return [
        _merged_below(element, rest, given) if head is ALL or at == head else element
        for at, element in enumerate(payload)
    ]


def _selector(body: _SelectorBody, path: str) -> Selector:
    if body.points is not None and body.filter is not msgspec.UNSET and bytes(body.filter) != b"null":
        raise MalformedError(f"{path} has both points and filter. Give one of them.")
    if body.points is not None:
        return Selector(ids=list(dict.fromkeys(point_id(value) for value in body.points)))
    if body.filter is msgspec.UNSET or bytes(body.filter) == b"null":
        raise MalformedError(f"{path} has neither points nor filter. Name the points, or what they must match.")
    return Selector(filter=parse_filter(body.filter, path=f"{path}.filter"))


def _batch_vectors(batch: _Batch, count: int, *, path: str) -> list[Raw]:
    """One JSON value a point: of a list, or of a map from the empty name to a list."""
    raw = batch.vectors
    if bytes(raw)[:1] == b"{":
        named = decode(raw, dict[str, Raw], path=path)
        if not named:
            return [_NULL] * count
        for name in named:
            if name:
                raise UnsupportedError(f"named vectors ({name!r})", 'A point has one vector; its name is "".')
        raw = named[""]
    return decode(raw, list[Raw], path=path)


def _matrix(
    ids: Sequence[PointId], vectors: Sequence[Raw], *, dim: int, metric: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    matrix, has_vector = np.zeros((len(ids), dim), np.float32), np.zeros(len(ids), np.bool_)
    for at, (id_, raw) in enumerate(zip(ids, vectors, strict=True)):
        vector = point_vector(raw, id_, dim=dim)
        if vector is not None:
            matrix[at], has_vector[at] = vector, True
    require_usable(matrix, ids, metric=metric)
    return matrix, has_vector


def _payload(raw: Raw, what: str) -> dict[str, Any]:
    value = decode_any(raw, path=what)
    if not isinstance(value, dict):
        raise MalformedError(f"{what} is no JSON object. A payload is an object of members, or null.")
    return value


def _payload_bytes(raw: Raw, what: str) -> bytes | None:
    if bytes(raw) == b"null":
        return None
    value = _payload(raw, what)
    return encode(value) if value else None
