"""The README's figure from a run of the benchmark.

    fullview bench index --dataset wordnet_minilm ... --out FOLDER
    python scripts/make_readme_figure.py FOLDER/results.json

Draws docs/recall_qps.png with the benchmark's own picture (matplotlib is needed: extra bench) and prints the caption for
the README: the data, the budget, the hardware and the commit, as the run wrote them down.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from service.bench.picture import draw
from service.bench.report import caption
from service.bench.results import Results

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "recall_qps.png"


def read_results(path: Path) -> Results:
    """What `fullview bench index` wrote into results.json; numbers of threads become numbers again."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def main() -> None:
    """Draw the figure and say what stands below it."""
    parser = argparse.ArgumentParser(description="Draw the README's figure.")
    parser.add_argument("results", type=Path, help="results.json of `fullview bench index`")
    parser.add_argument("--out", type=Path, default=FIGURE, help="the PNG to write")
    given = parser.parse_args()
    results = read_results(given.results)
    draw(results, given.out)
    print(caption(results))
    print(f"Made with: {results.command}")


if __name__ == "__main__":
    main()
