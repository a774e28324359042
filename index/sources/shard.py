"""What a format's module gives for one file: a Shard, and its rows in chunks as they stand in the file.

A module of a format has one function, open_shard(path, columns) -> Shard. It reads headers only, checks them against
the size of the file, and keeps nothing open: a shard opens its file again in each call of chunks(), so a folder of
10,000 shards needs no 10,000 descriptors, and a source can be streamed as often as needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast

import numpy as np

from index.errors import SourceError
from index.sources.block import Array, BadRow, Ids
from index.sources.sniff import hint

DIM_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns (Parquet, Arrow), data sets (HDF5) or members (npz) are vector, ids and payload."""

    vector: str | None = None
    """None: the format's own rule; refused where that leaves a choice."""
    ids: str | None = None
    payload: tuple[str, ...] | Literal["*"] | None = None
    """"*": every other column."""

    @property
    def any_named(self) -> bool:
        """True where at least one column was named, which formats without columns refuse."""
        return self.vector is not None or self.ids is not None or self.payload is not None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows as a file gives them: vectors [m, dim] of any dtype, byte order and memory order."""

    vectors: Array
    ids: Ids | None = None
    payload: Sequence[dict[str, Any] | bytes | None] | None = None
    flaws: Sequence[BadRow] = ()


class Shard(Protocol):
    """One file, header read and checked. n == 0: an empty shard, whose dim and dtype mean nothing."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def n(self) -> int:
        """Rows."""

    @property
    def dim(self) -> int:
        """Components of each row."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """As in the file, byte order included."""

    def chunks(self, start: int, rows: int) -> Iterator[Chunk]:
        """Rows from `start` to the end, in chunks of at most `rows`."""


def check_dim(path: Path | str, dim: int) -> None:
    """Refuse a dimension that no index can hold."""
    if not 1 <= dim <= DIM_MAX:
        raise SourceError(f"{path}: vectors have {dim} dimensions, needed 1 to {DIM_MAX}.")


def check_columns_exist(path: Path, kind: str, wanted: Sequence[str], there: Sequence[str]) -> None:
    """Refuse a name that is not among `there`; kind: what the format calls a column."""
    for name in wanted:
        if name not in there:
            names = ", ".join(map(repr, there)) or "none"
            raise SourceError(f"{path}: there is no {kind} {name!r}; the file has {names}.")


@contextmanager
def reading(path: Path, format_name: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn what a format's library raises into a SourceError that names the file and guesses what it really is."""
    refused: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except SourceError:
        raise
    except PermissionError as error:
        raise SourceError(f"{path}: permission to read the file was refused.") from error
    except refused as error:
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise SourceError(
            f"{path}: cannot be read as {format_name}: {said}.{hint(path, format_name)} Is the copy complete?"
        ) from error


def read_exactly(file: BinaryIO, array: Array, *, path: Path) -> Array:
    """Fill a C-contiguous array, of any dtype, from the file's position on; refuse a file that ends before."""
    if array.nbytes == 0:
        return array
    view = memoryview(cast(Any, array.reshape(-1).view(np.uint8)))
    filled = 0
    while filled < len(view):
        got = cast(Any, file).readinto(view[filled:])
        if not got:
            raise SourceError(
                f"{path}: the file ended early while being read: expected {len(view)} more bytes, found {filled}. "
                "Was it replaced or cut meanwhile?"
            )
        filled += got
    return array
