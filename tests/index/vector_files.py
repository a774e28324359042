"""Small vector files for tests of their readers, and reading them the plain way."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from index.fullview import PAGE_BYTES, PageLayout, VectorFileWriter, aligned_pages


def write_file(folder: Path, n: int, dim: int, dtype: str = "float32") -> tuple[PageLayout, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(dim)
    vectors = (rng.integers(0, 256, (n, dim)) if dtype == "uint8" else rng.standard_normal((n, dim))).astype(dtype)
    ids = rng.integers(0, 2**64, n, dtype=np.uint64)
    layout = PageLayout(n, dim, np.dtype(dtype))
    with VectorFileWriter(folder / "vectors.bin", layout) as writer:
        writer.append(vectors, ids)
    return layout, vectors, ids


def flip(path: Path, byte: int, bit: int = 3) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes([value ^ 1 << bit]))


def plain_pages(folder: Path) -> np.ndarray:
    return np.fromfile(folder / "vectors.bin", np.uint8).reshape(-1, PAGE_BYTES)


def read(reader, pages) -> np.ndarray:
    out = aligned_pages(len(pages))
    reader.begin(np.asarray(pages, np.int64), out)
    reader.finish()
    return out
