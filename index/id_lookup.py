"""Binary search in sorted ids on disk, by pread: nothing of the table stays in the process's memory.

lower_bound_integers()   uint64 ids: how many are below each wanted one
lower_bound_strings()    UTF-8 strings, by bytes, which is by code point
read_strings()           the strings at given ranks
read_words()             8-byte words at given positions

All return READ_OK, READ_SHORT (the file ends too early), READ_DAMAGED (an impossible length) or -errno.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from index.fullview.posix import Int, read_bytes

READ_OK = 0
READ_SHORT = 1
READ_DAMAGED = 2

# 255 code points of at most 4 bytes each.
STRING_BYTES_MAX = 1020

# From here on one read of 4 KiB is cheaper than nine more steps.
_NEAR = 512

UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@njit(cache=True, nogil=True)
def _read_exactly(fd: Int, offset: Int, address: Int, n_bytes: Int) -> Int:
    # Reads of ours are never direct, so that one that ends within a sector goes on.
    done = np.int64(0)
    while done < n_bytes:
        got = read_bytes(fd, offset + done, address + done, n_bytes - done)
        if got < 0:
            return got
        if got == 0:
            return READ_SHORT
        done += got
    return READ_OK


@njit(cache=True, nogil=True)
def lower_bound_integers(
    fd: Int, offset: Int, n: Int, wanted: UInt64Array, ranks: Int64Array, present: BoolArray
) -> Int:
    """ranks[i] = how many of the n ascending uint64 ids at byte `offset` are below wanted[i]; present[i]: it is there.

    wanted: uint64 [m]; ranks: int64 [m] and present: bool [m], overwritten.
    """
    near = np.empty(_NEAR + 1, np.uint64)
    address = near.ctypes.data
    for i in range(wanted.shape[0]):
        low = np.int64(0)
        high = np.int64(n)
        while high - low > _NEAR:
            middle = (low + high) // 2
            code = _read_exactly(fd, offset + 8 * middle, address, 8)
            if code != READ_OK:
                return code
            if near[0] < wanted[i]:
                low = middle + 1
            else:
                high = middle
        count = min(np.int64(n), high + 1) - low
        code = _read_exactly(fd, offset + 8 * low, address, 8 * count)
        if code != READ_OK:
            return code
        below = np.searchsorted(near[:count], wanted[i])
        ranks[i] = low + below
        present[i] = below < count and near[below] == wanted[i]
    return READ_OK


@njit(cache=True, nogil=True)
def _read_string(fd: Int, offsets_at: Int, bytes_at: Int, rank: Int, span: Int64Array, out: UInt8Array) -> Int:
    """out[:span[1] - span[0]] = the string; returns a code. span: int64 [2], scratch; out: uint8 [STRING_BYTES_MAX]."""
    code = _read_exactly(fd, offsets_at + 8 * rank, span.ctypes.data, 16)
    if code != READ_OK:
        return code
    length = span[1] - span[0]
    if length < 1 or length > STRING_BYTES_MAX or span[0] < 0:
        return READ_DAMAGED
    return _read_exactly(fd, bytes_at + span[0], out.ctypes.data, length)


@njit(cache=True, nogil=True)
def _compare(left: UInt8Array, right: UInt8Array) -> Int:
    for i in range(min(left.shape[0], right.shape[0])):
        if left[i] != right[i]:
            return np.int64(left[i]) - np.int64(right[i])
    return np.int64(left.shape[0] - right.shape[0])


@njit(cache=True, nogil=True)
def lower_bound_strings(
    fd: Int,
    offsets_at: Int,
    bytes_at: Int,
    n: Int,
    wanted: UInt8Array,
    wanted_offsets: Int64Array,
    ranks: Int64Array,
    present: BoolArray,
) -> Int:
    """ranks[i] = how many of the n ascending strings are below wanted string i; present[i]: it is one of them.

    wanted: uint8 [bytes], the strings one after another; wanted_offsets: int64 [m + 1]; ranks: int64 [m] and
    present: bool [m], overwritten.
    """
    span = np.empty(2, np.int64)
    text = np.empty(STRING_BYTES_MAX, np.uint8)
    for i in range(ranks.shape[0]):
        target = wanted[wanted_offsets[i] : wanted_offsets[i + 1]]
        low = np.int64(0)
        high = np.int64(n)
        present[i] = False
        while low < high:
            middle = (low + high) // 2
            code = _read_string(fd, offsets_at, bytes_at, middle, span, text)
            if code != READ_OK:
                return code
            order = _compare(text[: span[1] - span[0]], target)
            if order < 0:
                low = middle + 1
            else:
                high = middle
                if order == 0:
                    present[i] = True
        ranks[i] = low
    return READ_OK


@njit(cache=True, nogil=True)
def read_strings(
    fd: Int, offsets_at: Int, bytes_at: Int, ranks: Int64Array, out: UInt8Array, lengths: Int64Array
) -> Int:
    """out[i, :lengths[i]] = the string at ranks[i].

    ranks: int64 [m]; out: uint8 [m, STRING_BYTES_MAX] and lengths: int64 [m], overwritten.
    """
    span = np.empty(2, np.int64)
    for i in range(ranks.shape[0]):
        code = _read_string(fd, offsets_at, bytes_at, ranks[i], span, out[i])
        if code != READ_OK:
            return code
        lengths[i] = span[1] - span[0]
    return READ_OK


@njit(cache=True, nogil=True)
def read_words(fd: Int, offset: Int, positions: Int64Array, out: Int64Array) -> Int:
    """out[i] = the 8-byte word number positions[i] after byte `offset`. positions, out: int64 [m]."""
    start = out.ctypes.data
    for i in range(positions.shape[0]):
        code = _read_exactly(fd, offset + 8 * positions[i], start + 8 * i, 8)
        if code != READ_OK:
            return code
    return READ_OK
