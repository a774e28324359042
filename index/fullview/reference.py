"""Slow numpy twins of this package's kernels: the same names and signatures, written to be read.

One test class runs both (tests/index/test_checksum.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.fullview.checksum import FACTOR, LANES, ROUNDS, SEED


def page_checksums(pages: npt.NDArray[np.uint8], out: npt.NDArray[np.uint32]) -> None:
    """out[i] = checksum of pages[i]. pages: uint8 [m, 4096], C-contiguous; out: uint32 [>= m], overwritten."""
    words = pages.view("<u4").reshape(len(pages), ROUNDS, LANES)
    lanes = np.broadcast_to(np.arange(1, LANES + 1, dtype=np.uint32) * SEED, (len(pages), LANES))
    for turn in range(ROUNDS):
        lanes = _step(lanes, words[:, turn])
    while lanes.shape[1] > 1:
        lanes = _step(*np.split(lanes, 2, axis=1))
    out[: len(pages)] = lanes[:, 0]


def find_bad_pages(
    pages: npt.NDArray[np.uint8], expected: npt.NDArray[np.uint32], found: npt.NDArray[np.uint32]
) -> int:
    """Number of pages whose checksum is not the expected one; found[i] is overwritten with each page's checksum."""
    page_checksums(pages, found)
    return int(np.count_nonzero(found[: len(pages)] != expected[: len(pages)]))


def _step(lanes: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    mixed = lanes * FACTOR + words
    return np.asarray(mixed ^ (mixed >> np.uint32(15)), np.uint32)
