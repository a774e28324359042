"""Fixtures that all tests may use: the bundled real data."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell without job control: the programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _forget_older_kernels() -> None:
    """Numba compiles a kernel anew when its own file changes, not when one does whose code it took in."""
    root = Path(__file__).parent.parent
    for package in ("index", "decoder"):
        for folder in sorted({path.parent for path in (root / package).rglob("kernels/*.py")}):
            shared = [*folder.glob("*.py"), *(root / "index" / "kernels").glob("*.py")]
            newest = max(path.stat().st_mtime for path in shared)
            for cached in folder.glob("__pycache__/*.nb[ic]"):
                if cached.stat().st_mtime < newest:
                    cached.unlink(missing_ok=True)


_forget_older_kernels()

WORDNET = Path(__file__).parent / "data" / "wordnet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wordnet:
    """The bundled slice of WordNet: see tests/data/wordnet/README.md. Arrays are read-only and shared by all tests.

    vectors int8 [24000, 384], ids uint64 [24000], texts; queries int8 [500, 384], query_texts; sample_queries int8
    [2000, 384]. points is the Parquet file itself, with the columns id, text, pos, lexname, lemma_count, vector.
    """

    points: Path
    vectors: np.ndarray
    ids: np.ndarray
    texts: list[str]
    queries: np.ndarray
    query_texts: list[str]
    sample_queries: np.ndarray


@pytest.fixture(scope="session")
def wordnet() -> Wordnet:
    """All of the bundled data, read once."""
    points = pq.read_table(WORDNET / "points.parquet")
    queries = pq.read_table(WORDNET / "queries.parquet")
    return Wordnet(
        points=WORDNET / "points.parquet",
        vectors=_matrix(points["vector"]),
        ids=points["id"].to_numpy(),
        texts=points["text"].to_pylist(),
        queries=_matrix(queries["vector"]),
        query_texts=queries["text"].to_pylist(),
        sample_queries=np.load(WORDNET / "sample_queries.npy", mmap_mode="r"),
    )


def _matrix(column) -> np.ndarray:
    values = column.combine_chunks()
    matrix = values.flatten().to_numpy().reshape(len(values), -1)
    matrix.setflags(write=False)
    return matrix
