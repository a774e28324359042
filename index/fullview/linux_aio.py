"""Linux asynchronous I/O: all pages of a request at once, no threads, no GIL, no package.

io_submit and io_getevents are called through libc's syscall() from compiled code. Docker's default seccomp profile lets
them pass (io_uring it does not). With O_DIRECT the calls return at once; without, io_submit reads before it returns.

AioRefusedError   why this system has no context for us
LinuxAioReader    a PageReader with a context of its own

State of a reader, int64 [8]: see the names below. Requests lie in slots; a free slot is taken from a stack, so that any
number of pages flows through a context of fixed depth. Each event's pages are verified while other reads are in flight.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from index.fullview.layout import PAGE_BYTES
from index.fullview.page_reader import PageReader
from index.fullview.posix import (
    REQUEST_OK,
    SHORT_READ,
    Int,
    check_request,
    last_errno,
    note_failure,
    read_pages,
    run_length,
    verify_run,
)
from index.options import IoMode

if TYPE_CHECKING:
    from index.fullview.vector_file import VectorFile

DEPTH = 256

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]

# (io_setup, io_destroy, io_submit, io_getevents)
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_SUPPORTED = sys.platform == "linux" and platform.machine() in _NUMBERS and sys.byteorder == "little"
_SETUP, _DESTROY, _SUBMIT, _GETEVENTS = _NUMBERS.get(platform.machine(), (-1, -1, -1, -1))

# Words of the state.
_CONTEXT, _FD, _NEXT, _IN_FLIGHT, _FREE = range(5)

# Words (8 bytes) of struct iocb and struct io_event, include/uapi/linux/aio_abi.h. Opcode 0 is IOCB_CMD_PREAD.
_IOCB_WORDS, _IOCB_DATA, _IOCB_FD, _IOCB_BUFFER, _IOCB_BYTES, _IOCB_OFFSET = 8, 0, 2, 3, 4, 5
_EVENT_WORDS, _EVENT_DATA, _EVENT_RESULT = 4, 0, 2
_SLOT_BITS = 16

# The kernel hands requests to the device at the end of io_submit, 3 us a request: all of a query's in one call leave the
# device idle meanwhile. 15 random pages took 222 us in one call, 195 us by fours, 180 us one by one, with 4.3, 4.8 and
# 5.3 us of CPU a page; depth 32 gave 71,000, 83,000 and 88,000 reads/s where fio had 84,000 (virtual NVMe, 2 cores).
_SUBMIT_AT_ONCE = 4

_EAGAIN, _EINTR = errno.EAGAIN, errno.EINTR

_syscall: Any = types.ExternalFunction(
    "syscall", types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64)
)


class AioRefusedError(Exception):
    """This system gives no context; the text says why and what would help."""


def create_context(depth: int) -> int:
    """An AIO context for `depth` requests in flight. Raises AioRefusedError."""
    if not _SUPPORTED:
        raise AioRefusedError(f"Linux AIO is not available on {sys.platform} {platform.machine()}")
    context = ctypes.c_ulong(0)
    if _call(_SETUP, depth, ctypes.addressof(context)) == 0:
        return context.value
    error = ctypes.get_errno()
    advice = ": /proc/sys/fs/aio-max-nr is used up, raise it (sysctl fs.aio-max-nr)" if error == errno.EAGAIN else ""
    raise AioRefusedError(f"io_setup failed with {errno.errorcode.get(error, error)}{advice}")


def destroy_context(context: int) -> None:
    """Wait for what is in flight and free the context."""
    _call(_DESTROY, context, 0)


def _call(number: int, first: int, second: int) -> int:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = [ctypes.c_long] * 3
    return int(function(number, first, second))


@njit(cache=True, nogil=True)
def submit_waiting(
    state: Int64Array, pages: Int64Array, out_address: Int, iocbs: Int64Array, slots: Int64Array, failure: Int64Array
) -> None:
    """Submit pages from state[_NEXT] on until all are started, the context is full, or the system wants no more now."""
    count = pages.shape[0]
    position = state[_NEXT]
    batch = 0
    first_free = state[_FREE]
    while position < count and batch < first_free:
        slot = slots[0, first_free - 1 - batch]
        run = run_length(pages, position, count)
        iocb = iocbs[slot]
        iocb[_IOCB_DATA] = (position << _SLOT_BITS) | slot
        iocb[_IOCB_FD] = state[_FD] << 32
        iocb[_IOCB_BUFFER] = out_address + position * PAGE_BYTES
        iocb[_IOCB_BYTES] = run * PAGE_BYTES
        iocb[_IOCB_OFFSET] = pages[position] * PAGE_BYTES
        slots[1, batch] = iocb.ctypes.data
        batch += 1
        position += run
    submitted = 0
    while submitted < batch:
        some = min(batch - submitted, _SUBMIT_AT_ONCE)
        accepted = _syscall(_SUBMIT, state[_CONTEXT], some, slots[1, submitted:].ctypes.data, 0, 0)
        if accepted > 0:
            submitted += accepted
            continue
        error = last_errno() if accepted < 0 else _EAGAIN
        if error == _EINTR:
            continue
        # What was not taken is submitted again after events have come.
        position = iocbs[slots[0, first_free - 1 - submitted], _IOCB_DATA] >> _SLOT_BITS
        if error != _EAGAIN:
            note_failure(failure, position, error, 0)
        break
    state[_NEXT] = position
    state[_IN_FLIGHT] += submitted
    state[_FREE] -= submitted


@njit(cache=True, nogil=True)
def reap(
    state: Int64Array,
    least: Int,
    pages: Int64Array,
    out_address: Int,
    iocbs: Int64Array,
    events: Int64Array,
    slots: Int64Array,
    expected: UInt32Array,
    failure: Int64Array,
) -> Int:
    """Wait for `least` events or more, verify their pages, free their slots. Returns 0 or an errno."""
    got = _syscall(_GETEVENTS, state[_CONTEXT], least, events.shape[0], events.ctypes.data, 0)
    if got < 0:
        error = last_errno()
        return 0 if error == _EINTR else error
    for i in range(got):
        data = events[i, _EVENT_DATA]
        slot = data & ((1 << _SLOT_BITS) - 1)
        position = data >> _SLOT_BITS
        result = events[i, _EVENT_RESULT]
        if result < 0:
            note_failure(failure, position, -result, 0)
        else:
            whole = result // PAGE_BYTES
            verify_run(failure, position, whole, out_address + position * PAGE_BYTES, pages[position], expected)
            if result < iocbs[slot, _IOCB_BYTES]:
                note_failure(failure, position + whole, SHORT_READ, 0)
        slots[0, state[_FREE]] = slot
        state[_FREE] += 1
    state[_IN_FLIGHT] -= got
    return 0


@njit(cache=True, nogil=True)
def start_reads(
    state: Int64Array,
    pages: Int64Array,
    out: UInt8Array,
    file_pages: Int,
    iocbs: Int64Array,
    slots: Int64Array,
    failure: Int64Array,
) -> Int:
    """Check the request and start it. Returns a code of posix.check_request."""
    code = check_request(pages, out, file_pages)
    if code == REQUEST_OK:
        state[_NEXT] = 0
        submit_waiting(state, pages, out.ctypes.data, iocbs, slots, failure)
    return code


@njit(cache=True, nogil=True)
def collect_reads(
    state: Int64Array,
    pages: Int64Array,
    out: UInt8Array,
    iocbs: Int64Array,
    events: Int64Array,
    slots: Int64Array,
    expected: UInt32Array,
    failure: Int64Array,
) -> None:
    """Wait until nothing is in flight, submitting what is left on the way; a failure ends submitting, not waiting."""
    address = out.ctypes.data
    count = pages.shape[0]
    while True:
        more = state[_NEXT] < count and failure[0] < 0
        if more and state[_FREE] > 0:
            submit_waiting(state, pages, address, iocbs, slots, failure)
            more = state[_NEXT] < count and failure[0] < 0
        if state[_IN_FLIGHT] > 0:
            # While pages wait for a slot, most of the context stays busy; waiting for one event at a time costs more calls.
            least = (state[_IN_FLIGHT] + 7) // 8 if more else state[_IN_FLIGHT]
            error = reap(state, least, pages, address, iocbs, events, slots, expected, failure)
            if error != 0:
                note_failure(failure, 0, error, 0)
                return
        elif more:
            # The kernel has no memory for a single request: read it ourselves.
            position = state[_NEXT]
            read_pages(state[_FD], pages, position, position + 1, out, expected, failure)
            state[_NEXT] = position + 1
        else:
            return


class LinuxAioReader(PageReader):
    """A PageReader with an AIO context of `depth` requests. Raises AioRefusedError where the system gives none."""

    def __init__(self, file: VectorFile, *, reason: str | None = None, depth: int = DEPTH) -> None:
        super().__init__(file, mode=IoMode.LINUX_AIO, reason=reason)
        self._closed = True  # until there is something to close
        self._depth = depth
        self._iocbs = np.zeros((depth, _IOCB_WORDS), np.int64)
        self._events = np.zeros((depth, _EVENT_WORDS), np.int64)
        self._slots = np.zeros((2, depth), np.int64)  # a stack of free slots; addresses for io_submit
        self._state = np.zeros(8, np.int64)
        self._clear(create_context(depth))
        self._closed = False

    def _clear(self, context: int) -> None:
        self._slots[0] = np.arange(self._depth)
        self._state[:] = 0
        self._state[_CONTEXT], self._state[_FD], self._state[_FREE] = context, self._file.page_fd, self._depth

    def _start(self, pages: Int64Array, out: UInt8Array) -> int:
        if self.mode is not IoMode.LINUX_AIO:
            return int(check_request(pages, out, self._file_pages))
        return int(start_reads(self._state, pages, out, self._file_pages, self._iocbs, self._slots, self._failure))

    def _collect(self, pages: Int64Array, out: UInt8Array) -> None:
        if self.mode is not IoMode.LINUX_AIO:
            read_pages(self._file.page_fd, pages, 0, len(pages), out, self._expected, self._failure)
            return
        collect_reads(self._state, pages, out, self._iocbs, self._events, self._slots, self._expected, self._failure)
        if self._failure[0] >= 0 and self._state[_IN_FLIGHT] > 0:
            # Waiting itself failed. Only destroying the context ends what is in flight into the caller's buffer.
            self._release()
            self._renew()

    def _release(self) -> None:
        if self._state[_CONTEXT] != 0:
            destroy_context(int(self._state[_CONTEXT]))  # waits for requests in flight
            self._state[_CONTEXT] = 0

    def _renew(self) -> None:
        # After a fork the parent's context means nothing here; destroying its number could hit one of our own.
        try:
            self._clear(create_context(self._depth))
        except AioRefusedError as refusal:
            self._clear(0)
            self.mode, self.reason = IoMode.BUFFERED, f"no new context, so one read at a time: {refusal}"
