"""Random clusters as .fvecs: a file of any size to build from.

    python scripts/make_clusters.py OUT.fvecs [--rows 1000000] [--dim 128] [--clusters 2000] [--seed 0]

Row = centre of a random cluster + 0.5 * noise, both standard normal. Streams; holds a few megabytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

BLOCK = 20_000


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    generator = np.random.default_rng(given.seed)
    centres = generator.normal(size=(given.clusters, given.dim)).astype(np.float32)
    with given.out.open("wb") as file:
        for start in range(0, given.rows, BLOCK):
            count = min(BLOCK, given.rows - start)
            rows = centres[generator.integers(0, given.clusters, count)]
            rows = rows + 0.5 * generator.normal(size=rows.shape).astype(np.float32)
            record = np.empty((count, given.dim + 1), np.float32)
            record[:, 0] = np.array(given.dim, np.int32).view(np.float32)
            record[:, 1:] = rows
            file.write(record.tobytes())


if __name__ == "__main__":
    main()
