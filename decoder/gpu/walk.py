"""A walk over the graph with a fixed number of steps, so that it can be captured: each step expands the best F rows at once.

walk        entry rows, then `steps` times: the best F rows not yet expanded, all their neighbours' codes scored
expand      one step's scoring: neighbours seen for the first time get an estimate and a place in the pool
frontier    the best F rows of the pool not yet expanded; they are expanded from then on
sample      estimates of a uniform sample of rows, for what the walk did not see

Every row that is scored stays in the pool (there is no beam to fall out of) until that is full: the pool gives the candidates
in the end, and its estimates go into log Z. A bit a row says whether it was seen; atomics decide which of several equal
neighbours is the first and which place comes next. Where a row lies in the pool changes from run to run, what is in it does
not, unless the pool overflows. Not here: the links (decoder/).
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decoder.gpu.launch import Launch, finish
from decoder.gpu.layout import BLOCK_ROWS, CodedRows, blocks_of, padded
from decoder.gpu.results import Pool, Queries, words_of
from decoder.gpu.select import cut, key_of


def expand_launch(*, width: int, bits: int, capped: bool) -> Launch:
    """How expand is compiled; sample alike."""
    # As in rerank.score: the loads of all rows of a program are in flight at once.
    block = min(padded(width * bits // 8), 1024)
    constants = {"WIDTH": width, "BITS": bits, "CAPPED": int(capped), "ROWS": max(min(4096 // block, 16), 1)}
    return Launch({**constants, "BLOCK_V": BLOCK_ROWS, "BLOCK_K": block})


def frontier_launch(*, places: int, beam: int) -> Launch:
    """How frontier is compiled for a pool of this many places."""
    tile = padded(places, max(beam, 128))
    return Launch({"TILE": tile, "KEEP": beam}, warps=min(max(tile // 512, 4), 32))


def walk(
    rows: CodedRows,
    queries: Queries,
    links: torch.Tensor,
    entries: torch.Tensor,
    *,
    steps: int,
    beam: int,
    places: int,
    scale: float,
    softcap: float | None,
) -> Pool:
    """links: int32 [V, degree], -1 past a row's own; entries: int32 [m]; beam: a power of two, F; places: of the pool."""
    n, device = len(queries.codes), links.device
    pool = Pool(
        torch.empty((n, places), dtype=torch.float32, device=device),
        torch.full((n, places), -1, dtype=torch.int32, device=device),
        torch.empty((n, places), dtype=torch.float32, device=device),
        torch.zeros((n, words_of(rows.vocab)), dtype=torch.int32, device=device),
        torch.zeros(n, dtype=torch.int32, device=device),
    )
    # The entries are the links of a row that has no others.
    first = torch.zeros((n, 1), dtype=torch.int32, device=device)
    expand(rows, queries, entries[None, :], first, pool, scale=scale, softcap=softcap)
    for _ in range(steps):
        expand(rows, queries, links, frontier(pool, beam=beam), pool, scale=scale, softcap=softcap)
    return pool


def expand(
    rows: CodedRows,
    queries: Queries,
    links: torch.Tensor,
    chosen: torch.Tensor,
    pool: Pool,
    *,
    scale: float,
    softcap: float | None,
) -> None:
    """Put the neighbours of the chosen rows, int32 [n, F], -1 for none, into the pool, those that were not seen before."""
    (n, beam), degree = chosen.shape, links.shape[1]
    launch = expand_launch(width=rows.width, bits=rows.bits, capped=softcap is not None)
    grid = (n, -(-beam * degree // launch.constants["ROWS"]))
    _expand[grid](
        *(rows.codes, rows.scales, rows.bias, *queries[:4]),
        *(links, chosen, *pool),
        *(
            rows.vocab,
            blocks_of(rows.vocab),
            beam,
            degree,
            pool.ids.shape[1],
            pool.seen.shape[1],
            scale,
            softcap or 1.0,
        ),
        **launch.keywords(),
    )


def frontier(pool: Pool, *, beam: int) -> torch.Tensor:
    """The best `beam` unexpanded rows by (estimate desc, id asc), int32 [n, beam], -1 where there are fewer.

    They count as expanded from then on.
    """
    n, places = pool.ids.shape
    out = torch.empty((n, beam), dtype=torch.int32, device=pool.ids.device)
    launch = frontier_launch(places=places, beam=beam)
    _frontier[(n,)](pool.unexpanded, pool.ids, pool.filled, out, places, **launch.keywords())
    return out


def sample(
    rows: CodedRows,
    queries: Queries,
    permutation: torch.Tensor,
    seen: torch.Tensor,
    *,
    size: int,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Estimates of `size` rows a query, uniform over all, float32 [n, size]; -inf for those that the walk saw.

    They are the next `size` of the permutation, int32 [V], from each query's window on.
    """
    n = len(queries.codes)
    out = torch.empty((n, size), dtype=torch.float32, device=seen.device)
    launch = expand_launch(width=rows.width, bits=rows.bits, capped=softcap is not None)
    grid = (n, -(-size // launch.constants["ROWS"]))
    _sample[grid](
        *(rows.codes, rows.scales, rows.bias, *queries[:5]),
        *(permutation, seen, out),
        *(rows.vocab, blocks_of(rows.vocab), size, seen.shape[1], scale, softcap or 1.0),
        **launch.keywords(),
    )
    return out


@triton.jit
def _estimates(
    codes,
    scales,
    bias,
    queries,
    query_scales,
    shifts,
    offsets,
    n,
    row,
    wanted,
    blocks,
    scale,
    softcap,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    CAPPED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Estimates of rows under query n, float32 [ROWS]; -inf for those that are not wanted."""
    STRIDE: tl.constexpr = WIDTH * BITS // 8
    place = tl.where(wanted, (row % blocks) * BLOCK_V + row // blocks, 0)
    base = codes + place.to(tl.int64) * STRIDE
    total = tl.zeros([ROWS, BLOCK_K], tl.int32)
    for start in range(0, STRIDE, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < STRIDE
        code = tl.load(base[:, None] + k[None, :], mask=wanted[:, None] & inside[None, :], other=0).to(tl.int32)
        query = tl.load(queries + n * WIDTH + k, mask=inside, other=0).to(tl.int32)
        if BITS == 8:
            total += code * query[None, :]
        else:
            other = tl.load(queries + n * WIDTH + STRIDE + k, mask=inside, other=0).to(tl.int32)
            total += (code & 15) * query[None, :] + (code >> 4) * other[None, :]
    step = tl.load(query_scales + n)
    raw = (tl.sum(total, 1).to(tl.float32) + tl.load(shifts + n)) * (tl.load(scales + place) * step)
    raw = raw + (tl.load(bias + place) + tl.load(offsets + n))
    return tl.where(wanted, finish(raw, scale, softcap, CAPPED), float("-inf"))


@triton.jit(do_not_specialize=["vocab", "blocks", "beam", "degree", "places", "words"])
def _expand(
    codes,
    scales,
    bias,
    queries,
    query_scales,
    shifts,
    offsets,
    links,
    chosen,
    pool_estimates,
    pool_ids,
    unexpanded,
    seen,
    filled,
    vocab,
    blocks,
    beam,
    degree,
    places,
    words,
    scale,
    softcap,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    CAPPED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    n = tl.program_id(0)
    at = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = at < beam * degree
    parent = tl.load(chosen + n * beam + at // degree, mask=inside, other=-1)
    row = tl.load(links + parent.to(tl.int64) * degree + at % degree, mask=inside & (parent >= 0), other=-1)
    there = (row >= 0) & (row < vocab)
    bit = tl.full([ROWS], 1, tl.int32) << (row & 31)
    before = tl.atomic_or(seen + n * words + (row >> 5), bit, mask=there, sem="relaxed")
    fresh = there & ((before & bit) == 0)
    count = tl.sum(fresh.to(tl.int32), 0)
    if count > 0:
        place = tl.atomic_add(filled + n, count, sem="relaxed") + tl.cumsum(fresh.to(tl.int32), 0) - 1
        estimate = _estimates(
            codes,
            scales,
            bias,
            queries,
            query_scales,
            shifts,
            offsets,
            n,
            row,
            fresh,
            blocks,
            scale,
            softcap,
            WIDTH,
            BITS,
            CAPPED,
            ROWS,
            BLOCK_V,
            BLOCK_K,
        )
        kept = fresh & (place < places)
        tl.store(pool_estimates + n * places + place, estimate, mask=kept)
        tl.store(unexpanded + n * places + place, estimate, mask=kept)
        tl.store(pool_ids + n * places + place, row, mask=kept)


@triton.jit(do_not_specialize=["places"])
def _frontier(unexpanded, ids, filled, out, places, TILE: tl.constexpr, KEEP: tl.constexpr):
    n = tl.program_id(0)
    at = tl.arange(0, TILE)
    inside = at < tl.minimum(tl.load(filled + n), places)
    value = tl.load(unexpanded + n * places + at, mask=inside, other=float("-inf"))
    row = tl.load(ids + n * places + at, mask=inside, other=-1)
    waiting = value > float("-inf")
    keys = tl.where(waiting, key_of(value, row), -(1 << 62))
    best = waiting & (keys >= cut(keys, KEEP))
    place = tl.cumsum(best.to(tl.int32), 0) - 1
    tl.store(out + n * KEEP + place, row, mask=best)
    empty = tl.arange(0, KEEP)
    tl.store(out + n * KEEP + empty, tl.full([KEEP], -1, tl.int32), mask=empty >= tl.sum(best.to(tl.int32), 0))
    tl.store(unexpanded + n * places + at, tl.full([TILE], float("-inf"), tl.float32), mask=best)


@triton.jit(do_not_specialize=["vocab", "blocks", "size", "words"])
def _sample(
    codes,
    scales,
    bias,
    queries,
    query_scales,
    shifts,
    offsets,
    windows,
    permutation,
    seen,
    out,
    vocab,
    blocks,
    size,
    words,
    scale,
    softcap,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    CAPPED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    n = tl.program_id(0)
    at = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = at < size
    row = tl.load(permutation + (tl.load(windows + n) + at) % vocab, mask=inside, other=0)
    word = tl.load(seen + n * words + (row >> 5))
    unseen = inside & (((word >> (row & 31)) & 1) == 0)
    estimate = _estimates(
        codes,
        scales,
        bias,
        queries,
        query_scales,
        shifts,
        offsets,
        n,
        row,
        unseen,
        blocks,
        scale,
        softcap,
        WIDTH,
        BITS,
        CAPPED,
        ROWS,
        BLOCK_V,
        BLOCK_K,
    )
    tl.store(out + n * size + at, estimate, mask=inside)
