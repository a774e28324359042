"""A walk over the graph with a fixed number of steps, so that it can be captured: each step expands the best F rows at once.

walk        entry rows, then `steps` times: the best F rows not yet expanded, all their neighbours' codes scored
expand      one step's scoring: neighbours seen for the first time get an estimate
frontier    the best F rows not yet expanded; they are expanded from then on
draw        a uniform sample of rows, for what the walk did not see

Every row that is scored stays in the pool (there is no beam to fall out of): the pool gives the candidates in the end, and
its estimates go into log Z. A bit a row says whether it was seen; atomics decide which of several equal neighbours is the
first. Where a row lies in the pool therefore changes from run to run, what is in it does not. Not here: the links (decoder/).
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decoder.gpu.launch import Launch, finish
from decoder.gpu.layout import BLOCK_ROWS, CodedRows, blocks_of, padded
from decoder.gpu.results import Pool, Queries, places_of, words_of
from decoder.gpu.select import cut, key_of


def expand_launch(*, width: int, bits: int, capped: bool) -> Launch:
    """How expand is compiled."""
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
    scale: float,
    softcap: float | None,
) -> Pool:
    """links: int32 [V, degree], -1 past a row's own; entries: int32 [m]; beam: a power of two, F."""
    n, degree, device = len(queries.codes), links.shape[1], links.device
    places = places_of(entries=len(entries), degree=degree, steps=steps, beam=beam)
    pool = Pool(
        torch.empty((n, places), dtype=torch.float32, device=device),
        torch.empty((n, places), dtype=torch.int32, device=device),
        torch.zeros((n, words_of(rows.vocab)), dtype=torch.int32, device=device),
    )
    unexpanded = torch.empty_like(pool.estimates)
    # The entries are the links of a row that has no others.
    first = torch.zeros((n, 1), dtype=torch.int32, device=device)
    expand(rows, queries, entries[None, :], first, pool, unexpanded, start=0, scale=scale, softcap=softcap)
    for step in range(steps):
        start = len(entries) + step * beam * degree
        chosen = frontier(unexpanded, pool.ids, filled=start, beam=beam)
        expand(rows, queries, links, chosen, pool, unexpanded, start=start, scale=scale, softcap=softcap)
    return pool


def expand(
    rows: CodedRows,
    queries: Queries,
    links: torch.Tensor,
    chosen: torch.Tensor,
    pool: Pool,
    unexpanded: torch.Tensor,
    *,
    start: int,
    scale: float,
    softcap: float | None,
) -> None:
    """Score the neighbours of the chosen rows, int32 [n, F], -1 for none.

    Their estimates go to places start.. of the pool and of `unexpanded`, which is float32 [n, places].
    """
    n, width = len(queries.codes), rows.width
    (_, beam), degree = chosen.shape, links.shape[1]
    launch = expand_launch(width=width, bits=rows.bits, capped=softcap is not None)
    grid = (n, -(-beam * degree // launch.constants["ROWS"]))
    _expand[grid](
        *(rows.codes, rows.scales, rows.bias),
        *(queries.codes, queries.scales, queries.shifts, queries.offsets),
        *(links, chosen, pool.seen, pool.estimates, pool.ids, unexpanded),
        *(
            rows.vocab,
            blocks_of(rows.vocab),
            beam,
            degree,
            start,
            pool.ids.shape[1],
            pool.seen.shape[1],
            scale,
            softcap or 1.0,
        ),
        **launch.keywords(),
    )


def frontier(unexpanded: torch.Tensor, ids: torch.Tensor, *, filled: int, beam: int) -> torch.Tensor:
    """The best `beam` of the first `filled` places by (estimate desc, id asc), int32 [n, beam], -1 where there are fewer.

    unexpanded: float32 [n, places], -inf for rows that were expanded; those now chosen become -inf.
    """
    n, places = unexpanded.shape
    out = torch.empty((n, beam), dtype=torch.int32, device=ids.device)
    launch = frontier_launch(places=places, beam=beam)
    _frontier[(n,)](unexpanded, ids, out, filled, places, **launch.keywords())
    return out


def draw(windows: torch.Tensor, permutation: torch.Tensor, seen: torch.Tensor, *, size: int) -> torch.Tensor:
    """`size` (a power of two) rows a query, uniform over all: int32 [n, size], -1 for rows that were seen.

    windows: int32 [n], where in the permutation int32 [V] of all rows the query's sample begins.
    """
    n, vocab = len(windows), len(permutation)
    out = torch.empty((n, size), dtype=torch.int32, device=windows.device)
    launch = Launch({"SIZE": size})
    _draw[(n,)](windows, permutation, seen, out, vocab, seen.shape[1], **launch.keywords())
    return out


@triton.jit
def _row_products(
    base, queries, fresh, WIDTH: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr
):
    """Integer products of gathered rows with one query, int32 [ROWS]. base: pointers to the rows' codes."""
    STRIDE: tl.constexpr = WIDTH * BITS // 8
    total = tl.zeros([ROWS, BLOCK_K], tl.int32)
    for start in range(0, STRIDE, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < STRIDE
        code = tl.load(base[:, None] + k[None, :], mask=fresh[:, None] & inside[None, :], other=0).to(tl.int32)
        query = tl.load(queries + k, mask=inside, other=0).to(tl.int32)
        if BITS == 8:
            total += code * query[None, :]
        else:
            other = tl.load(queries + STRIDE + k, mask=inside, other=0).to(tl.int32)
            total += (code & 15) * query[None, :] + (code >> 4) * other[None, :]
    return tl.sum(total, 1)


@triton.jit(do_not_specialize=["vocab", "blocks", "beam", "degree", "start", "places", "words"])
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
    seen,
    out_estimates,
    out_ids,
    unexpanded,
    vocab,
    blocks,
    beam,
    degree,
    start,
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
    link = parent.to(tl.int64) * degree + at % degree
    row = tl.load(links + link, mask=inside & (parent >= 0), other=-1)
    there = (row >= 0) & (row < vocab)
    bit = tl.full([ROWS], 1, tl.int32) << (row & 31)
    before = tl.atomic_or(seen + n * words + (row >> 5), bit, mask=there)
    fresh = there & ((before & bit) == 0)

    place = tl.where(fresh, (row % blocks) * BLOCK_V + row // blocks, 0)
    base = codes + place.to(tl.int64) * (WIDTH * BITS // 8)
    product = _row_products(base, queries + n * WIDTH, fresh, WIDTH, BITS, ROWS, BLOCK_K)
    step = tl.load(query_scales + n)
    raw = (product.to(tl.float32) + tl.load(shifts + n)) * (tl.load(scales + place) * step)
    raw = raw + (tl.load(bias + place) + tl.load(offsets + n))
    estimate = tl.where(fresh, finish(raw, scale, softcap, CAPPED), float("-inf"))
    out = n * places + start + at
    tl.store(out_estimates + out, estimate, mask=inside)
    tl.store(unexpanded + out, estimate, mask=inside)
    tl.store(out_ids + out, tl.where(fresh, row, -1), mask=inside)


@triton.jit(do_not_specialize=["filled", "places"])
def _frontier(unexpanded, ids, out, filled, places, TILE: tl.constexpr, KEEP: tl.constexpr):
    n = tl.program_id(0)
    at = tl.arange(0, TILE)
    inside = at < filled
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


@triton.jit(do_not_specialize=["vocab", "words"])
def _draw(windows, permutation, seen, out, vocab, words, SIZE: tl.constexpr):
    n = tl.program_id(0)
    at = tl.arange(0, SIZE)
    row = tl.load(permutation + (tl.load(windows + n) + at) % vocab)
    word = tl.load(seen + n * words + (row >> 5))
    tl.store(out + n * SIZE + at, tl.where(((word >> (row & 31)) & 1) == 0, row, -1))
