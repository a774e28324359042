"""The 32-bit checksum of a page: 32 lanes that the compiler turns into vector instructions.

page_checksum()    one page, from other kernels
page_checksums()   many pages into an array
find_bad_pages()   many pages against expected checksums

A page is 1,024 little-endian uint32 words, 32 rounds of 32. Lane i starts at (i + 1) * SEED; each round does
lane = lane * FACTOR + word; lane ^= lane >> 15. Then the same step folds 32 lanes into 16, 8, 4, 2 and 1. Each step can
be undone when the other operand is known, so an error within one word always changes the checksum; other errors
escape with a chance of 2^-32. The shift is there because without it two flips of the highest bit in one lane cancel.

Not here: the slow twin (reference.py), where checksums are kept (writer.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from index.fullview.layout import PAGE_BYTES

SEED = np.uint32(0x85EBCA77)
FACTOR = np.uint32(0x9E3779B1)
LANES = 32
ROUNDS = 32
_SHIFT = 15

Int = int | np.int64
UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]


@intrinsic
def _fold_page(typing_context: Any, address: Any) -> Any:
    """address: int64 of 4,096 readable bytes -> uint32.

    Written as LLVM vectors because the same loops over a scratch array keep the lanes in memory and multiply 64-bit
    numbers: 770 ns a page against 80 ns (Zen 5; see `fullview doctor`). LLVM splits the vectors into what
    the machine has. Drop when Numba keeps small fixed arrays in registers.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        row = ir.VectorType(word, LANES)
        start = builder.inttoptr(arguments[0], row.as_pointer())

        def constant(values: list[int]) -> Any:
            return ir.Constant(ir.VectorType(word, len(values)), values)

        def step(lanes: Any, words: Any, width: int) -> Any:
            mixed = builder.add(builder.mul(lanes, constant([int(FACTOR)] * width)), words)
            return builder.xor(mixed, builder.lshr(mixed, constant([_SHIFT] * width)))

        lanes = constant([(lane + 1) * int(SEED) % 2**32 for lane in range(LANES)])
        for turn in range(ROUNDS):
            words = builder.load(builder.gep(start, [ir.Constant(ir.IntType(64), turn)]))
            words.align = 4
            lanes = step(lanes, words, LANES)
        width = LANES
        while width > 1:
            width //= 2
            low = builder.shuffle_vector(lanes, lanes, constant(list(range(width))))
            high = builder.shuffle_vector(lanes, lanes, constant(list(range(width, 2 * width))))
            lanes = step(low, high, width)
        return builder.extract_element(lanes, ir.Constant(word, 0))

    return types.uint32(types.int64), emit


@njit(cache=True, nogil=True)
def page_checksum(address: Int) -> np.uint32:
    """Checksum of the page of 4,096 bytes at an address. For other kernels; the address must be readable."""
    return np.uint32(_fold_page(np.int64(address)))  # type: ignore[call-arg]


@njit(cache=True, nogil=True)
def page_checksums(pages: UInt8Array, out: UInt32Array) -> None:
    """out[i] = checksum of pages[i]. pages: uint8 [m, 4096], C-contiguous; out: uint32 [>= m], overwritten."""
    start = pages.ctypes.data
    for page in range(pages.shape[0]):
        out[page] = page_checksum(start + page * PAGE_BYTES)


@njit(cache=True, nogil=True)
def find_bad_pages(pages: UInt8Array, expected: UInt32Array, found: UInt32Array) -> Int:
    """Number of pages whose checksum is not the expected one; found[i] is overwritten with each page's checksum.

    pages: uint8 [m, 4096], C-contiguous; expected: uint32 [>= m]; found: uint32 [>= m].
    """
    start = pages.ctypes.data
    bad = 0
    for page in range(pages.shape[0]):
        found[page] = page_checksum(start + page * PAGE_BYTES)
        if found[page] != expected[page]:
            bad += 1
    return bad
