"""Precision and log-probability errors counted by hand; tuning; the race; numbers of threads."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace

import numpy as np
import pytest
from bench_heads import Scripted, small_head

from service.bench.decoder import cores
from service.bench.decoder.entrant import Found
from service.bench.decoder.quality import Truth, measure
from service.bench.decoder.race import race, time_calls
from service.bench.decoder.results import Point, Quality
from service.bench.decoder.tune import cheapest, sweep

K = 10


@pytest.fixture(scope="module")
def truth():
    head = small_head(states=4)
    return Truth.of(head.layer, head.states, K, threads=1)


def test_precision_and_errors_are_those_counted_by_hand(truth):
    ids, logprobs = truth.token_ids.copy(), truth.logprobs.copy()
    ids[1, [0, 1]] = ids[1, [1, 0]]
    ids[2, 5:] = 1499 - np.arange(5)
    assert not set(ids[2, 5:]) & set(truth.token_ids[2])
    stated = truth.logprobs_of(ids[:, 0])
    assert stated[1] < logprobs[1] and (stated[[0, 2, 3]] == logprobs[[0, 2, 3]]).all()
    off = np.array([0.0, 0.2, -0.1, 0.5], np.float32)
    stderr = np.array([0.0, 0.2, 0.01, 0.3], np.float32)
    found = Found(token_ids=ids, rows_scored=np.array([1.0, 2.0, 3.0, 6.0]), logprobs=stated + off, stderr=stderr)
    quality = measure(Scripted("ours", lambda states, k, setting: found), truth, {})
    assert quality.precision_1 == 0.75 and quality.precision_k == pytest.approx(35 / 40) and quality.rows_scored == 3.0
    assert quality.logprob_error == pytest.approx(0.2, abs=1e-5) and quality.covered == 0.75
    assert quality.logprob_error_p95 == pytest.approx(np.percentile(np.abs(off), 95), abs=1e-5)
    assert quality.half_width == pytest.approx(1.96 * stderr.mean())


def test_states_come_in_batches_or_alone_and_no_more_is_claimed_than_is_told(truth):
    def answers(states, k, setting):
        places = [np.flatnonzero((truth.states == state).all(axis=1))[0] for state in states]
        return Found(token_ids=truth.token_ids[places])

    for entrant, batches in (
        (Scripted("all", answers), [4]),
        (Scripted("few", answers, largest_batch=3), [3, 1]),
    ):
        quality = measure(entrant, truth, {}, threads=2)
        assert [call[0] for call in entrant.calls] == batches and entrant.calls[0][2] == 2
        assert quality == Quality(precision_1=1.0, precision_k=1.0)
    alone = Scripted("alone", answers)
    measure(alone, truth, {}, batch=1)
    assert [call[0] for call in alone.calls] == [1, 1, 1, 1]


def graded(truth, right):
    """An entrant that finds so many of the ten as its setting's last knob says."""

    def answers(states, k, setting):
        ids = np.full((len(states), k), -1, np.int32)
        places = [np.flatnonzero((truth.states == state).all(axis=1))[0] for state in states]
        found = min(k, right(setting))
        ids[:, :found] = truth.token_ids[places, :found]
        return Found(token_ids=ids)

    return answers


def test_a_sweep_ends_where_more_tells_nothing(truth):
    entrant = Scripted(
        "one knob", graded(truth, lambda setting: setting["ef"]), settings=[{"ef": ef} for ef in (5, 9, 10, 20)]
    )
    events = []
    points = sweep(entrant, truth, batches=(1,), seconds=0.001, on_progress=lambda *event: events.append(event))
    assert [point.setting["ef"] for point in points] == [5, 9, 10] and events[0] == (0, 4)
    assert [point.quality.precision_k for point in points] == [0.5, 0.9, 1.0] and all(point.us > 0 for point in points)
    assert cheapest(points, (1.0, 0.9)) == (points[1], True)
    assert cheapest(points[:2], (1.0, 0.99)) == (points[1], False)


def test_of_two_knobs_each_kind_is_swept_by_itself(truth):
    settings = [{"width": width, "rerank": rows} for width in (2, 4) for rows in (2, 3, 5)]
    entrant = Scripted("two", graded(truth, lambda s: s["width"] * s["rerank"]), settings=settings)
    points = sweep(entrant, truth, batches=(1,), seconds=0.001)
    assert [(p.setting["width"], p.setting["rerank"]) for p in points] == [(2, 2), (2, 3), (2, 5), (4, 2), (4, 3)]


def test_where_the_batch_matters_the_least_precise_one_counts(truth):
    def answers(states, k, setting):
        return graded(truth, lambda _: 10 if len(states) == 1 else 7)(states, k, setting)

    for matters, precision in ((True, 0.7), (False, 0.7)):
        entrant = Scripted("auto", answers)
        entrant.batch_matters = matters
        (found,) = sweep(entrant, truth, batches=(1, 2), seconds=0.001)
        assert found.quality.precision_k == precision
        assert (2 in {call[0] for call in entrant.calls}) == matters


def point(us, precision, **setting):
    return Point(setting=setting, quality=Quality(precision_1=precision, precision_k=precision), us=us)


def test_the_least_effort_counts_and_among_kinds_the_time():
    one = [point(5.0, 0.98, ef=1), point(9.0, 0.99, ef=2), point(7.0, 0.995, ef=3)]
    assert cheapest(one, (0.99, 0.98)) == (one[1], True)
    two = [point(9.0, 0.99, width=1, n=5), point(1.0, 0.999, width=1, n=9), point(4.0, 0.99, width=2, n=2)]
    assert cheapest(two, (0.99, 0.98)) == (two[2], True)


def test_a_race_goes_round_and_leaves_out_who_cannot():
    order = []

    def noting(name):
        def answers(states, k, setting):
            if not order or order[-1] != name:
                order.append(name)
            return Found(token_ids=np.zeros((len(states), k), np.int32), mode="walk")

        return answers

    runners = [(Scripted(name, noting(name)), {"ef": 3}) for name in "abc"]
    runners.append((Scripted("single", largest_batch=1), {}))
    states, events = np.zeros((20, 4), np.float32), []
    times, modes = race(
        runners, states, K, threads=2, batch=8, seconds=0.001, turns=2, on_progress=lambda *event: events.append(event)
    )
    assert order == ["a", "b", "c", "b", "c", "a"] and events[-1] == (5, 6)
    assert times.keys() == set("abc") and all(len(spent) == 2 and min(spent) > 0 for spent in times.values())
    assert modes == dict.fromkeys("abc", "walk")
    assert all(call == (8, {"ef": 3}, 2) for entrant, _ in runners[:3] for call in entrant.calls)
    assert runners[3][0].calls == []


def test_a_batch_larger_than_there_are_states_repeats_them():
    entrant = Scripted("a")
    us, mode = time_calls(entrant, np.zeros((5, 4), np.float32), K, {}, threads=1, batch=64, seconds=0.001)
    assert us > 0 and mode == "walk" and {call[0] for call in entrant.calls} == {64}


def test_threads_of_every_library_are_set(monkeypatch):
    told = []
    monkeypatch.setitem(cores.sys.modules, "torch", SimpleNamespace(set_num_threads=told.append))
    monkeypatch.setitem(cores.sys.modules, "faiss", SimpleNamespace(omp_set_num_threads=told.append))
    np.ones((4, 4)) @ np.ones((4, 4))
    known = cores.use_threads(1)
    assert told == [1, 1]
    readers = [
        getattr(ctypes.CDLL(path), name)
        for path in cores._loaded()
        for name in ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads")
        if hasattr(ctypes.CDLL(path), name)
    ]
    assert known or not readers
    for threads in (2, 1):
        cores.use_threads(threads)
        assert all(reader() in (threads, min(threads, len(os.sched_getaffinity(0)))) for reader in readers)


def test_waiting_threads_are_told_to_sleep(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    cores.quiet_threads()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    cores.quiet_threads()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
