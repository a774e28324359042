"""Hidden states become queries of the coded rows: moved, rotated, quantised to int8.

project     q = A (h - m), float32 [n, width]
quantise    q as int8 with its scale, and what corrects an integer product of codes: shift, offset

An estimate of a raw logit is (product + shift) * scale_q * scale_v + (bias_v + offset), product the integer inner product of
codes. Not here: the rows' codes (layout.py).
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decoder.gpu.launch import Launch, finite
from decoder.gpu.layout import padded
from decoder.gpu.results import Queries


def project_launch(*, dim: int, queries: int) -> Launch:
    """How project is compiled for a bucket of queries."""
    return Launch({"DIM": dim, "N": padded(queries, 16), "BLOCK_W": 16, "BLOCK_K": 128}, warps=4, stages=3)


def quantise_launch(*, dim: int, width: int, bits: int) -> Launch:
    """How quantise is compiled."""
    constants = {"DIM": dim, "WIDTH": width, "BITS": bits, "BLOCK": padded(width), "BLOCK_D": padded(dim)}
    return Launch(constants, warps=min(max(padded(max(width, dim)) // 512, 4), 32))


def project(hidden: torch.Tensor, mean: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """A (h - m). hidden: [n, dim] of any float type; mean: float32 [dim]; matrix: [width, dim], width a multiple of 16.

    Components that are not finite count as the mean's: quantise() marks such states.
    """
    (n, dim), width = hidden.shape, matrix.shape[0]
    out = torch.empty((n, width), dtype=torch.float32, device=hidden.device)
    launch = project_launch(dim=dim, queries=n)
    grid = (width // launch.constants["BLOCK_W"],)
    _project[grid](hidden, mean, matrix, out, n, width, **launch.keywords())
    return out


def quantise(
    rotated: torch.Tensor,
    hidden: torch.Tensor,
    mean: torch.Tensor,
    centre: torch.Tensor,
    row_mean: torch.Tensor,
    *,
    bits: int,
    vocab: int,
) -> Queries:
    """Queries as int8: the largest component becomes 127 or -127.

    rotated: float32 [n, width]; hidden: [n, dim], looked at for infinities and NaN; mean, centre: float32 [dim], all logits
    are centre . (h - mean) above what codes say; row_mean: float32 [width]; bits: of the rows' codes.
    """
    n, width = rotated.shape
    codes = torch.empty((n, width), dtype=torch.int8, device=rotated.device)
    # Each by itself: an allocation is aligned, a row of a common one would not be.
    scales, shifts, offsets = (torch.empty(n, dtype=torch.float32, device=rotated.device) for _ in range(3))
    windows = torch.empty(n, dtype=torch.int32, device=rotated.device)
    failed = torch.empty(n, dtype=torch.uint8, device=rotated.device)
    launch = quantise_launch(dim=hidden.shape[1], width=width, bits=bits)
    out = (codes, scales, shifts, offsets, windows, failed)
    _quantise[(n,)](rotated, hidden, mean, centre, row_mean, *out, vocab, **launch.keywords())
    return Queries(*out)


@triton.jit(do_not_specialize=["n", "width"])
def _project(
    hidden,
    mean,
    matrix,
    out,
    n,
    width,
    DIM: tl.constexpr,
    N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    columns = tl.arange(0, N)
    real = columns < n
    total = tl.zeros([BLOCK_W, N], tl.float32)
    for start in range(0, DIM, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < DIM
        a = tl.load(matrix + rows[:, None] * DIM + k[None, :], mask=inside[None, :], other=0.0)
        h = tl.load(hidden + columns[None, :] * DIM + k[:, None], mask=inside[:, None] & real[None, :], other=0.0)
        m = tl.load(mean + k, mask=inside, other=0.0)
        h = h.to(tl.float32)
        moved = tl.where(finite(h) & real[None, :], h - m[:, None], 0.0)
        # tf32 keeps the 8 bits of a bfloat16 matrix whole; the query is rounded to 7 bits next.
        total = tl.dot(a.to(tl.float32), moved, total, input_precision="tf32")
    tl.store(out + columns[None, :] * width + rows[:, None], total, mask=real[None, :])


@triton.jit(do_not_specialize=["vocab"])
def _quantise(
    rotated,
    hidden,
    mean,
    centre,
    row_mean,
    codes,
    scales,
    shifts,
    offsets,
    windows,
    failed,
    vocab,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    n = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    x = tl.load(rotated + n * WIDTH + at, mask=inside, other=0.0)
    largest = tl.max(tl.abs(x), 0)
    largest = tl.where(largest > 1e-30, largest, 127.0)
    code = tl.floor(x * tl.div_rn(127.0, largest) + 0.5).to(tl.int32)
    if BITS == 8:
        shift = 0.5 * tl.sum(code, 0).to(tl.float32)
    else:
        low = tl.sum(tl.where(at < WIDTH // 2, code, 0), 0).to(tl.float32)
        high = tl.sum(tl.where(at < WIDTH // 2, 0, code), 0).to(tl.float32)
        shift = 0.5 * high - 7.5 * low
    of_rows = tl.load(row_mean + at, mask=inside, other=0.0)
    # Any number that spreads states over the permutation will do; the factors keep the sum inside 32 bits.
    mixed = tl.abs(tl.sum(code * ((at * 40503) % 251), 0)).to(tl.int64) * 7919
    d = tl.arange(0, BLOCK_D)
    h = tl.load(hidden + n * DIM + d, mask=d < DIM, other=0.0).to(tl.float32)
    good = tl.min(finite(h).to(tl.int32), 0)
    m = tl.load(mean + d, mask=d < DIM, other=0.0)
    c = tl.load(centre + d, mask=d < DIM, other=0.0)
    of_state = tl.sum(tl.where(finite(h), h - m, 0.0) * c, 0)
    tl.store(failed + n, (1 - good).to(tl.uint8))
    tl.store(codes + n * WIDTH + at, code.to(tl.int8), mask=inside)
    tl.store(scales + n, tl.div_rn(largest, 127.0))
    tl.store(shifts + n, shift)
    tl.store(offsets + n, tl.sum(x * of_rows, 0) + of_state)
    tl.store(windows + n, (mixed % vocab).to(tl.int32))
