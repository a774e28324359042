"""The checksum of a page: the kernel and its slow twin, the same tests for both, and what an error does to it."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

from index.fullview import aligned_pages, checksum, reference


def random_pages(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 4096), dtype=np.uint8)


class ChecksumContract:
    kernels: ClassVar[ModuleType]

    def sums(self, pages: np.ndarray) -> np.ndarray:
        out = np.full(len(pages) + 1, 77, np.uint32)
        self.kernels.page_checksums(pages, out)
        assert out[-1] == 77  # nothing beyond the pages is written
        return out[:-1]

    def test_values_that_are_on_disk_for_ever(self):
        pages = np.zeros((3, 4096), np.uint8)
        pages[1] = 0xFF
        pages[2] = np.arange(4096) % 251
        assert [f"{value:08x}" for value in self.sums(pages)] == FOR_EVER

    def test_no_pages(self):
        assert len(self.sums(np.empty((0, 4096), np.uint8))) == 0

    def test_each_bit_counts(self):
        page = random_pages(1)
        whole = self.sums(page)[0]
        flipped = np.repeat(page, 4096, axis=0)
        flipped[np.arange(4096), np.arange(4096)] ^= (1 << (np.arange(4096) % 8)).astype(np.uint8)
        assert whole not in self.sums(flipped)

    def test_any_error_within_a_word_counts(self):
        page = random_pages(1, seed=1)
        whole = self.sums(page)[0]
        changed = np.repeat(page, 1024, axis=0)
        words = changed.view(np.uint32)
        words[np.arange(1024), np.arange(1024)] ^= np.random.default_rng(2).integers(1, 2**32, 1024, dtype=np.uint32)
        assert whole not in self.sums(changed)

    def test_two_highest_bits_of_a_lane_do_not_cancel(self):
        page = random_pages(1, seed=3)
        whole = self.sums(page)[0]
        negated = page.copy()
        negated[0, 3::4] ^= 0x80  # every float32 with the other sign
        two = page.copy()
        two[0, [3, 3 + 128]] ^= 0x80
        assert whole not in self.sums(np.concatenate([negated, two]))

    def test_moved_words_and_pages_count(self):
        page = random_pages(1, seed=4)
        moved = np.concatenate([np.roll(page, 4, axis=1), np.roll(page, 128, axis=1), page[:, ::-1].copy()])
        assert self.sums(page)[0] not in self.sums(moved)

    def test_find_bad_pages(self):
        pages = random_pages(5, seed=5)
        expected = self.sums(pages)
        pages[[1, 4], 9] ^= 4
        found = np.zeros(5, np.uint32)
        assert self.kernels.find_bad_pages(pages, expected, found) == 2
        assert np.flatnonzero(found != expected).tolist() == [1, 4]


class TestNumba(ChecksumContract):
    kernels = checksum


class TestReference(ChecksumContract):
    kernels = reference


@pytest.mark.parametrize("offset", [0, 4, 512])
def test_both_agree_wherever_the_page_lies(offset):
    memory = aligned_pages(41).reshape(-1)
    pages = memory[offset : offset + 40 * 4096].reshape(40, 4096)
    pages[:] = random_pages(40, seed=6)
    fast, slow = np.empty(40, np.uint32), np.empty(40, np.uint32)
    checksum.page_checksums(pages, fast)
    reference.page_checksums(pages, slow)
    assert np.array_equal(fast, slow)
    assert len(np.unique(fast)) == 40


FOR_EVER = ["57f45d6b", "3cdbcecb", "c9b91fd6"]
