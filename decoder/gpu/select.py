"""The blocks' best rows merged: the best R of each query, and what the others weigh.

select      the R largest of [n, m] estimates by (estimate desc, id asc), and log-sum-exp of the others
cut         the device function: the key from which on exactly R keys lie

The cut is found by halving the range of 64-bit keys, which are all different, and counting: no sort, no order among the
chosen. They are written in the order in which they came. More than TILE estimates are cut in groups first.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decoder.gpu.launch import Launch, log_or_nothing, ordered
from decoder.gpu.layout import padded
from decoder.gpu.results import Selected

TILE = 8192
"""Estimates that one program holds at a time."""


def select_launch(*, size: int, keep: int) -> Launch:
    """How select is compiled for `size` estimates a query."""
    tile = min(padded(size, keep), max(TILE, keep))
    return Launch({"TILE": tile, "KEEP": keep}, warps=min(max(tile // 512, 4), 16))


def select(estimates: torch.Tensor, ids: torch.Tensor, *, keep: int) -> Selected:
    """The `keep` (a power of two) best of each row.

    estimates: float32 [n, m]; ids: int32 [n, m], all different, -1 where there is none.
    """
    n, size = estimates.shape
    launch = select_launch(size=size, keep=keep)
    groups = -(-size // launch.constants["TILE"])
    chosen = torch.empty((n, groups * keep), dtype=torch.float32, device=estimates.device)
    chosen_ids = torch.empty((n, groups * keep), dtype=torch.int32, device=estimates.device)
    rest = torch.empty((n, groups), dtype=torch.float32, device=estimates.device)
    _select[(n, groups)](estimates, ids, chosen, chosen_ids, rest, size, groups, **launch.keywords())
    if groups == 1:
        return Selected(chosen, chosen_ids, rest)
    merged = select(chosen, chosen_ids, keep=keep)
    return Selected(merged.estimates, merged.ids, torch.cat([rest, merged.rest], dim=1))


@triton.jit
def key_of(estimates, ids):
    """64-bit keys in the order (estimate desc, id asc) from the largest down. ids: below 2^31."""
    return (ordered(estimates).to(tl.int64) << 31) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def cut(keys, KEEP: tl.constexpr):
    """The largest key from which on at least KEEP of these keys lie (exactly KEEP, as they differ); else the smallest."""
    low, high = tl.min(keys, 0), tl.max(keys, 0)
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        count = tl.sum((keys >= middle).to(tl.int32), 0)
        low = tl.where(count >= KEEP, middle, low)
        high = tl.where(count == KEEP, middle, tl.where(count > KEEP, high, middle - 1))
    return low


@triton.jit(do_not_specialize=["size", "groups"])
def _select(estimates, ids, out_estimates, out_ids, out_rest, size, groups, TILE: tl.constexpr, KEEP: tl.constexpr):
    n, group = tl.program_id(0), tl.program_id(1)
    at = group * TILE + tl.arange(0, TILE)
    inside = at < size
    row = tl.load(ids + n * size + at, mask=inside, other=-1)
    there = row >= 0
    value = tl.load(estimates + n * size + at, mask=there, other=float("-inf"))
    # Absent ones share the lowest key; they are left out of what is written.
    keys = tl.where(there, key_of(value, row), -(1 << 62))
    chosen = there & (keys >= cut(keys, KEEP))
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    start = (n * groups + group) * KEEP
    tl.store(out_estimates + start + place, value, mask=chosen)
    tl.store(out_ids + start + place, row, mask=chosen)
    empty = tl.arange(0, KEEP)
    unused = empty >= tl.sum(chosen.to(tl.int32), 0)
    tl.store(out_estimates + start + empty, tl.full([KEEP], float("-inf"), tl.float32), mask=unused)
    tl.store(out_ids + start + empty, tl.full([KEEP], -1, tl.int32), mask=unused)
    left = tl.where(there & (chosen == 0), value, float("-inf"))
    top = tl.max(left, 0)
    top = tl.where(top > float("-inf"), top, 0.0)
    tl.store(out_rest + n * groups + group, top + log_or_nothing(tl.sum(tl.exp(left - top), 0)))
