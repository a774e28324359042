"""Entries: what is kept of a point that changed since its collection's generation was built.

Entry          one point's newest state
key_of() id_of_key()   an id as bytes whose order is the order of ids
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from service.names import PointId

_INTEGER, _STRING = b"i", b"s"


class EntryKind(IntEnum):
    """Stored in databases; never renumber."""

    WHOLE = 1
    """The entry is the point: vector (where it has one) and payload. A row of the generation with its id is hidden."""
    DELETED = 2
    """There is no such point. A row with its id is hidden."""
    PAYLOAD = 3
    """The payload is the entry's, the vector the one of the generation's row."""


@dataclass(frozen=True, slots=True)
class Entry:
    """vector float32 (dim,) or None; payload: a JSON object as bytes, None where there is none."""

    id: PointId
    kind: EntryKind
    vector: np.ndarray | None = None
    payload: bytes | None = None


def key_of(id_: PointId) -> bytes:
    """Ascending keys are ascending ids: integers first, then strings by code point (which is the order of UTF-8)."""
    return _INTEGER + struct.pack(">Q", id_) if isinstance(id_, int) else _STRING + id_.encode()


def id_of_key(key: bytes) -> PointId:
    """The id that key_of() made the key of."""
    return int(struct.unpack(">Q", key[1:])[0]) if key[:1] == _INTEGER else key[1:].decode()
