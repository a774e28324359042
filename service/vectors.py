"""Vectors as they arrive: JSON numbers, base64, or raw float32 bytes -> float32 arrays.

Invariant: raw bytes become an array without a Python object for each number.
"""

from __future__ import annotations

import base64
import binascii

import msgspec
import numpy as np

from service.answers import decode
from service.errors import MalformedError, UnsupportedError


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    base64: str


def vector_from_json(raw: msgspec.Raw, *, path: str) -> np.ndarray:
    """Float32 [dim] from a list of numbers or {"base64": ...}. Raises MalformedError, UnsupportedError."""
    body = bytes(raw)
    if body[:1] == b"{":
        return vector_from_base64(decode(body, _Base64, path=path).base64, path=path)
    if body[1:].lstrip()[:1] == b"[":
        raise UnsupportedError("multi vectors", "Send one list of numbers.")
    numbers = decode(body, list[float], path=path)
    # Values beyond float32 become infinite here and are refused as such by the index.
    with np.errstate(over="ignore"):
        return np.array(numbers, dtype=np.float32)


def vectors_from_json(raw: msgspec.Raw, *, dim: int, path: str) -> np.ndarray:
    """Float32 [m, dim] from a list of vectors, or from {"base64": ...} of all of them. Raises MalformedError."""
    if bytes(raw)[:1] == b"{":
        flat = vector_from_json(raw, path=path)
        if not len(flat) or len(flat) % dim:
            raise MalformedError(
                f"{path}.base64 holds {len(flat)} numbers; vectors of dimension {dim} need a multiple."
            )
        return flat.reshape(-1, dim)
    parts = decode(raw, list[msgspec.Raw], path=path)
    vectors = [vector_from_json(part, path=f"{path}[{place}]") for place, part in enumerate(parts)]
    for place, vector in enumerate(vectors):
        if len(vector) != dim:
            raise MalformedError(f"{path}[{place}] has {len(vector)} components, the collection's vectors have {dim}.")
    if not vectors:
        raise MalformedError(f"{path} is empty. Give at least one vector.")
    return np.stack(vectors)


def vector_from_base64(text: str, *, path: str) -> np.ndarray:
    """Float32 [dim] from base64 of little-endian float32. Raises MalformedError."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedError(f"{path}.base64 is no valid base64: {error}.") from None
    if len(content) % 4:
        raise MalformedError(f"{path}.base64 holds {len(content)} bytes; float32 needs a multiple of 4.")
    return np.frombuffer(content, dtype="<f4").astype(np.float32, copy=False)


def vectors_from_bytes(body: bytes, *, dim: int) -> np.ndarray:
    """Float32 [n, dim] over the bytes themselves. Raises MalformedError."""
    if not body or len(body) % (4 * dim):
        raise MalformedError(
            f"The body has {len(body):,} bytes; queries of dimension {dim} as float32 take a multiple of {4 * dim}, "
            "and at least one."
        )
    return np.frombuffer(body, dtype="<f4").reshape(-1, dim)
