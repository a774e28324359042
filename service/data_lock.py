"""One owner of a data folder: an advisory lock on a file that names the owner's process id.

The kernel lets go of the lock when its owner dies, however it dies: a stale file is no stale lock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_FILE = "fullview.lock"


class DataFolderInUseError(Exception):
    """Another process owns the data folder."""

    def __init__(self, *, folder: Path, owner: str) -> None:
        self.folder, self.owner = folder, owner
        super().__init__(
            f"The data folder {folder} is in use by process {owner or 'unknown'}. "
            "Stop that server, or choose another data_dir."
        )


class DataLock:
    """The lock, held from the call of the constructor until release() or the end of the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise DataFolderInUseError(folder=folder, owner=owner) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Another process may own the folder afterwards."""
        os.close(self._file)
