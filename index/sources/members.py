"""Vectors, ids and payload as named arrays of one container: members of an npz, data sets of an HDF5 file.

choose_vectors   which of them is the vectors, where no name was given
MemberColumns    the id and payload arrays beside it: checked at once, read slice by slice as chunks go by

Payload becomes JSON: numbers and booleans as they are, NaN and infinity null, datetime64 RFC 3339 (UTC, microseconds),
byte strings are UTF-8 text, further dimensions lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from index.errors import SourceError
from index.sources.block import Array, Ids
from index.sources.json_scalars import json_float, json_time
from index.sources.shard import Columns, check_columns_exist

_USUAL_NAMES = ("train", "base", "vectors")


class Member(NamedTuple):
    """A named array, not yet read. is_text: its entries are strings, whatever the dtype says."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_text: bool


def choose_vectors(path: Path, kind: str, named: str | None, members: Mapping[str, Member]) -> str:
    """The array that is the vectors: the named one, one with a usual name, or the only two-dimensional one."""
    if named is not None:
        check_columns_exist(path, kind, [named], list(members))
        return named
    two = [name for name, member in members.items() if len(member.shape) == 2]
    usual = [name for name in _USUAL_NAMES if name in two]
    if usual or len(two) == 1:
        return (usual or two)[0]
    if len(members) == 1:
        return next(iter(members))  # an empty shard, or refused later for its shape
    candidates = ", ".join(map(repr, two)) or f"none (of {', '.join(map(repr, members)) or 'no arrays at all'})"
    raise SourceError(
        f"{path}: which {kind} holds the vectors? Two-dimensional ones: {candidates}. Name it with vector=...; "
        f"without a name {', '.join(_USUAL_NAMES)} or the only two-dimensional one is taken."
    )


@dataclass(frozen=True, slots=True)
class MemberColumns:
    """Names of the id and payload arrays of a container, each with one entry a row."""

    path: Path
    ids: str | None
    payload: tuple[str, ...] | None

    @classmethod
    def of(cls, path: Path, kind: str, columns: Columns, vectors: str, members: Mapping[str, Member]) -> MemberColumns:
        """Check names, shapes and dtypes. payload "*": every other array with as many entries as there are vectors."""
        n = members[vectors].shape[0]
        payload = columns.payload
        if payload == "*":
            others = [name for name in members if name not in (vectors, columns.ids)]
            payload = tuple(name for name in others if members[name].shape[:1] == (n,))
        named = [name for name in (columns.ids, *(payload or ())) if name is not None]
        check_columns_exist(path, kind, named, list(members))
        for name in named:
            if members[name].shape[:1] != (n,):
                raise SourceError(f"{path}: {name!r} has shape {members[name].shape}, needed {n} entries, one a row.")
        if columns.ids is not None:
            _check_ids(members[columns.ids], f"{path}: ids {columns.ids!r}")
        for name in payload or ():
            _check_payload(members[name], f"{path}: payload {name!r}")
        return cls(path=path, ids=columns.ids, payload=payload)

    @property
    def named(self) -> tuple[str, ...]:
        """Every array that rows() reads."""
        return tuple(dict.fromkeys(name for name in (self.ids, *(self.payload or ())) if name is not None))

    def rows(self, m: int, read: Callable[[str], Array]) -> tuple[Ids | None, list[dict[str, Any]] | None]:
        """(ids, payload) of m rows; read(name) gives that array's entries for them."""
        ids = None if self.ids is None else _ids(read(self.ids), f"{self.path}: ids {self.ids!r}")
        if self.payload is None:
            return ids, None
        columns = [_json_list(read(name), f"{self.path}: payload {name!r}") for name in self.payload]
        return ids, [dict(zip(self.payload, values)) for values in zip(*columns)] if columns else [{} for _ in range(m)]


def _check_ids(member: Member, where: str) -> None:
    if len(member.shape) != 1 or not (member.is_text or member.dtype.kind in "iu"):
        raise SourceError(
            f"{where} has dtype {member.dtype} and shape {member.shape}, needed one integer or string a row."
        )


def _check_payload(member: Member, where: str) -> None:
    if not (member.is_text or member.dtype.kind in "iubfM"):
        raise SourceError(
            f"{where} has dtype {member.dtype}, which has no JSON form; needed numbers, strings or dates."
        )


def _ids(array: Array, where: str) -> Ids:
    if array.dtype.kind in "iu":
        return array.astype(np.uint64 if array.dtype.kind == "u" else np.int64)
    return [_text(value, where) for value in array.tolist()]


def _json_list(array: Array, where: str) -> list[Any]:
    kind = array.dtype.kind
    if kind in "iub":
        return list(array.tolist())
    if kind == "f":
        return [_each(value, json_float) for value in array.astype(np.float64).tolist()]
    if kind == "M":
        moments = array.astype("datetime64[us]")
        counts = moments.astype(np.int64).astype(object)
        counts[np.isnat(moments)] = None
        return [_each(value, lambda count: json_time(count, 10**6, where)) for value in counts.tolist()]
    return [_each(value, lambda text: _text(text, where)) for value in array.tolist()]


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_each(item, change) for item in value]
    return None if value is None else change(value)


def _text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise SourceError(f"{where} holds bytes that are not UTF-8 text: {value[:40]!r}.") from error
    raise SourceError(f"{where} holds {type(value).__name__}, needed strings.")
