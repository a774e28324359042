"""The bundled data: where it lies, and the sentences that are asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from index.errors import OptionsError

INSIDE_CHECKOUT = Path("tests") / "data" / "wordnet"
POINTS, QUERIES, SAMPLE_QUERIES = "points.parquet", "queries.parquet", "sample_queries.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledData:
    """folder holds POINTS and SAMPLE_QUERIES; texts and vectors float32 [m, dim] are those of QUERIES."""

    folder: Path
    texts: list[str]
    vectors: NDArray[np.float32]


def find_data(given: Path | None) -> BundledData:
    """The data in the folder given, else in the checkout that this program is from, else below the working folder.

    Raises OptionsError where it is not there.
    """
    checkout = Path(__file__).resolve().parents[2]
    tried = [given] if given is not None else [checkout / INSIDE_CHECKOUT, Path.cwd() / INSIDE_CHECKOUT]
    for folder in tried:
        if all((folder / name).is_file() for name in (POINTS, QUERIES, SAMPLE_QUERIES)):
            return _read(folder.resolve())
    raise OptionsError(
        f"The demo's data is not in {' or '.join(str(folder) for folder in tried)}: {POINTS}, {QUERIES} and "
        f"{SAMPLE_QUERIES} are needed. They come with the source checkout, not with the installed package: run the "
        f"demo there, or name the folder: fullview demo --data CHECKOUT/{INSIDE_CHECKOUT.as_posix()}"
    )


def _read(folder: Path) -> BundledData:
    table = pq.read_table(folder / QUERIES)
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    return BundledData(folder=folder, texts=[str(text) for text in table["text"].to_pylist()], vectors=vectors)
