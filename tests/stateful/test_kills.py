"""kill -9 under load: what was acknowledged is there, what was not is there whole or not at all, and nothing else is."""

from __future__ import annotations

import pytest
from kill_run import KillRun


def _killed(tmp_path, *, seed: int, kills: int) -> KillRun:
    run = KillRun(tmp_path, seed=seed)
    try:
        for number in range(kills):
            run.round(compaction=number % 2 == 1)
    finally:
        run.end()
    return run


def test_s29_a_kill_loses_nothing_that_was_acknowledged(tmp_path):
    run = _killed(tmp_path, seed=11, kills=4)
    assert run.acknowledged > 20 and run.answers > 20


@pytest.mark.long
@pytest.mark.timeout(900)
def test_s29_many_kills_lose_nothing_that_was_acknowledged(tmp_path):
    run = _killed(tmp_path, seed=12, kills=6)
    assert run.acknowledged > 60 and run.kills == 6
