"""Query vectors from a file of any format that sources read."""

from __future__ import annotations

import numpy as np

from index.errors import OptionsError
from index.sources import open_source


def read_queries(path: str, *, vector: str | None = None, first: int | None = None) -> np.ndarray:
    """Float32 [m, dim]: all rows of the file, or its first ones. Raises SourceError, OptionsError."""
    if first is not None and first < 1:
        raise OptionsError(f"first is {first}, needed at least 1")
    blocks, rows = [], 0
    for block in open_source(path, vector=vector).blocks():
        blocks.append(np.asarray(block.vectors, dtype=np.float32))
        rows += len(block.vectors)
        if first is not None and rows >= first:
            break
    return np.concatenate(blocks)[:first]
