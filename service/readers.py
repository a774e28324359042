"""Who reads something that is open: it is closed, and its files are removed, when the last reader is done.

Invariant: close() is called once, and only when nobody reads; files are removed only after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Readers:
    """A count of readers. Threads: any. acquire() and release() come in pairs; retire() once."""

    def __init__(self, *, close: Callable[[], None], remove: Callable[[], None]) -> None:
        self._close, self._remove = close, remove
        self._lock = threading.Lock()
        self._count = 0
        self._retired = False
        self._remove_files = False

    def acquire(self) -> bool:
        """One reader more; False where it is retired already."""
        with self._lock:
            if self._retired:
                return False
            self._count += 1
            return True

    def release(self) -> None:
        """One reader less; the last one of what is retired ends it."""
        with self._lock:
            self._count -= 1
            last = self._retired and self._count == 0
        if last:
            self._end()

    def retire(self, *, remove_files: bool) -> None:
        """No new readers; ends now, or with the last reader."""
        with self._lock:
            if self._retired:
                return
            self._retired, self._remove_files = True, remove_files
            last = self._count == 0
        if last:
            self._end()

    def _end(self) -> None:
        self._close()
        if self._remove_files:
            self._remove()
