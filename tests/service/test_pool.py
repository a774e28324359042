"""The CPU pool: deadlines, what is released when, and the heartbeat."""

from __future__ import annotations

import asyncio
import threading

import pytest

from service.errors import DeadlineError, NotReadyError
from service.pool import CpuPool


@pytest.fixture
def pool():
    made = CpuPool(1)
    yield made
    if not made._closed:
        made.close()


def run(pool, work, timeout_s=5.0, release=lambda: None):
    return asyncio.run(pool.run(work, timeout_s=timeout_s, release=release))


def test_results_and_failures_come_back(pool):
    released = []
    assert run(pool, lambda: 7, release=lambda: released.append(1)) == 7
    with pytest.raises(ZeroDivisionError):
        run(pool, lambda: 1 / 0, release=lambda: released.append(2))
    assert released == [1, 2]


def test_work_that_started_keeps_what_it_holds_after_its_deadline(pool):
    started, may_end, released = threading.Event(), threading.Event(), threading.Event()

    def work():
        started.set()
        may_end.wait(10)

    with pytest.raises(DeadlineError, match=r"0\.05 s"):
        run(pool, work, timeout_s=0.05, release=released.set)
    assert started.is_set()
    assert not released.is_set()
    may_end.set()
    assert released.wait(10)


def test_work_that_was_given_up_in_the_queue_never_starts(pool):
    may_end, ran, released = threading.Event(), [], []

    async def both():
        first = asyncio.create_task(pool.run(lambda: may_end.wait(10), timeout_s=10, release=lambda: None))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineError):
            await pool.run(lambda: ran.append(1), timeout_s=0.05, release=lambda: released.append(1))
        assert released == [1]
        may_end.set()
        await first

    asyncio.run(both())
    assert run(pool, lambda: "after") == "after"
    assert (ran, released) == ([], [1])


def test_a_cancelled_caller_releases_once(pool):
    may_end, released = threading.Event(), []

    async def leave():
        blocker = asyncio.create_task(pool.run(lambda: may_end.wait(10), timeout_s=10, release=lambda: None))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(pool.run(lambda: None, timeout_s=10, release=lambda: released.append(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        may_end.set()
        await blocker

    asyncio.run(leave())
    assert released == [1]


def test_the_heartbeat_tells_how_long_nobody_answered(pool):
    may_end, answered = threading.Event(), threading.Event()
    pool._queue.put(lambda: may_end.wait(10))
    assert pool.stalled_s() == 0.0
    assert pool.stalled_s() > 0.0
    may_end.set()
    pool._queue.put(answered.set)
    assert answered.wait(10)
    assert pool.stalled_s() == 0.0


def test_a_closed_pool_refuses_and_releases(pool):
    pool.close()
    released = []
    with pytest.raises(NotReadyError):
        run(pool, lambda: 1, release=lambda: released.append(1))
    assert released == [1]
