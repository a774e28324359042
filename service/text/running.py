"""Steps of an answer in the CPU pool, one after the other, for as long as somebody waits for them.

HeldDecoder   a decoder's lease, for a request and for the step that may still run when the request is gone
steps_of()    the steps, each in whatever thread is free

Between two steps of one answer the pool serves others: a search never waits for more than a step. A client that goes away
takes its answer with it: the step that runs is the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

from service.errors import DeadlineError
from service.pool import CpuPool
from service.text.parts import Step

T = TypeVar("T")


class Releasable(Protocol):
    """A lease."""

    def release(self) -> None:
        """Give it back."""
        ...


class HeldDecoder:
    """Gives the lease back when the request and all its work have let go of it. Threads: any."""

    def __init__(self, lease: Releasable) -> None:
        self._lease, self._holders = lease, 1
        self._lock = threading.Lock()

    def hold(self) -> None:
        """One more that uses it."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """One less."""
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self._lease.release()


class Turns:
    """Runs the work of one request in the pool, until its deadline."""

    def __init__(self, pool: CpuPool, held: HeldDecoder, *, timeout_s: float) -> None:
        self._pool, self._held, self._timeout_s = pool, held, timeout_s
        self._deadline = time.monotonic() + timeout_s

    async def run(self, work: Callable[[], T]) -> T:
        """work() in a thread of the pool. Raises DeadlineError."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_late()
        self._held.hold()
        try:
            return await self._pool.run(work, timeout_s=left, release=self._held.release)
        except DeadlineError:
            raise self._too_late() from None

    @contextlib.asynccontextmanager
    async def after(self, others: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait until fewer others are under way. Raises DeadlineError."""
        try:
            await asyncio.wait_for(others.acquire(), self._deadline - time.monotonic())
        except TimeoutError:
            raise self._too_late() from None
        try:
            yield
        finally:
            others.release()

    async def steps_of(self, steps: Iterator[Step]) -> AsyncIterator[Step]:
        """One by one."""
        while (step := await self.run(partial(next, steps, None))) is not None:
            yield step

    def _too_late(self) -> DeadlineError:
        return DeadlineError(
            f"timeout: the answer was not complete within {self._timeout_s:g} s. Ask for fewer tokens, or allow more time."
        )
