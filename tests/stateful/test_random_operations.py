"""Random operations on a live server against a plain dict: points, payloads, filters, queries, restarts, compactions.

Sizes: the ordinary test takes seconds; the long one runs 3,000 operations. scripts/random_operations.py runs as many as it
is told.
"""

from __future__ import annotations

import pytest
from operations_run import Run


@pytest.mark.parametrize("seed", [1, 2])
def test_random_operations_agree_with_a_plain_dict(tmp_path, seed):
    run = Run(tmp_path, seed=seed, ids=200 if seed == 1 else 1500, dim=8)
    try:
        if seed == 2:
            run.fill()  # so many that compactions fold
        run.go(600, compact_every=100, restart_every=250)
    finally:
        run.end()
    assert run.compactions >= 2 and run.restarts == 2


@pytest.mark.long
def test_many_random_operations_agree_with_a_plain_dict(tmp_path):
    run = Run(tmp_path, seed=3, ids=3000, dim=16)
    try:
        run.go(3000, compact_every=450, restart_every=900)
    finally:
        run.end()
    assert run.compactions >= 3 and run.restarts == 3
