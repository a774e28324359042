"""Reading pages with pread from compiled code: no GIL, no Python object per page.

read_bytes()      one range of a file
read_pages()      many pages, each verified, the first failure noted
check_request()   what a reader must know about pages and buffer before the kernel writes into memory
note_failure()    keep the failure at the lowest position

A failure is int64 [3]: position in the request (-1: none), code, checksum found. The code is an errno (> 0), SHORT_READ
or BAD_CHECKSUM. It becomes an exception in page_reader.py.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import (  # type: ignore[attr-defined]
    carray,
    njit,
    types,
)

from index.fullview.checksum import page_checksum
from index.fullview.layout import PAGE_BYTES

SHORT_READ = 0
BAD_CHECKSUM = -1

REQUEST_OK = 0
REQUEST_PAGE_OUT_OF_RANGE = 1
REQUEST_BUFFER_UNALIGNED = 2

# Neighbouring pages are one request to the device up to this many: a vector of two pages then costs one read.
RUN_PAGES_MAX = 16

_EINTR = errno.EINTR
_SECTOR_BYTES = 512

Int = int | np.int64
UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]

# ExternalFunction, not ctypes: a ctypes global forbids cache=True.
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.intp, types.uintp, types.int64))
_errno_address: Any = types.ExternalFunction(
    "__error" if sys.platform == "darwin" else "__errno_location",
    types.CPointer(types.int32)(),  # type: ignore[no-untyped-call]
)


@njit(cache=True, nogil=True)
def last_errno() -> Int:
    """The calling thread's errno."""
    return np.int64(carray(_errno_address(), 1)[0])


@njit(cache=True, nogil=True)
def read_bytes(fd: Int, offset: Int, address: Int, n_bytes: Int) -> Int:
    """Read n_bytes at a byte offset into memory at address. Returns the bytes read (fewer at the end), or -errno."""
    done = np.int64(0)
    while done < n_bytes:
        got = _pread(np.int32(fd), address + done, np.uint64(n_bytes - done), offset + done)
        if got < 0:
            error = last_errno()
            if error == _EINTR:
                continue
            return -error
        done += got
        # A direct read that ends within a sector has met the end of the file; going on from there would be EINVAL.
        if got == 0 or done % _SECTOR_BYTES != 0:
            break
    return done


@njit(cache=True, nogil=True)
def note_failure(failure: Int64Array, position: Int, code: Int, found: Int) -> None:
    """Keep the failure at the lowest position."""
    if failure[0] < 0 or position < failure[0]:
        failure[0] = position
        failure[1] = code
        failure[2] = found


@njit(cache=True, nogil=True)
def verify_run(
    failure: Int64Array, position: Int, count: Int, address: Int, first_page: Int, expected: UInt32Array
) -> None:
    """Verify `count` pages in memory at `address` that are file pages first_page and following."""
    for i in range(count):
        found = page_checksum(address + i * PAGE_BYTES)
        if found != expected[first_page + i]:
            note_failure(failure, position + i, BAD_CHECKSUM, np.int64(found))


@njit(cache=True, nogil=True)
def run_length(pages: Int64Array, position: Int, stop: Int) -> Int:
    """How many pages from a position on are neighbours in the file, at most RUN_PAGES_MAX."""
    count = 1
    while position + count < stop and count < RUN_PAGES_MAX and pages[position + count] == pages[position] + count:
        count += 1
    return count


@njit(cache=True, nogil=True)
def check_request(pages: Int64Array, out: UInt8Array, file_pages: Int) -> Int:
    """REQUEST_OK, or what is wrong with it. pages: int64 [m]; out: uint8 [>= m, 4096]."""
    if out.ctypes.data % PAGE_BYTES != 0:
        return REQUEST_BUFFER_UNALIGNED
    for position in range(pages.shape[0]):
        if pages[position] < 0 or pages[position] >= file_pages:
            return REQUEST_PAGE_OUT_OF_RANGE
    return REQUEST_OK


@njit(cache=True, nogil=True)
def read_pages(
    fd: Int, pages: Int64Array, start: Int, stop: Int, out: UInt8Array, expected: UInt32Array, failure: Int64Array
) -> None:
    """Fill out[i] with page pages[i] for start <= i < stop and verify it; stops at the first failed read.

    pages: int64 [m], checked by check_request; out: uint8 [>= m, 4096]; expected: uint32 [file pages];
    failure: int64 [3], updated.
    """
    position = start
    base = out.ctypes.data
    while position < stop:
        count = run_length(pages, position, stop)
        address = base + position * PAGE_BYTES
        got = read_bytes(fd, pages[position] * PAGE_BYTES, address, count * PAGE_BYTES)
        if got < 0:
            note_failure(failure, position, -got, 0)
            return
        whole = got // PAGE_BYTES
        verify_run(failure, position, whole, address, pages[position], expected)
        if whole < count:
            note_failure(failure, position + whole, SHORT_READ, 0)
            return
        position += count


@njit(cache=True, nogil=True)
def read_sequential(
    fd: Int, first_page: Int, count: Int, out: UInt8Array, expected: UInt32Array, failure: Int64Array
) -> None:
    """Fill out[i] with page first_page + i for i < count, in one large read, and verify each."""
    address = out.ctypes.data
    got = read_bytes(fd, first_page * PAGE_BYTES, address, count * PAGE_BYTES)
    if got < 0:
        note_failure(failure, 0, -got, 0)
        return
    whole = got // PAGE_BYTES
    verify_run(failure, 0, whole, address, first_page, expected)
    if whole < count:
        note_failure(failure, whole, SHORT_READ, 0)
