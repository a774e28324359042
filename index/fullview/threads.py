"""Pages by a pool of threads, each in compiled code: for systems that refuse Linux AIO.

ThreadsReader   a PageReader over the pool of its VectorFile

A request is cut into at most THREADS parts. Handing a part over costs about 10 us of Python, a page inside it nothing.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from index.fullview.page_reader import PageReader
from index.fullview.posix import REQUEST_OK, check_request, note_failure, read_pages
from index.options import IoMode

if TYPE_CHECKING:
    from index.fullview.vector_file import VectorFile

THREADS = 16

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


def read_pool() -> ThreadPoolExecutor:
    """The threads that a VectorFile's readers share; they start with the first request."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="fullview-read")


class ThreadsReader(PageReader):
    """A PageReader whose reads are preadv calls of a shared pool of threads."""

    def __init__(self, file: VectorFile, *, reason: str | None = None) -> None:
        super().__init__(file, mode=IoMode.THREADS, reason=reason)
        self._parts: list[Future[None]] = []
        self._failures = np.full((THREADS, 3), -1, np.int64)

    def _start(self, pages: Int64Array, out: UInt8Array) -> int:
        code = int(check_request(pages, out, self._file_pages))
        if code == REQUEST_OK and len(pages):
            self._failures[:, 0] = -1
            pool = self._file.pool()
            part = -(-len(pages) // THREADS)
            self._parts = [
                pool.submit(
                    read_pages,
                    self._file.page_fd,
                    pages,
                    start,
                    min(start + part, len(pages)),
                    out,
                    self._expected,
                    self._failures[number],
                )
                for number, start in enumerate(range(0, len(pages), part))
            ]
        return code

    def _collect(self, pages: Int64Array, out: UInt8Array) -> None:
        wait(self._parts)
        for part in self._parts:
            part.result()
        self._parts = []
        for position, code, found in self._failures:
            if position >= 0:
                note_failure(self._failure, position, code, found)

    def _release(self) -> None:
        wait(self._parts)
        self._parts = []

    def _renew(self) -> None:
        self._parts = []
