#!/usr/bin/env python
"""Random operations, or kills under load, on a server of their own against a plain dict, as many as asked for.

    scripts/random_operations.py 200000 [--seed 5] [--ids 3000]      operations, with restarts, kills and compactions between
    scripts/random_operations.py --kills 100 [--seed 5]              kill -9 under load, every second one in a compaction

Ends at the first difference. What is compared: tests/stateful/points_model.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "stateful"))

from kill_run import KillRun
from operations_run import Run


def main() -> None:
    """Run, telling how far it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", type=int, nargs="?", default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--ids", type=int, default=3000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--compact-every", type=int, default=3000)
    parser.add_argument("--restart-every", type=int, default=8000)
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if given.kills:
            killed(Path(folder), given.kills, given.seed, begun)
        if given.operations:
            run_operations(Path(folder), given, begun)


def run_operations(folder: Path, given: argparse.Namespace, begun: float) -> None:
    """Operations against the model."""
    run = Run(folder, seed=given.seed, ids=given.ids, dim=given.dim)
    try:
        run.fill()
        for upto in range(0, given.operations, 10_000):
            run.go(
                min(upto + 10_000, given.operations),
                compact_every=given.compact_every,
                restart_every=given.restart_every,
            )
            print(
                f"{run.done:,} operations, {len(run.model.points)} points, {run.compactions} compactions, "
                f"{run.restarts} restarts, {run.checks:,} checks, {time.monotonic() - begun:.0f} s: no difference",
                flush=True,
            )
    finally:
        run.end()


def killed(folder: Path, kills: int, seed: int, begun: float) -> None:
    """Kills under load."""
    run = KillRun(folder, seed=seed)
    try:
        for number in range(kills):
            run.round(compaction=number % 2 == 1)
            print(
                f"{run.kills} kills, {run.in_compaction} in a compaction, {run.acknowledged:,} acknowledged requests, "
                f"{run.kept_open} unacknowledged ones done, {run.answers:,} queries, {time.monotonic() - begun:.0f} s: "
                "nothing lost, nothing made up",
                flush=True,
            )
    finally:
        run.end()


if __name__ == "__main__":
    main()
