"""A file of zeros in the data folder that is given up when the disk is full, so that deleting still works there."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

RESERVE_FILE = "reserve"
RESERVE_BYTES = 1 << 20


class DiskReserve:
    """Room for a few transactions. Threads: any; they take turns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()

    def fill(self) -> None:
        """Take the room, where there is any; nothing happens where it is taken already or the disk is full."""
        with self._lock:
            try:
                if self._path.exists() and self._path.stat().st_size == RESERVE_BYTES:
                    return
                with self._path.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            except OSError:
                self.empty()

    def empty(self) -> None:
        """Give the room back."""
        with self._lock, contextlib.suppress(OSError):
            self._path.unlink()
