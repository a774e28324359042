"""Hidden states as they arrive: JSON numbers, base64, or raw bytes -> float32 [n, dim].

json_states()   the member `hidden` of a body
raw_states()    an octet-stream
HiddenStates    calls of it make the array, once the dimension is known

Invariant: raw bytes become an array without a Python object for each number. Values past float32 become infinite here and
are refused, or marked, by the decoder.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from typing import Literal, get_args

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from service.answers import decode
from service.errors import BodyTooLargeError, MalformedError

StateDtype = Literal["float32", "float16", "bfloat16"]
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

States = NDArray[np.float32]
HiddenStates = Callable[[int], States]
"""dim -> float32 [n, dim]. Raises MalformedError."""


class _Encoded(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    base64: str
    shape: list[int]
    dtype: StateDtype = "float32"


def json_states(raw: Raw) -> HiddenStates:
    """From a list of states, one state, or {"base64", "shape", "dtype"}."""
    return lambda dim: _from_json(raw, dim)


def raw_states(body: bytes, dtype: str | None) -> HiddenStates:
    """From bytes, little-endian, of that dtype (float32 where None). Raises MalformedError."""
    if dtype is not None and dtype not in _ITEM_BYTES:
        raise MalformedError(f"dtype is {dtype!r}; it must be one of {', '.join(get_args(StateDtype))}.")
    return lambda dim: _from_bytes(body, dtype or "float32", dim)


def require_batch(size: int, batch_max: int) -> None:
    """Raises BodyTooLargeError for more states than one request may bring."""
    if size > batch_max:
        raise BodyTooLargeError(
            f"{size:,} hidden states came in one request, the limit is {batch_max:,}. "
            "Send a smaller batch, or raise query_batch_max."
        )


def _from_json(raw: Raw, dim: int) -> States:
    content = bytes(raw)
    if content[:1] == b"{":
        return _from_base64(decode(content, _Encoded, path="$.hidden"), dim)
    if content[:1] == b"[" and not content[1:-1].strip():
        raise _no_state(dim)
    if content[1:].lstrip()[:1] != b"[":
        rows = [decode(content, list[float], path="$.hidden")]
    else:
        rows = decode(content, list[list[float]], path="$.hidden")
    for place, row in enumerate(rows):
        if len(row) != dim:
            at = "" if len(rows) == 1 else f"[{place}]"
            raise MalformedError(f"$.hidden{at} has {len(row):,} components, the decoder's states have {dim:,}.")
    with np.errstate(over="ignore"):
        return np.array(rows, dtype=np.float32)


def _from_base64(encoded: _Encoded, dim: int) -> States:
    shape = encoded.shape
    if shape in ([0], [0, dim]):
        raise _no_state(dim)
    if len(shape) not in (1, 2) or shape[-1] != dim or shape[0] < 1:
        raise MalformedError(f"$.hidden.shape is {shape}; the decoder's states have the shape [n, {dim}] or [{dim}].")
    try:
        content = base64.b64decode(encoded.base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedError(f"$.hidden.base64 is no valid base64: {error}.") from None
    needed = math.prod(shape) * _ITEM_BYTES[encoded.dtype]
    if len(content) != needed:
        raise MalformedError(
            f"$.hidden.base64 holds {len(content):,} bytes; {encoded.dtype} of shape {shape} takes {needed:,}."
        )
    return _widened(content, encoded.dtype).reshape(-1, dim)


def _no_state(dim: int) -> MalformedError:
    return MalformedError(f"$.hidden holds no state: 0 came, needed at least one, of {dim:,} components.")


def _from_bytes(body: bytes, dtype: str, dim: int) -> States:
    row_bytes = _ITEM_BYTES[dtype] * dim
    if not body or len(body) % row_bytes:
        raise MalformedError(
            f"The body has {len(body):,} bytes; hidden states of dimension {dim:,} as {dtype} take a multiple of "
            f"{row_bytes:,}, and at least one. Is dtype right?"
        )
    return _widened(body, dtype).reshape(-1, dim)


def _widened(content: bytes, dtype: str) -> States:
    if dtype == "float32":
        return np.frombuffer(content, dtype="<f4").astype(np.float32, copy=False)
    if dtype == "float16":
        return np.frombuffer(content, dtype="<f2").astype(np.float32)
    return (np.frombuffer(content, dtype="<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
