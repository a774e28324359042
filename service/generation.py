"""One open generation: an index that many requests read, closed and removed when the last one is done.

SearchableIndex   what the service needs of an index (index.OpenIndex has it; tests bring their own)
Generation        the index and who reads it

Invariant: files are removed only after close(), and close() is called only when nobody reads.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from index.options import OpenOptions, SearchOptions
from service.names import PointId

log = logging.getLogger("fullview.engine")


class Ids(Protocol):
    """Ids of an index's rows."""

    def rows_of(self, ids: Sequence[PointId]) -> np.ndarray:
        """Int64 [m]; -1 where an id is missing."""
        ...

    def in_order(self, start_id: PointId | None, limit: int) -> tuple[Sequence[Any], np.ndarray]:
        """Ids ascending from start_id (included), and their rows int64."""
        ...


class Payloads(Protocol):
    """Payloads of an index's rows."""

    def get(self, rows: np.ndarray) -> list[bytes | None]:
        """Raw JSON of each row."""
        ...


class SearchableIndex(Protocol):
    """What the service needs of an open index."""

    @property
    def n(self) -> int:
        """Rows."""
        ...

    @property
    def dim(self) -> int:
        """Dimension."""
        ...

    @property
    def metric(self) -> Any:
        """index.options.Metric."""
        ...

    @property
    def ids(self) -> Any:
        """Ids."""
        ...

    @property
    def payload(self) -> Any:
        """Payloads, or None."""
        ...

    def search(self, queries: np.ndarray, k: int = ..., options: SearchOptions = ...) -> Any:
        """Hits of queries float32 [m, dim]."""
        ...

    def point(self, k: int, recall: float | None = ...) -> Any:
        """The OperatingPoint of a search for k hits: for that recall, or the one promised."""
        ...

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Vectors as given, [m, dim]."""
        ...

    def recall(self, queries: Any, k: int = ..., options: SearchOptions = ...) -> Any:
        """RecallEstimate of queries float32 [m, dim]."""
        ...

    def stats(self) -> dict[str, Any]:
        """Rows, preview, resident bytes by part, io mode..."""
        ...

    def close(self) -> None:
        """No call may follow."""
        ...


Opener = Callable[[Path, OpenOptions], SearchableIndex]


def open_with_index(path: Path, options: OpenOptions) -> SearchableIndex:
    """The opener of production: index.open_index."""
    # Imported here: an import of the service must not compile or load kernels (`fullview config show`).
    from index import open_index

    index: SearchableIndex = open_index(path, options=options)
    return index


class Generation:
    """An open index with a count of its readers.

    Threads: any. acquire() and release() come in pairs; retire() once. The folder is removed after the last release().
    """

    def __init__(self, index: SearchableIndex, folder: Path) -> None:
        self.index, self.folder = index, folder
        self._lock = threading.Lock()
        self._readers = 0
        self._retired = False
        self._remove_files = False

    def acquire(self) -> bool:
        """One reader more; False where it is retired already."""
        with self._lock:
            if self._retired:
                return False
            self._readers += 1
            return True

    def release(self) -> None:
        """One reader less; the last one of a retired generation ends it."""
        with self._lock:
            self._readers -= 1
            last = self._retired and self._readers == 0
        if last:
            self._end()

    def retire(self, *, remove_files: bool) -> None:
        """No new readers; ends now, or with the last reader."""
        with self._lock:
            if self._retired:
                return
            self._retired, self._remove_files = True, remove_files
            last = self._readers == 0
        if last:
            self._end()

    def _end(self) -> None:
        self.index.close()
        if self._remove_files:
            remove_generation(self.folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder and all in it; what cannot be removed is logged and left to the next start."""
    shutil.rmtree(folder, onerror=lambda _, path, error: log.warning("cannot remove %s: %s", path, error[1]))


def remove_generation(folder: Path) -> None:
    """Remove a generation's folder, and its collection's where that was the last one in it."""
    remove_folder(folder)
    # A folder that still holds something (the next generation) stays.
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def remove_folder_if_there(folder: Path) -> None:
    """remove_folder() that says nothing of a folder that never was."""
    if folder.exists():
        remove_folder(folder)
