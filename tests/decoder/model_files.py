"""Files of output layers, written here byte by byte so that readers are not tested against their own understanding."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from layer_oracle import stored

SAFE_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8", "float64": "F64"}


def write_safetensors(
    path: Path, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str] | None = None
) -> None:
    """name -> (dtype, array as stored)."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": SAFE_NAMES.get(dtype, dtype),
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def write_model(
    folder: Path,
    tensors: dict[str, tuple[str, np.ndarray]],
    config: dict[str, Any] | None = None,
    *,
    tokenizer: dict[str, Any] | None = None,
    shards: int = 1,
) -> Path:
    """A transformers folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} if config is None else config))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = list(tensors)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
        return folder
    files = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        some = names[shard::shards]
        write_safetensors(folder / file, {name: tensors[name] for name in some})
        files |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def bpe_tokenizer(ids: dict[str, int], added: dict[str, int] | None = None) -> dict[str, Any]:
    """A tokenizer.json with these ids."""
    tokens = [{"id": number, "content": text, "special": True} for text, number in (added or {}).items()]
    return {"version": "1.0", "added_tokens": tokens, "model": {"type": "BPE", "vocab": ids, "merges": []}}


GGUF_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30, "Q8_0": 8}


def _gguf_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _gguf_value(value: Any) -> bytes:
    """Type number and value."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _gguf_string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_gguf_string, value))
    return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def write_gguf(
    path: Path,
    metadata: dict[str, Any],
    tensors: dict[str, tuple[str, np.ndarray, tuple[int, ...]]],
    alignment: int = 32,
) -> None:
    """name -> (type, bytes as an array, shape)."""
    if alignment != 32:
        metadata = {**metadata, "general.alignment": alignment}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_gguf_string(key) + _gguf_value(value) for key, value in metadata.items())
    data = b""
    for name, (kind, array, shape) in tensors.items():
        head += _gguf_string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", GGUF_TYPES[kind], len(data))
        data += array.tobytes()
        data += bytes(-len(data) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + data)


def plain(values: np.ndarray, dtype: str) -> tuple[str, np.ndarray]:
    """A tensor of these values for write_safetensors and write_model."""
    return dtype, np.ascontiguousarray(stored(values, dtype))
