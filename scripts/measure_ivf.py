"""Builds previews of one set within small memory budgets and prints what each recall costs: docs/decisions/0005-ivf.md.

python scripts/measure_ivf.py data/wordnet_minilm 1/8:ivf:2 1/8:ivf:pq 1/16:ivf:1 1/16:graph:1

The folder holds base.npy and queries.npy. The first half of the queries is given to the build, the second half measures.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from index import BuildOptions, SearchOptions, build, open_index


def measure(folder: Path, budget: str, preview: str, bits: str) -> None:
    """Build one index and print a line for each recall asked for."""
    queries = np.load(folder / "queries.npy").astype(np.float32)
    half = len(queries) // 2
    options = BuildOptions(memory_budget=budget, preview=preview, bits=int(bits) if bits.isdigit() else bits)
    with tempfile.TemporaryDirectory() as place:
        begun = time.monotonic()
        report = build(folder / "base.npy", Path(place) / "index", options=options, queries=queries[:half])
        phases = {name: seconds for name, seconds in report.phases.items() if name in ("lists", "graph", "order")}
        resident = sum(report.resident_bytes.values()) / 1e6
        print(
            f"\n{budget} {preview} {bits}: {report.preview}, {report.bits} bits, {resident:.1f} MB resident, "
            f"built in {time.monotonic() - begun:.0f} s, {phases}"
        )
        print("\n".join(report.choices))
        print("recall | effort | z | measured recall@10 | pages | rows scored | ms for 1,000 queries")
        with open_index(Path(place) / "index") as index:
            true = index.search(queries[half:], 10, SearchOptions(exact=True)).rows
            for recall in (0.8, 0.9, 0.95, 0.98):
                point = index.point(10, recall)
                begun = time.perf_counter()
                hits = index.search(queries[half:], 10, SearchOptions(recall=recall))
                spent = (time.perf_counter() - begun) / len(true) * 1e6
                same = [len(set(a) & set(b)) for a, b in zip(hits.rows.tolist(), true.tolist())]
                print(
                    f"{recall} | {point.effort} | {point.rule.z} | {np.mean(same) / 10:.4f} | "
                    f"{hits.work.pages_read.mean():.1f} | {hits.work.rows_scored.mean():,.0f} | {spent:.0f}"
                )


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("designs", nargs="+", help="budget:preview:bits")
    given = parser.parse_args()
    for design in given.designs:
        budget, preview, bits = design.split(":")
        measure(given.folder, budget, preview, bits)


if __name__ == "__main__":
    main()
