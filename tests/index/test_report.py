"""Steps of a build: progress, cancel, seconds; the report."""

from __future__ import annotations

import json
import threading

import pytest

from index.errors import BuildCancelledError
from index.progress import PHASES, Steps, anonymous_bytes
from index.report import BuildReport


def test_events_are_few_and_the_last_of_a_phase_is_never_left_out():
    events = []
    steps = Steps(events.append, None)
    steps.start("scan", 1000)
    for done in range(1001):
        steps.advance(done, 1000)
    steps.start("codes", 2)
    steps.advance(2, 2)
    steps.finish()
    assert next(e.done for e in events if e.phase == "scan") == 0
    assert [e.done for e in events if e.phase == "scan"][-1] == 1000
    assert len(events) < 50
    assert events[-1].phase == "codes" and events[-1].eta_s == 0.0
    assert set(steps.seconds) == {"scan", "codes"}


def test_cancel_is_seen_by_every_call_but_the_one_after_publication():
    cancel = threading.Event()
    steps = Steps(None, cancel)
    steps.start("graph", 10)
    cancel.set()
    for call in (lambda: steps.advance(1, 10), steps.check, lambda: steps.start("tune", 1)):
        with pytest.raises(BuildCancelledError, match="nothing is left behind"):
            call()
    steps.tell(1, 1)
    steps.abandon()


def test_only_known_phases():
    steps = Steps(None, None)
    with pytest.raises(AssertionError):
        steps.start("lunch", 1)
    steps.abandon()
    assert PHASES[0] == "scan" and PHASES[-1] == "publish"


def test_peak_memory_is_above_the_level_at_the_start():
    if not anonymous_bytes():
        pytest.skip("this system does not tell the memory of a process")
    steps = Steps(None, None)
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    peak = steps.finish()
    assert 60e6 < peak < 200e6 and held[0] == ord("x")


def test_reports_are_json():
    report = BuildReport(rows=3, skipped_rows=[("a.npy", 1, 2, "nan")])
    assert json.loads(json.dumps(report.to_dict()))["skipped_rows"] == [["a.npy", 1, 2, "nan"]]
