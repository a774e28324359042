"""What GET /v1/decoders says of a decoder, and GET /v1/decoders/{name} in full.

decoder_row()    a line of the list; reads nothing
decoder_info()   all that the decoder says of itself, and in which bounds its answers repeat
decoder_bytes()  its memory by part
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from service.decoders import DecoderState

REPEATS = {
    "cpu": {
        "token_ids": "identical",
        "logits": "identical",
        "why": "within one mode an answer depends on nothing but the state: every logit comes from one order of sums",
    },
}
"""By device: how far the answer to a state may differ when others are in its batch, or when it is asked again."""


def decoder_row(state: DecoderState) -> dict[str, Any]:
    """Name, state, sizes."""
    record = state.record
    sizes: dict[str, Any] = {"vocab_size": None, "dim": None}
    if state.opened is not None:
        sizes = {"vocab_size": state.opened.head.vocab_size, "dim": state.opened.head.dim}
    return {
        "name": record.name,
        "state": "damaged" if state.damage else "loading" if state.loading else "ready",
        "reason": state.damage or ("being loaded" if state.loading else None),
        "builds": record.number,
        "created_at": datetime.datetime.fromtimestamp(record.created_at, datetime.UTC).isoformat(),
        "device": record.device,
        "serve": record.serve,
    } | sizes


def decoder_info(state: DecoderState) -> dict[str, Any]:
    """The same with what the decoder says of itself."""
    stats: dict[str, Any] = {}
    opened = state.opened
    if opened is not None and opened.acquire():
        try:
            stats = msgspec.to_builtins(opened.head.stats(), enc_hook=_plain) | {"has_words": opened.has_words}
        finally:
            opened.release()
    return stats | decoder_row(state) | {"repeats": REPEATS[state.record.device]}


def decoder_bytes(state: DecoderState) -> dict[str, int]:
    """Resident bytes by part; none of what is not open."""
    opened = state.opened
    if opened is None or not opened.acquire():
        return {}
    try:
        return {part: int(size) for part, size in opened.head.stats().get("resident_bytes", {}).items()}
    finally:
        opened.release()


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays, paths."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
