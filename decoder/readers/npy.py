"""npy: one array a file. float16, float32 and float64; bfloat16 as packages save it (two opaque bytes) or as uint16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.readers.parts import mapped_array
from decoder.tensors import BFLOAT16_BITS
from index.errors import SourceError
from index.sources.npy import read_header


def read_array(path: Path) -> NDArray[Any]:
    """The array of an npy file, mapped."""
    with path.open("rb") as file:
        header = read_header(file, where=str(path), path=path)
    dtype = header.dtype
    if dtype.hasobject:
        raise SourceError(f"{path}: dtype is object, needed numbers. Pickled objects are never loaded.")
    if dtype.kind == "V" and dtype.itemsize == 2:
        dtype = BFLOAT16_BITS
    shape = header.shape[::-1] if header.fortran else header.shape
    array = mapped_array(path, dtype, shape, header.data_offset)
    return np.transpose(array) if header.fortran else array
