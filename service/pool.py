"""The CPU pool: as many threads as cores run everything that computes; the event loop only parses and sends.

run()        work in a thread, given up at its deadline
stalled_s()  how long the pool has not answered its heartbeat (readiness asks)

Invariant: work that was given up before it started never starts; work that has started ends by itself, and whatever it
holds is released then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from service.errors import DeadlineError

T = TypeVar("T")


class CpuPool:
    """Threads that search. run() from the event loop; close() once, at the end."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="fullview-search")
        self._beat_lock = threading.Lock()
        self._beat_sent: float | None = None

    async def run(self, work: Callable[[], T], *, timeout_s: float, release: Callable[[], None]) -> T:
        """work() in a thread of the pool.

        release() is called exactly once, when the work has ended or will never start, and not earlier: at a deadline
        the caller goes, while the thread may still be reading. Raises DeadlineError after timeout_s seconds.
        """
        try:
            future: Future[T] = self._executor.submit(work)
        except BaseException:
            release()
            raise
        future.add_done_callback(lambda _: release())
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise DeadlineError(
                f"timeout: no answer within {timeout_s:g} s. Ask for less at once, or give a longer timeout."
            ) from None

    def stalled_s(self) -> float:
        """Seconds that the heartbeat has been waiting for a thread; 0.0 where the pool answers. Sends the next beat."""
        now = time.monotonic()
        with self._beat_lock:
            if self._beat_sent is not None:
                return now - self._beat_sent
            self._beat_sent = now
        self._executor.submit(self._answer_beat)
        return 0.0

    def close(self) -> None:
        """Ends the threads after the work that has started; what has not is dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _answer_beat(self) -> None:
        with self._beat_lock:
            self._beat_sent = None
