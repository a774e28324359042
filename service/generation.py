"""One open generation: an index that many requests read, closed and removed when the last one is done.

SearchableIndex   what the service needs of an index (index.OpenIndex has it; tests bring their own)
Generation        the index and who reads it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from index.options import OpenOptions, SearchOptions
from service.folders import remove_generation
from service.names import PointId
from service.readers import Readers


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

    @property
    def columns(self) -> Any:
        """index.columns.PayloadColumns, or None."""
        ...

    def search(self, queries: np.ndarray, k: int = ..., options: SearchOptions = ..., *, allowed: Any = ...) -> Any:
        """Hits of queries float32 [m, dim]. allowed: index.allowed.AllowedRows, None: every row."""
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

    def ids_of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Ids of rows: uint64, or object where strings are."""
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


class Generation(Readers):
    """An open index with a count of its readers; retired, it takes its folder with it where it is told to."""

    def __init__(self, index: SearchableIndex, folder: Path) -> None:
        super().__init__(close=lambda: self.index.close(), remove=lambda: remove_generation(self.folder))
        self.index, self.folder = index, folder
