"""What a walk costs: CPU time a row scored, of an index and its queries, on one thread.

    python scripts/measure_walk.py INDEX QUERIES.npy [--beams 64,100,200]

Thread CPU time, the least of seven runs, so that other work on the machine disturbs it less. For decision pages; CI guards
work counters, never times.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from index import open_index
from index.preview import Scratch

RUNS = 7


def main() -> None:
    """Print one line a beam."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--beams", default="64,100,200")
    arguments = parser.parse_args()
    queries = np.load(arguments.queries).astype(np.float32)
    with open_index(arguments.index) as index:
        generation = index.generation
        prepared = generation.coder.prepare(queries)
        scratch = Scratch()
        for beam in (int(text) for text in arguments.beams.split(",")):
            best = float("inf")
            for _ in range(RUNS):
                begun = time.thread_time()
                found = generation.preview.candidates(prepared, effort=beam, width=10, scratch=scratch)
                best = min(best, time.thread_time() - begun)
            rows = float(found.scored.mean())
            each = best / len(queries)
            print(f"beam {beam}: {rows:.0f} rows scored, {each * 1e6:.0f} us a query, {each / rows * 1e9:.1f} ns a row")


if __name__ == "__main__":
    main()
