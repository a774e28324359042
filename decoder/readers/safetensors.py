"""safetensors: a length, a JSON header, and the tensors' bytes. Read without torch, bfloat16 included.

Bytes: uint64 little-endian n; n bytes of JSON, name -> {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted
from the end of the header; then the data, little-endian, C order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.readers.parts import mapped_array
from decoder.tensors import BFLOAT16_BITS
from index.errors import SourceError

HEADER_MAX_BYTES = 100_000_000
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16_BITS,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file: what its header says, begin and end in bytes of the file."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def array(self) -> NDArray[Any]:
        """Its values, mapped. SourceError for dtypes that are not numbers as NumPy or bfloat16 has them."""
        dtype = DTYPES.get(self.dtype)
        if dtype is None:
            raise SourceError(
                f"{self.path}: tensor {self.name!r} has dtype {self.dtype}, needed F16, BF16, F32 or F64. "
                "Dequantise the output layer first."
            )
        needed = int(np.prod(self.shape, dtype=object)) * dtype.itemsize
        if self.end - self.begin != needed:
            raise SourceError(
                f"{self.path}: tensor {self.name!r} of shape {self.shape} and dtype {self.dtype} takes {needed:,} bytes, "
                f"its offsets leave {self.end - self.begin:,}. The header is damaged."
            )
        return mapped_array(self.path, dtype, self.shape, self.begin)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(HEADER_MAX_BYTES, size - 8):
            raise SourceError(
                f"{path}: a header of {length:,} bytes is announced, the file has {size:,}. "
                "It is cut, or it is no safetensors file."
            )
        text = file.read(length)
    try:
        said = json.loads(text)
        return {
            name: Tensor(
                path,
                name,
                str(entry["dtype"]),
                tuple(int(side) for side in entry["shape"]),
                8 + length + int(entry["data_offsets"][0]),
                8 + length + int(entry["data_offsets"][1]),
            )
            for name, entry in said.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise SourceError(f"{path}: the safetensors header does not parse ({error!r}). The file is damaged.") from error
