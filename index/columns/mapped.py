"""A file mapped into memory without a descriptor that stays open.

Python's mmap keeps a duplicate of its descriptor, so that a thousand open indexes would be a thousand more; the C library's
does not. The map goes when the last array on it does.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FAILED = ctypes.c_void_p(-1).value


def map_file(fd: int, size: int) -> NDArray[np.uint8]:
    """The first `size` bytes of an open file, read-only. Raises OSError."""
    if not size:
        return np.zeros(0, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, libc.munmap, address, size)
    array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    array.flags.writeable = False
    return array
