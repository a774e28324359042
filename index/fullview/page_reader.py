"""A reader of pages: begin() starts all reads of a request, finish() waits for them and verifies each page.

aligned_pages()   buffers that direct reads accept
PageReader        what linux_aio.py, threads.py and buffered.py share: order of calls, fork, close, errors

Invariant: when finish() or close() returns or raises, nothing writes into the caller's buffer any more.
Not here: how pages come from the device (the three modules), which file (vector_file.py).
"""

from __future__ import annotations

import mmap
import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from index.errors import CorruptIndexError, CorruptReason, IndexClosedError, ReadFailedError, ShapeMismatchError
from index.fullview import posix
from index.fullview.layout import PAGE_BYTES
from index.options import IoMode

if TYPE_CHECKING:
    from index.fullview.vector_file import VectorFile

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


def aligned_pages(count: int) -> UInt8Array:
    """A zeroed buffer uint8 [count, 4096] that begins at a page boundary; freed with the array.

    The memory is private: after a fork, parent and child never write into each other's buffer.
    """
    memory = mmap.mmap(-1, max(1, count) * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8, count * PAGE_BYTES).reshape(count, PAGE_BYTES)


class PageReader(ABC):
    """Reads pages of one VectorFile.

    Threads: one reader per thread; only close() may come from another thread, and waits for a running call.
    Order: begin(), finish(), begin(), finish() ...; a finish() that raises also ends its request.
    Fork: the child may use the reader; a request that was open is read again there.
    Lifetime: the reader keeps its file open; `pages` and `out` are kept from begin() to finish() and then let go.
    """

    def __init__(self, file: VectorFile, *, mode: IoMode, reason: str | None) -> None:
        self.mode, self.reason = mode, reason
        self._file = file
        self._expected = file.checksums
        self._file_pages = len(file.checksums)
        self._failure = np.zeros(3, np.int64)
        self._pages: Int64Array | None = None
        self._out: UInt8Array | None = None
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()

    # --- what each way of reading supplies ----------------------------------------------------------------------

    @abstractmethod
    def _start(self, pages: Int64Array, out: UInt8Array) -> int:
        """Check the request (posix.check_request) and, where it is REQUEST_OK, start its reads."""

    @abstractmethod
    def _collect(self, pages: Int64Array, out: UInt8Array) -> None:
        """Wait until nothing is in flight; note failures of reads and checksums in self._failure."""

    @abstractmethod
    def _release(self) -> None:
        """Wait until nothing is in flight, then give back what the system lent."""

    @abstractmethod
    def _renew(self) -> None:
        """In a child after a fork: forget what belongs to the parent and make it anew."""

    # --- the calls ----------------------------------------------------------------------------------------------

    def begin(self, pages: Int64Array, out: UInt8Array) -> None:
        """Start reading pages[i] into out[i] for all i, and return at once.

        pages: int64 [m], page indexes in the file (0 is the header), any m, repeats allowed;
        out: uint8 [>= m, 4096], C-contiguous, at a page boundary (aligned_pages), not touched until finish() returns.
        Raises IndexError for a page the file does not have, ShapeMismatchError for an unfit array, IndexClosedError.
        """
        if pages.ndim != 1 or pages.dtype != np.int64:
            raise ShapeMismatchError(f"pages is {pages.dtype} {pages.shape}, page indexes must be int64 [m]")
        if out.ndim != 2 or out.shape[1] != PAGE_BYTES or len(out) < len(pages) or not out.flags.c_contiguous:
            raise _unfit_buffer(out, len(pages))
        if not pages.flags.c_contiguous:
            pages = np.ascontiguousarray(pages)
        if self._pid != os.getpid():
            self._adopt()
        with self._lock:
            self._require_usable()
            if self._pages is not None:
                raise RuntimeError("begin() while a request is open: call finish() first")
            self._failure[0] = -1
            code = self._start(pages, out)
            if code == posix.REQUEST_OK:
                self._pages, self._out = pages, out
                return
        if code == posix.REQUEST_BUFFER_UNALIGNED:
            raise ShapeMismatchError("out does not begin at a page boundary: take it from aligned_pages()")
        beyond = pages[(pages < 0) | (pages >= self._file_pages)]
        raise IndexError(f"page {beyond[0]} was asked for, {self._file.path} has pages 0 to {self._file_pages - 1}")

    def finish(self) -> None:
        """Wait for the open request; every page is there and has the checksum it was written with.

        Raises ReadFailedError where the device refuses, CorruptIndexError for a wrong checksum or a file that is too
        short, both naming file and offset, after all reads have ended. IndexClosedError where close() came between.
        """
        if self._pid != os.getpid():
            self._adopt()
        with self._lock:
            self._require_usable()
            pages, out = self._pages, self._out
            if pages is None or out is None:
                raise RuntimeError("finish() without begin()")
            self._collect(pages, out)
            self._pages = self._out = None
            if self._failure[0] >= 0:
                self._raise_failure(int(pages[self._failure[0]]), self._failure, self._file.page_fd)

    def sequential(self, start_page: int, count: int, out: UInt8Array) -> None:
        """Fill out[i] with page start_page + i for i < count through the page cache, in one large read, verified.

        For scans of everything. out: uint8 [>= count, 4096], C-contiguous, any alignment. May be called while a request
        of begin() is open. Raises as finish() does.
        """
        if start_page < 0 or start_page + count > self._file_pages:
            raise IndexError(
                f"pages {start_page} to {start_page + count - 1} were asked for, "
                f"{self._file.path} has pages 0 to {self._file_pages - 1}"
            )
        if out.ndim != 2 or out.shape[1] != PAGE_BYTES or len(out) < count or not out.flags.c_contiguous:
            raise _unfit_buffer(out, count)
        failure = np.full(3, -1, np.int64)
        if self._pid != os.getpid():
            self._adopt()
        with self._lock:
            self._require_usable()
            # Opened for each call, so that nothing is left open between two: 5 us beside 40 us for 1 MiB in the cache.
            with self._file.scan_descriptor(aligned=out.ctypes.data % PAGE_BYTES == 0) as fd:
                posix.read_sequential(fd, start_page, count, out, self._expected, failure)
                if failure[0] >= 0:
                    self._raise_failure(start_page + int(failure[0]), failure, fd)

    def close(self) -> None:
        """Wait for reads in flight and give everything back. May be called twice, and from another thread."""
        if self._pid != os.getpid():
            self._adopt()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._release()
                self._pages = self._out = None

    def __del__(self) -> None:
        # A reader dropped with reads in flight must not let its buffer go before they end.
        if not getattr(self, "_closed", True):
            self.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _require_usable(self) -> None:
        if self._closed:
            raise IndexClosedError(f"{self._file.path} was closed; open the index again")

    def _adopt(self) -> None:
        """Called in a child after a fork, before anything else."""
        self._pid = os.getpid()
        self._lock = threading.Lock()  # another thread of the parent may have held the old one when it forked
        if self._closed:
            return
        self._renew()
        pages, out = self._pages, self._out
        if pages is not None and out is not None:
            # The parent's requests fill the parent's memory only: read again.
            self._failure[0] = -1
            self._start(pages, out)

    def _raise_failure(self, page: int, failure: Int64Array, fd: int) -> None:
        path, offset_bytes, code = self._file.path, page * PAGE_BYTES, int(failure[1])
        if code == posix.BAD_CHECKSUM:
            raise CorruptIndexError(
                path=path,
                offset_bytes=offset_bytes,
                reason=CorruptReason.CHECKSUM,
                expected=int(self._expected[page]),
                found=int(failure[2]),
            )
        if code == posix.SHORT_READ:
            needed, size = self._file_pages * PAGE_BYTES, os.fstat(fd).st_size
            if size < needed:
                raise CorruptIndexError(
                    path=path, offset_bytes=offset_bytes, reason=CorruptReason.SIZE, expected=needed, found=size
                )
        raise ReadFailedError(path=path, offset_bytes=offset_bytes, error_number=code or 5)


def _unfit_buffer(out: UInt8Array, count: int) -> ShapeMismatchError:
    return ShapeMismatchError(
        f"out is {out.dtype} {out.shape}, {count} pages need a C-contiguous uint8 [>= {count}, {PAGE_BYTES}]: "
        "take it from aligned_pages()"
    )
