"""GGUF: metadata, tensor descriptions, tensors; the output layer is output.weight, or token_embd.weight where tied.

The header is read here (opening a file with the package gguf takes seconds, for each string is an array there); the package
is needed for quantised tensors only, to dequantise them. Numbers that are kept as float16, bfloat16 or float32 are mapped.

Bytes, little-endian: "GGUF", version uint32 (2 or 3), tensors uint64, entries uint64; entries: key, type uint32, value;
tensors: name, dimensions uint32, sides uint64 (innermost first), type uint32, offset uint64; padding to the alignment; data.
A string is its length, uint64, and UTF-8. An array is a type uint32, a count uint64, and values.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.readers.parts import LayerParts, mapped_array
from decoder.tensors import BFLOAT16_BITS
from index.errors import MissingExtraError, SourceError

_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_PLAIN: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2"), 28: np.dtype("<f8"), 30: BFLOAT16_BITS}
_UNUSED_TOKEN = 5
_PADDING = re.compile(r"\[PAD\d+\]")
# Families whose files give the number that logits are divided by under a name that means multiplying for others.
_DIVIDING = ("granite", "minicpm")
BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor: sides outermost first, its type's number, the byte of the file where it begins."""

    name: str
    shape: tuple[int, ...]
    type: int
    begin: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file's metadata and tensors."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, path: Path, data: Any) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.take("<Q")
        if length > len(self.data) - self.at:
            raise struct.error("a string longer than the file")
        self.at += length
        return str(bytes(self.data[self.at - length : self.at]), "utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.take(_FORMATS[kind])
        inner, count = self.take("<I"), self.take("<Q")
        if count > len(self.data) - self.at:
            raise struct.error("an array longer than the file")
        if inner not in _FORMATS:
            return [self.value(inner) for _ in range(count)]
        form = np.dtype(_FORMATS[inner])
        values = np.frombuffer(self.data, form, count, self.at).copy()
        self.at += values.nbytes
        return values


def open_gguf(path: Path) -> GgufFile:
    """Metadata and tensor descriptions of a file."""
    with path.open("rb") as file:
        magic = file.read(8)
        if magic[:4] != b"GGUF":
            raise SourceError(f"{path}: a GGUF file begins with b'GGUF', found {magic[:4]!r}.")
        version = int.from_bytes(magic[4:], "little")
        if version not in (2, 3):
            raise SourceError(
                f"{path}: GGUF version {version}, read are 2 and 3 (little-endian). Convert the model anew, or copy the file "
                "once more: it may be damaged."
            )
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(path, data)
    cursor.at = 8
    try:
        return _parsed(path, cursor)
    except (struct.error, KeyError, ValueError) as error:
        raise SourceError(f"{path}: the GGUF header does not parse ({error!r}). The file is cut or damaged.") from error


def _parsed(path: Path, cursor: _Cursor) -> GgufFile:
    tensors, entries = cursor.take("<Q"), cursor.take("<Q")
    metadata = {}
    for _ in range(entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.take("<I"))
    found = []
    for _ in range(tensors):
        name = cursor.string()
        sides = [cursor.take("<Q") for _ in range(cursor.take("<I"))]
        found.append(GgufTensor(name, tuple(reversed(sides)), cursor.take("<I"), cursor.take("<Q")))
    alignment = int(metadata.get("general.alignment", 32))
    start = -(-cursor.at // alignment) * alignment
    return GgufFile(path, metadata, {tensor.name: replace(tensor, begin=start + tensor.begin) for tensor in found})


def read_gguf(path: Path) -> LayerParts:
    """The output layer of a GGUF file."""
    file = open_gguf(path)
    tensor = file.tensors.get("output.weight") or file.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2:
        raise SourceError(f"{path}: neither output.weight nor token_embd.weight is there. Is this a language model?")
    bias = file.tensors.get("output.bias")
    family = str(file.metadata.get("general.architecture", ""))
    # 0 stands for none.
    scale = float(file.metadata.get(f"{family}.logit_scale", 0.0)) or 1.0
    softcap = float(file.metadata.get(f"{family}.final_logit_softcapping", 30.0 if family == "gemma2" else 0.0))
    return LayerParts(
        _values(file, tensor),
        bias=None if bias is None else _values(file, bias),
        scale=1.0 / scale if family.startswith(_DIVIDING) else scale,
        softcap=softcap or None,
        vocab_size=real_tokens(file, tensor.shape[0]),
    )


def real_tokens(file: GgufFile, rows: int) -> int:
    """Rows before those that stand for no token: past the vocabulary, or filled up as [PAD123] when it was converted."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        return rows
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    count = min(len(tokens), rows)
    if kinds is not None and len(kinds) >= count:
        while count > 1 and kinds[count - 1] == _UNUSED_TOKEN and _PADDING.fullmatch(tokens[count - 1]):
            count -= 1
    return count


def _values(file: GgufFile, tensor: GgufTensor) -> NDArray[Any]:
    """A tensor's numbers: mapped where they are plain, else dequantised."""
    dtype = _PLAIN.get(tensor.type)
    if dtype is not None:
        return mapped_array(file.path, dtype, tensor.shape, tensor.begin)
    try:
        import gguf
    except ImportError as error:
        raise MissingExtraError(
            package="gguf", extra="hf", purpose=f"Dequantising {tensor.name} of {file.path}"
        ) from error
    try:
        kind = gguf.GGMLQuantizationType(tensor.type)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise SourceError(
            f"{file.path}: {tensor.name} has type {tensor.type}, which package gguf does not know."
        ) from error
    row_bytes = tensor.shape[-1] // block * block_bytes
    stored = mapped_array(file.path, np.dtype(np.uint8), (*tensor.shape[:-1], row_bytes), tensor.begin)
    try:
        return _dequantised(stored, lambda rows: gguf.quants.dequantize(rows, kind), tensor.shape)
    except NotImplementedError as error:
        raise SourceError(
            f"{file.path}: {tensor.name} is {kind.name}, which package gguf does not dequantise. "
            "Convert the output layer to Q8_0 or F16 first."
        ) from error


def _dequantised(stored: NDArray[np.uint8], dequantise: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Rows as float16 where that adds no more than its last bit to a row's largest component, else as float32."""
    out: NDArray[Any] = np.empty(shape, np.float16)
    exact = np.empty(0, np.float32)
    for at in range(0, shape[0], BLOCK_ROWS):
        part = slice(at, at + BLOCK_ROWS)
        exact = dequantise(stored[part]).reshape(out[part].shape)
        with np.errstate(over="ignore", invalid="ignore"):
            out[part] = exact
            wrong = np.abs(out[part].astype(np.float32) - exact).max(axis=-1)
        if not (wrong <= np.abs(exact).max(axis=-1) * 2.0**-11).all():
            break
    else:
        return out
    out = np.empty(shape, np.float32)
    for at in range(0, shape[0], BLOCK_ROWS):
        out[at : at + BLOCK_ROWS] = dequantise(stored[at : at + BLOCK_ROWS]).reshape(out[at : at + BLOCK_ROWS].shape)
    return out
