"""Arrays on disk, and a full disk known as one."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from index.disk import as_disk_full, require_room, save_array
from index.errors import DiskFullError


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3,), (5, 7), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "uint64"])
def test_arrays_are_npy_files(tmp_path, shape, dtype):
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    for number, given in enumerate((array, np.asfortranarray(array), array[::-1])):
        save_array(tmp_path / "a.npy", given)
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), given)
        np.save(tmp_path / "b.npy", np.ascontiguousarray(given))
        assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes(), number


def test_room(tmp_path):
    require_room(tmp_path, 1)
    with pytest.raises(DiskFullError, match=r"1,000,000,000,000,000 bytes are needed"):
        require_room(tmp_path, 10**15)


def test_only_a_full_disk_is_one(tmp_path):
    (tmp_path / "there").write_bytes(bytes(1000))
    full = as_disk_full(OSError(errno.ENOSPC, "no room", str(tmp_path / "x")), tmp_path, total_bytes=10**15)
    assert full is not None and full.needed_bytes == 10**15 - 1000 and full.path == tmp_path / "x"
    full = as_disk_full(OSError(errno.EDQUOT, "quota"), tmp_path, total_bytes=0)
    assert full is not None and full.needed_bytes > full.free_bytes and full.path == tmp_path
    for other in (OSError(errno.EIO, "broken"), ValueError(), full, KeyboardInterrupt()):
        assert as_disk_full(other, tmp_path, total_bytes=5) is None
