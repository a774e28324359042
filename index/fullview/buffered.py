"""Pages through the system's page cache, one after another: works on every file system.

BufferedReader   a PageReader that asks the system to read ahead what it will copy later

begin() announces all pages (posix_fadvise, Linux), so that the device works on them side by side; finish() copies them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from index.fullview.layout import PAGE_BYTES
from index.fullview.page_reader import PageReader
from index.fullview.posix import REQUEST_OK, check_request, read_pages, run_length
from index.options import IoMode

if TYPE_CHECKING:
    from index.fullview.vector_file import VectorFile

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

_CAN_ANNOUNCE = sys.platform == "linux"
_WILLNEED = 3
_fadvise: Any = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))


@njit(cache=True, nogil=True)
def announce_pages(fd: int, pages: Int64Array) -> None:
    """Ask the system to read pages int64 [m] ahead. Advice only: what it refuses is read later all the same."""
    position = 0
    while position < pages.shape[0]:
        count = int(run_length(pages, position, pages.shape[0]))
        _fadvise(np.int32(fd), pages[position] * PAGE_BYTES, np.int64(count * PAGE_BYTES), np.int32(_WILLNEED))
        position += count


class BufferedReader(PageReader):
    """A PageReader over the page cache. Nothing is ever in flight into the caller's buffer between calls."""

    def __init__(self, file: VectorFile, *, reason: str | None = None) -> None:
        super().__init__(file, mode=IoMode.BUFFERED, reason=reason)

    def _start(self, pages: Int64Array, out: UInt8Array) -> int:
        code = int(check_request(pages, out, self._file_pages))
        if code == REQUEST_OK and _CAN_ANNOUNCE:
            announce_pages(self._file.page_fd, pages)
        return code

    def _collect(self, pages: Int64Array, out: UInt8Array) -> None:
        read_pages(self._file.page_fd, pages, 0, len(pages), out, self._expected, self._failure)

    def _release(self) -> None:
        pass

    def _renew(self) -> None:
        pass
