"""Use an installed fullview: build a small index, ask it, and compare with exact search. Run outside the checkout.

Used on a fresh wheel and while the image is built, where it also fills Numba's cache. Prints one line; a failure is an
exception.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path

import numpy as np

import index
from index import BuildOptions, SearchOptions, build, open_index

ROWS, DIM, QUERIES = 2_000, 64, 50


def main() -> None:
    """Build, search, compare."""
    strays = [
        str(file)
        for file in importlib.metadata.files("fullview") or []
        if file.parts[0] not in ("index", "decoder", "service", "..") and not file.parts[0].endswith(".dist-info")
    ]
    if strays:
        raise SystemExit(f"the wheel holds files that are not of its packages: {strays[:5]}")

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((50, DIM))
    vectors = (centres[rng.integers(0, 50, ROWS)] + 0.3 * rng.standard_normal((ROWS, DIM))).astype(np.float32)
    queries = vectors[:QUERIES] + 0.1 * rng.standard_normal((QUERIES, DIM)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.index"
        report = build(vectors, path, options=BuildOptions(metric="cosine", memory_budget=64.0))
        with open_index(path) as opened:
            hits = opened.search(queries, k=10)
            truth = opened.search(queries, k=10, options=SearchOptions(exact=True))
    recall = np.mean([np.isin(found, true).mean() for found, true in zip(hits.ids, truth.ids)])
    if recall < 0.9:
        raise SystemExit(f"recall@10 is {recall:.3f} on {ROWS} rows, at least 0.9 was expected")
    where = Path(index.__file__).parent
    print(f"fullview {importlib.metadata.version('fullview')} in {where}: {report.rows} rows, recall@10 {recall:.3f}")


if __name__ == "__main__":
    main()
