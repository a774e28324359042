"""The bundled data: where it lies, and the sentences that are asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from index.errors import OptionsError
from service.demo.decoder_data import HEAD_FILES, HeadData, read_head

INSIDE_CHECKOUT = Path("tests") / "data"
WORDNET, MARIAN = "wordnet", "marian"
"""Folders of the bundled data."""
POINTS, QUERIES, SAMPLE_QUERIES = (
    f"{WORDNET}/{name}" for name in ("points.parquet", "queries.parquet", "sample_queries.npy")
)
NEEDED = (POINTS, QUERIES, SAMPLE_QUERIES, *(f"{MARIAN}/{name}" for name in HEAD_FILES))


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledData:
    """folder holds NEEDED; texts and vectors float32 [m, dim] are those of QUERIES; head is what MARIAN holds."""

    folder: Path
    texts: list[str]
    vectors: NDArray[np.float32]
    head: HeadData


def find_data(given: Path | None) -> BundledData:
    """The data in the folder given, else in the checkout that this program is from, else below the working folder.

    Raises OptionsError where it is not there.
    """
    checkout = Path(__file__).resolve().parents[2]
    tried = [given] if given is not None else [checkout / INSIDE_CHECKOUT, Path.cwd() / INSIDE_CHECKOUT]
    for folder in tried:
        if all((folder / name).is_file() for name in NEEDED):
            return _read(folder.resolve())
    missing = [name for name in NEEDED if not (tried[0] / name).is_file()]
    raise OptionsError(
        f"The demo's data is not in {' or '.join(str(folder) for folder in tried)}: {', '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} needed. They come with the source checkout, not with the installed "
        f"package: run the demo there, or name the folder: fullview demo --data CHECKOUT/{INSIDE_CHECKOUT.as_posix()}"
    )


def _read(folder: Path) -> BundledData:
    table = pq.read_table(folder / QUERIES)
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    texts = [str(text) for text in table["text"].to_pylist()]
    return BundledData(folder=folder, texts=texts, vectors=vectors, head=read_head(folder / MARIAN))
