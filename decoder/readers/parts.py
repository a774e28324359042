"""What a reader found: the parts of an output layer, not yet checked.

mapped_array   a part of a file as an array, mapped privately
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import SourceError


@dataclass(frozen=True, slots=True)
class LayerParts:
    """weight [rows, d], bias, scale, softcap and vocab_size as OutputLayer takes them."""

    weight: NDArray[Any]
    bias: NDArray[Any] | None = None
    scale: float = 1.0
    softcap: float | None = None
    vocab_size: int | None = None


def mapped_array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> NDArray[Any]:
    """An array that lies in a file from byte `offset` on, C order. Empty ones are not mapped."""
    if 0 in shape:
        return np.empty(shape, dtype)
    count = int(np.prod(shape, dtype=object))
    end = offset + count * dtype.itemsize
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if end > size:
            raise SourceError(
                f"{path}: an array of shape {shape} ends at byte {end:,}, the file at {size:,}. "
                "Was it cut while being copied?"
            )
        # Only this array's part: a private mapping of a whole model may exceed what the system lets a process promise.
        start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        part = mmap.mmap(file.fileno(), end - start, access=mmap.ACCESS_COPY, offset=start)
    return np.frombuffer(part, dtype, count, offset - start).reshape(shape)
