"""Every row's code scored against all queries of a bucket, a block's best kept: [n, V] is never written.

scan        best estimates and ids of each block, and the log of the summed exponentials of its other rows

A program reads one block of rows once, for all queries, and multiplies codes as integers on the tensor cores: the product is
exact, so an estimate does not depend on the batch. Rows of a block compete by one 32-bit key, the estimate's leading 25 bits
and the slot: estimates that agree that far are ties, and the lower id comes first. The estimates written are cut to those
bits. Not here: which of the blocks' best are reranked (select.py).
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decoder.gpu.launch import Launch, finish, log_or_nothing, ordered, unordered
from decoder.gpu.layout import BLOCK_ROWS, CodedRows, blocks_of, padded
from decoder.gpu.results import Queries, Scanned

GONE = tl.constexpr(-2147483648)
"""The key of a row that was taken, or of none: below that of every estimate."""


def scan_launch(*, width: int, bits: int, kept: int, queries: int, capped: bool) -> Launch:
    """How scan is compiled for a bucket of queries."""
    stride, n = width * bits // 8, padded(queries, 16)
    constants = {"WIDTH": width, "BITS": bits, "CAPPED": int(capped), "KEPT": kept, "N": n, "BLOCK_V": BLOCK_ROWS}
    return Launch({**constants, "BLOCK_K": 128 if stride % 128 == 0 else 64}, warps=8 if n > 32 else 4, stages=4)


def scan(rows: CodedRows, queries: Queries, *, kept: int, scale: float, softcap: float | None) -> Scanned:
    """The best `kept` rows of every block for every query."""
    n, blocks = len(queries.codes), blocks_of(rows.vocab)
    device = queries.codes.device
    estimates = torch.empty((n, blocks, kept), dtype=torch.float32, device=device)
    ids = torch.empty((n, blocks, kept), dtype=torch.int32, device=device)
    rest = torch.empty((n, blocks), dtype=torch.float32, device=device)
    capped = softcap is not None
    launch = scan_launch(width=rows.width, bits=rows.bits, kept=kept, queries=n, capped=capped)
    _scan[(blocks,)](
        *(rows.codes, rows.scales, rows.bias),
        *(queries.codes, queries.scales, queries.shifts, queries.offsets),
        *(estimates, ids, rest),
        *(rows.vocab, blocks, n, scale, softcap or 1.0),
        **launch.keywords(),
    )
    return Scanned(estimates, ids, rest)


@triton.jit
def _product(
    base,
    queries,
    n,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Integer products of a block of codes with all queries, int32 [BLOCK_V, N]."""
    STRIDE: tl.constexpr = WIDTH * BITS // 8
    slots, columns, k = tl.arange(0, BLOCK_V), tl.arange(0, N), tl.arange(0, BLOCK_K)
    real = (columns < n)[None, :]
    at = queries + columns[None, :] * WIDTH + k[:, None]
    low = tl.zeros([BLOCK_V, N], tl.int32)
    high = tl.zeros([BLOCK_V, N], tl.int32)
    for start in range(0, STRIDE, BLOCK_K):
        code = tl.load(base + slots[:, None] * STRIDE + (start + k)[None, :])
        query = tl.load(at + start, mask=real, other=0)
        if BITS == 8:
            low = tl.dot(code, query, low, out_dtype=tl.int32)
        else:
            other = tl.load(at + (STRIDE + start), mask=real, other=0)
            low = tl.dot(code & 15, query, low, out_dtype=tl.int32)
            high = tl.dot(code & -16, other, high, out_dtype=tl.int32)
    if BITS == 4:
        low += high >> 4
    return low


@triton.jit(do_not_specialize=["vocab", "blocks", "n"])
def _scan(
    codes,
    scales,
    bias,
    queries,
    query_scales,
    shifts,
    offsets,
    out_estimates,
    out_ids,
    out_rest,
    vocab,
    blocks,
    n,
    scale,
    softcap,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    CAPPED: tl.constexpr,
    KEPT: tl.constexpr,
    N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    block = tl.program_id(0)
    slots, columns = tl.arange(0, BLOCK_V), tl.arange(0, N)
    real = columns < n
    base = codes + block.to(tl.int64) * (BLOCK_V * (WIDTH * BITS // 8))
    product = _product(base, queries, n, WIDTH, BITS, N, BLOCK_V, BLOCK_K)

    shift = tl.load(shifts + columns, mask=real, other=0.0)
    step = tl.load(query_scales + columns, mask=real, other=0.0)
    offset = tl.load(offsets + columns, mask=real, other=0.0)
    row_scale = tl.load(scales + block * BLOCK_V + slots)
    row_bias = tl.load(bias + block * BLOCK_V + slots)
    raw = (product.to(tl.float32) + shift[None, :]) * (row_scale[:, None] * step[None, :])
    raw = raw + (row_bias[:, None] + offset[None, :])
    estimates = finish(raw, scale, softcap, CAPPED)
    ids = slots * blocks + block
    estimates = tl.where((ids < vocab)[:, None], estimates, float("-inf"))

    # The last 7 bits of a key are the slot, turned round so that the lower one wins.
    keys = (ordered(estimates) & (-BLOCK_V)) | (BLOCK_V - 1 - slots)[:, None]
    keys = tl.where((ids < vocab)[:, None], keys, GONE)
    at = (columns * blocks + block) * KEPT
    for j in range(KEPT):
        best = tl.max(keys, 0)
        found = best != GONE
        value = tl.where(found, unordered(best & (-BLOCK_V)), float("-inf"))
        slot = BLOCK_V - 1 - (best & (BLOCK_V - 1))
        tl.store(out_estimates + at + j, value, mask=real)
        tl.store(out_ids + at + j, tl.where(found, slot * blocks + block, -1), mask=real)
        keys = tl.where(keys == best[None, :], GONE, keys)

    left = tl.where(keys == GONE, float("-inf"), estimates)
    top = tl.max(left, 0)
    top = tl.where(top > float("-inf"), top, 0.0)
    total = tl.sum(tl.exp(left - top[None, :]), 0)
    tl.store(out_rest + columns * blocks + block, top + log_or_nothing(total), mask=real)
