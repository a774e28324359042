"""Writing vectors.bin and vectors.sum from rows in disk order, in one pass, with a few MB in memory.

VectorFileWriter   append() blocks of rows, close()

The header is written last: a file whose writing was cut off has zeros there and is refused.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import xxhash

from index.errors import DiskFullError, ShapeMismatchError
from index.fullview.checksum import page_checksums
from index.fullview.headers import SUM_HEADER_BYTES, sum_header, vector_header
from index.fullview.layout import ID_BYTES, PAGE_BYTES, PageLayout

_BLOCK_BYTES = 1 << 20


class VectorFileWriter:
    """Writes `path` (vectors.bin) and, beside it, the same name with the suffix .sum.

    A context manager: leaving it calls close(), leaving it by an exception abandons the files as they are.
    Threads: one. Raises DiskFullError with what is still needed, ShapeMismatchError for blocks that do not fit.
    """

    def __init__(self, path: Path, layout: PageLayout) -> None:
        self.path, self.layout = Path(path), layout
        self.sums_path = self.path.with_suffix(".sum")
        groups = max(1, _BLOCK_BYTES // layout.group_bytes)
        self._capacity = groups * layout.vectors_per_page
        self._pages = np.zeros((groups, layout.group_bytes), np.uint8)
        self._vectors = np.zeros((self._capacity, layout.vector_bytes), np.uint8)
        self._ids = np.zeros(self._capacity, np.uint64)
        self._sums = np.zeros(groups * layout.pages_per_vector, np.uint32)
        self._filled = self._written = 0
        self._digest = xxhash.xxh3_64()
        self._file = self.path.open("wb", buffering=0)
        try:
            self._sums_file = self.sums_path.open("wb", buffering=0)
        except BaseException:
            self._file.close()
            raise
        header = np.frombuffer(vector_header(layout), np.uint8).reshape(1, PAGE_BYTES)
        self._write_pages(np.zeros_like(header), sums_of=header)

    def append(self, vectors: npt.NDArray[np.generic], id_codes: npt.NDArray[np.uint64]) -> None:
        """Add rows in disk order. vectors: [m, dim] of the layout's dtype, finite; id_codes: uint64 [m]."""
        layout = self.layout
        if vectors.ndim != 2 or vectors.shape[1] != layout.dim or vectors.dtype != layout.dtype:
            raise ShapeMismatchError(
                f"vectors is {vectors.dtype} {vectors.shape}, {self.path} takes {layout.dtype} [m, {layout.dim}]"
            )
        if id_codes.shape != (len(vectors),) or id_codes.dtype != np.uint64:
            raise ShapeMismatchError(
                f"id_codes is {id_codes.dtype} {id_codes.shape}, it must be uint64 [{len(vectors)}], one a vector"
            )
        if self._written + self._filled + len(vectors) > layout.n:
            raise self._wrong_count(self._written + self._filled + len(vectors))
        assert layout.dtype.kind != "f" or np.isfinite(vectors).all(), "a row with NaN or infinity got past the scan"
        taken = 0
        while taken < len(vectors):
            room = min(self._capacity - self._filled, len(vectors) - taken)
            block = np.ascontiguousarray(vectors[taken : taken + room])
            here = slice(self._filled, self._filled + room)
            self._vectors[here] = block.view(np.uint8).reshape(room, layout.vector_bytes)
            self._ids[here] = id_codes[taken : taken + room]
            self._filled += room
            taken += room
            if self._filled == self._capacity:
                self._flush()

    def close(self) -> None:
        """Write what is left, then checksums, then the header; on the device when this returns."""
        if self._file.closed:
            return
        try:
            if self._written + self._filled != self.layout.n:
                raise self._wrong_count(self._written + self._filled)
            self._flush()
            header = sum_header(count=self.layout.file_pages, xxh3=self._digest.intdigest())
            self._sums_file.seek(0)
            self._write(self._sums_file.fileno(), header)
            os.fsync(self._sums_file.fileno())
            os.fsync(self._file.fileno())
            self._file.seek(0)
            self._write(self._file.fileno(), vector_header(self.layout))
            os.fsync(self._file.fileno())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files as they are; without close() before, they are not a vector file."""
        self._file.close()
        self._sums_file.close()

    def __enter__(self) -> VectorFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def _flush(self) -> None:
        layout, per_page = self.layout, self.layout.vectors_per_page
        groups = -(-self._filled // per_page)
        if groups == 0:
            return
        used = groups * per_page
        self._vectors[self._filled : used] = 0
        self._ids[self._filled : used] = 0
        pages = self._pages[:groups]
        pages[:, : per_page * layout.vector_bytes] = self._vectors[:used].reshape(groups, -1)
        if layout.ids_in_pages:
            ids = self._ids[:used].astype("<u8").view(np.uint8).reshape(groups, per_page * ID_BYTES)
            pages[:, -per_page * ID_BYTES :] = ids
        flat = pages.reshape(-1, PAGE_BYTES)
        self._write_pages(flat, sums_of=flat)
        self._written += self._filled
        self._filled = 0

    def _write_pages(self, pages: npt.NDArray[np.uint8], *, sums_of: npt.NDArray[np.uint8]) -> None:
        page_checksums(sums_of, self._sums)
        sums = self._sums[: len(pages)].astype("<u4").tobytes()
        self._digest.update(sums)
        self._write(self._file.fileno(), pages.data.cast("B"))
        if self._written == self._filled == 0 and self._sums_file.tell() == 0:
            self._write(self._sums_file.fileno(), bytes(SUM_HEADER_BYTES))
        self._write(self._sums_file.fileno(), sums)

    def _wrong_count(self, count: int) -> ShapeMismatchError:
        return ShapeMismatchError(f"{count:,} rows were appended, {self.path} is laid out for {self.layout.n:,}")

    def _write(self, fd: int, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            needed = self.layout.file_bytes + self.layout.file_pages * 4 - os.fstat(self._file.fileno()).st_size
            free = shutil.disk_usage(self.path.parent).free
            raise DiskFullError(path=self.path, needed_bytes=max(needed, len(rest)), free_bytes=free) from error
