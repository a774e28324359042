"""Room on the device: arrays written so that a full disk is known as one, and the error that says what was needed.

save_array     an array into an .npy file
require_room   refuse what certainly does not fit, before any work
as_disk_full   any error of a full disk -> DiskFullError
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import DiskFullError

FULL = (errno.ENOSPC, errno.EDQUOT)
PAGE_BYTES = 4096


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an .npy file in C order. Not numpy's own writing: on a full disk that raises an OSError without errno."""
    array = np.ascontiguousarray(array)
    with path.open("wb", buffering=0) as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        rest = memoryview(array.reshape(-1).view(np.uint8).data)
        while rest:
            rest = rest[file.write(rest) :]


def require_room(folder: Path, needed_bytes: int) -> None:
    """Raise DiskFullError where `folder` has less room than that."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise DiskFullError(path=folder, needed_bytes=needed_bytes, free_bytes=free)


def as_disk_full(error: BaseException, folder: Path, *, total_bytes: int) -> DiskFullError | None:
    """The error as a DiskFullError if a full disk is what it tells of. total_bytes: what the finished folder will take."""
    if isinstance(error, DiskFullError) or not isinstance(error, OSError) or error.errno not in FULL:
        return None
    there = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    free = shutil.disk_usage(folder).free
    # What is left to write, and never less than one page more than there is room for.
    needed = max(total_bytes - there, free + PAGE_BYTES)
    return DiskFullError(path=Path(error.filename or folder), needed_bytes=needed, free_bytes=free)
