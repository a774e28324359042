"""Slices: ids dealt into `total` parts by their hash, so that several readers share a collection without overlap.

slice_of()      one id -> its slice
slices_of()     many integer ids at once

SipHash-2-4 with a zero key, over an integer's 8 bytes (little-endian) or a UUID's 16, as Qdrant does. Other strings, which
Qdrant does not have, are hashed by their UTF-8.
"""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
from numpy.typing import NDArray

_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def slice_of(id: int | str, total: int) -> int:
    """The slice of one id."""
    data = id.to_bytes(8, "little") if isinstance(id, int) else _bytes_of(id)
    whole = len(data) // 8 * 8
    words = np.frombuffer(data[:whole], "<u8").astype(np.uint64).reshape(-1, 1)
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    return int(_hash([*words, np.array([last], np.uint64)])[0]) % total


def slices_of(ids: NDArray[np.uint64], total: int) -> NDArray[np.int64]:
    """The slice of each integer id."""
    if total > 2**63:
        return np.array([slice_of(int(id), total) for id in ids], np.uint64).view(np.int64)
    last = np.full(len(ids), 8 << 56, np.uint64)
    return (_hash([ids, last]) % np.uint64(total)).astype(np.int64)


def _bytes_of(id: str) -> bytes:
    try:
        return uuid.UUID(id).bytes
    except ValueError:
        return id.encode()


def _hash(blocks: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Of as many messages at once as the blocks, 8 bytes of each message, are long."""
    state = [np.full(len(blocks[0]), start, np.uint64) for start in _START]
    for block in blocks:
        state[3] = state[3] ^ block
        state = _round(_round(state))
        state[0] = state[0] ^ block
    state[2] = state[2] ^ np.uint64(0xFF)
    for _ in range(4):
        state = _round(state)
    hashed: Any = state[0] ^ state[1] ^ state[2] ^ state[3]
    return np.asarray(hashed, np.uint64)


def _round(state: list[NDArray[np.uint64]]) -> list[NDArray[np.uint64]]:
    a, b, c, d = state
    a = a + b
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c = c + d
    d = _rotated(d, 16) ^ c
    a = a + d
    d = _rotated(d, 21) ^ a
    c = c + b
    b = _rotated(b, 17) ^ c
    return [a, b, _rotated(c, 32), d]


def _rotated(words: NDArray[np.uint64], by: int) -> NDArray[np.uint64]:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))
