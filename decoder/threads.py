"""Work in parts, on threads that are kept: starting some for each call costs as much as a tenth of an exact scan.

each_part        work(0), ..., work(parts - 1): the first on the caller's thread, the others on the shared ones
usable_cores     how many threads can run at once
one_blas_thread  matrix products and decompositions whose bits do not depend on how many threads BLAS has

Kernels release the GIL, so parts run side by side. The threads are shared by all callers of the process; a child of a fork
makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

Result = TypeVar("Result")

_lock = threading.Lock()
_shared: list[ThreadPoolExecutor] = []
_blas_users = 0
_blas_limit: Any = None


def _threads() -> ThreadPoolExecutor:
    with _lock:
        if not _shared:
            _shared.append(ThreadPoolExecutor(max(1, os.cpu_count() or 1), thread_name_prefix="decoder"))
        return _shared[0]


def _forget() -> None:
    """In a child: the parent's threads are not there, and its lock may be held for ever."""
    global _lock, _blas_users, _blas_limit
    _lock = threading.Lock()
    _shared.clear()
    _blas_users, _blas_limit = 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each_part(work: Callable[[int], Result], parts: int) -> list[Result]:
    """Results of work(part) in order. What one part raises is raised once all have ended."""
    if parts <= 1:
        return [work(0)]
    pending = [_threads().submit(work, part) for part in range(1, parts)]
    try:
        first = work(0)
    finally:
        errors = [future.exception() for future in pending]
    for error in errors:
        if error is not None:
            raise error
    return [first, *(future.result() for future in pending)]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS of the whole process works in one thread until the last of those that asked for it has ended.

    How BLAS splits a product among threads decides the order of its sums, so two processes round it differently.
    """
    global _blas_users, _blas_limit
    with _lock:
        if _blas_users == 0:
            _blas_limit = threadpool_limits(1, user_api="blas")
        _blas_users += 1
    try:
        yield
    finally:
        with _lock:
            _blas_users -= 1
            if _blas_users == 0:
                _blas_limit.restore_original_limits()
                _blas_limit = None
