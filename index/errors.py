"""The errors that index/ raises on purpose.

VectorIndexError                  base of everything below
    OptionsError                  also ValueError: an option, or two together, that make no sense
        BudgetTooSmallError       the least memory that works is in .needed_bytes
    ShapeMismatchError            also ValueError: an array of the wrong shape, or queries of another dimension
    BadQueryError                 also ValueError: NaN, infinity, or a zero vector under cosine
    SourceError                   also ValueError: a file of vectors that cannot be read as what it claims to be
        BadRowsError              rows with NaN or infinity; .rows names them
    BadIdError                    also ValueError: an id that is neither an unsigned 64-bit integer nor a proper string
        DuplicateIdError          one id for two rows; .id and .rows name them
    IndexExistsError              also FileExistsError: something is at the place where the index should go
    UnknownIndexError             also FileNotFoundError: no index there
    CorruptIndexError             the files contradict themselves
    UnsupportedFormatError        newer or older than this program
    ReadFailedError               also OSError: the device refused to read
    DiskFullError                 also OSError: no room; .needed_bytes where known
    BuildCancelledError           cancel was asked for
    IndexClosedError              used after close()
    MissingExtraError             also ImportError: a package that an extra installs is not there

A message says what, what came, what was needed and what to do, in that order.
"""

from __future__ import annotations

import errno
from enum import Enum
from pathlib import Path


class VectorIndexError(Exception):
    """Base of everything that index/ raises on purpose."""


class OptionsError(VectorIndexError, ValueError):
    """An option, or two together, that make no sense."""


class BudgetTooSmallError(OptionsError):
    """The memory budget is below the least that works, `needed_bytes`."""

    def __init__(self, *, budget_bytes: int, needed_bytes: int, why: str) -> None:
        self.budget_bytes, self.needed_bytes, self.why = budget_bytes, needed_bytes, why
        least_mb = -(-needed_bytes // 100_000) / 10
        super().__init__(
            f"memory_budget is {budget_bytes / 1e6:.1f} MB, the least that works here is {least_mb:.1f} MB ({why}). "
            f"Ask for memory_budget={least_mb:.1f} or more."
        )


class ShapeMismatchError(VectorIndexError, ValueError):
    """An array of the wrong shape, or vectors of another dimension."""


class BadQueryError(VectorIndexError, ValueError):
    """A query that cannot be answered: NaN, infinity, or a zero vector under cosine."""


class SourceError(VectorIndexError, ValueError):
    """A file of vectors that cannot be read as what it claims to be."""


class BadRowsError(SourceError):
    """Rows that hold NaN, infinity or values outside float32.

    rows: (file, row in the file, column, reason) of the first ones; count: how many there are in all.
    """

    def __init__(self, *, rows: list[tuple[str, int, int, str]], count: int) -> None:
        self.rows, self.count = rows, count
        shown = "; ".join(f"{file} row {row}, column {column}: {reason}" for file, row, column, reason in rows[:5])
        more = f" and {count - 5} more" if count > 5 else ""
        plural = "1 bad row" if count == 1 else f"{count} bad rows"
        super().__init__(
            f"{plural}: {shown}{more}. Every component must be a finite float32. "
            'Mend the file, or build with on_bad_rows="skip" to leave these rows out.'
        )


class BadIdError(VectorIndexError, ValueError):
    """An id that is neither an unsigned 64-bit integer nor a string of 1 to 255 characters without NUL."""


class DuplicateIdError(BadIdError):
    """One id stands for two rows, which are counted in source order."""

    def __init__(self, *, id: int | str, rows: tuple[int, int]) -> None:
        self.id, self.rows = id, rows
        super().__init__(
            f"id {id!r} stands for rows {rows[0]:,} and {rows[1]:,} of the source; each row needs an id of its own. "
            "Remove one of them, or leave the ids out to number the rows."
        )


class IndexExistsError(VectorIndexError, FileExistsError):
    """Something is already at the place where the index should go."""


class UnknownIndexError(VectorIndexError, FileNotFoundError):
    """No index there."""


class CorruptReason(Enum):
    """What contradicts itself. The values are words for people; machines compare members."""

    CHECKSUM = "checksum mismatch"
    SIZE = "wrong size"
    MISSING = "file is missing"
    HEADER = "header does not fit the manifest"


class CorruptIndexError(VectorIndexError):
    """A file of an index contradicts its manifest or itself. folder: the index, where it is not the file's parent.

    what: the sentence without the advice, for those who list many.
    """

    def __init__(
        self,
        *,
        path: Path,
        offset_bytes: int,
        reason: CorruptReason,
        expected: int | str,
        found: int | str,
        folder: Path | None = None,
    ) -> None:
        self.path, self.offset_bytes, self.reason = path, offset_bytes, reason
        self.expected, self.found = expected, found

        def shown(value: int | str) -> str:
            if isinstance(value, str):
                return value
            return f"{value:#010x}" if reason is CorruptReason.CHECKSUM else f"{value:,}"

        page = f" (page {offset_bytes // 4096})" if offset_bytes else ""
        self.what = (
            f"{path} at byte {offset_bytes:,}{page}: {reason.value}, expected {shown(expected)}, found {shown(found)}."
        )
        super().__init__(
            f"{self.what} `fullview check {folder or path.parent}` lists every bad page; "
            "restore the folder from a copy or build it again."
        )


class UnsupportedFormatError(VectorIndexError):
    """A format version that this program does not read."""


class ReadFailedError(VectorIndexError, OSError):
    """The device refused to read: errno, file and offset are named."""

    def __init__(self, *, path: Path, offset_bytes: int, error_number: int) -> None:
        self.path, self.offset_bytes = path, offset_bytes
        name = errno.errorcode.get(error_number, str(error_number))
        VectorIndexError.__init__(
            self,
            f"{path} at byte {offset_bytes:,}: reading failed with {name}. The device or file system is at fault; "
            "see the kernel's log.",
        )
        self.errno = error_number


class DiskFullError(VectorIndexError, OSError):
    """No room on the device."""

    def __init__(self, *, path: Path, needed_bytes: int, free_bytes: int) -> None:
        self.path, self.needed_bytes, self.free_bytes = path, needed_bytes, free_bytes
        VectorIndexError.__init__(
            self,
            f"{path}: {needed_bytes:,} bytes are needed, {free_bytes:,} are free. Free space there, or build elsewhere.",
        )
        self.errno = errno.ENOSPC


class BuildCancelledError(VectorIndexError):
    """The build was cancelled; nothing is left behind."""


class IndexClosedError(VectorIndexError):
    """The index was closed."""


class MissingExtraError(VectorIndexError, ImportError):
    """A package that an extra of fullview installs is not there."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'fullview[{extra}]'")
