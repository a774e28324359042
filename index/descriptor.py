"""Descriptors of an open index's files: only regular files are opened, and none is closed under who reads it.

open_regular   a descriptor of a regular file; never waits for a FIFO, never touches a device
Descriptor     one descriptor that many threads read and one closes
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from index.errors import IndexClosedError

KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What a path leads to, in words, by stat.S_IFMT."""


class NotAFileError(OSError):
    """There is something, but not a file; the text says what."""


def open_regular(path: Path) -> int:
    """A descriptor for reading a regular file, symbolic links followed. Raises NotAFileError, OSError."""
    _require_regular(os.stat(path))  # noqa: PTH116 (Path.stat would do the same)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _require_regular(os.fstat(fd))  # it may have been replaced in between
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAFileError(KINDS[stat.S_IFMT(found.st_mode)])


class Descriptor:
    """A file open for reading at any place. Threads: reading() from any number, close() from any.

    Reads run without the GIL, and a number that was closed is soon another file's: so close() waits for them.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._fd, self._readers = path, open_regular(path), 0
        self._changed = threading.Condition()
        self._pid = os.getpid()

    @contextmanager
    def reading(self) -> Iterator[int]:
        """The descriptor, kept open inside. Raises IndexClosedError after close()."""
        with self._condition():
            if self._fd < 0:
                raise IndexClosedError(f"{self._path} was closed; open the index again")
            fd = self._fd
            self._readers += 1
        pid = self._pid
        try:
            yield fd
        finally:
            with self._condition():
                if pid == self._pid:  # a child after a fork counts anew
                    self._readers -= 1
                    if not self._readers:
                        self._changed.notify_all()

    def close(self) -> None:
        """Wait for reads that run, and close the file. May be called twice."""
        with self._condition() as changed:
            fd, self._fd = self._fd, -1
            while self._readers:
                changed.wait()
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Nobody reads: who does holds a reference.
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def _condition(self) -> Iterator[threading.Condition]:
        if self._pid != os.getpid():
            # In a child after a fork: the threads that read, or held the lock, do not exist here.
            self._pid, self._changed, self._readers = os.getpid(), threading.Condition(), 0
        with self._changed:
            yield self._changed
