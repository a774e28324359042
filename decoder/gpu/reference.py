"""Slow twins of the kernels: the same names and signatures in plain torch, written to be read.

They run on any device, give the kernels' numbers (estimates bit by bit from the same queries; sums of floats within
rounding), and answer for CPU tensors. One test class runs both (tests/decoder/gpu/). Not here: what is not a kernel
(layout.py, exact.py).
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import torch

from decoder.gpu.layout import BLOCK_ROWS, CodedRows, blocks_of, position, unpacked
from decoder.gpu.results import MARGIN, Ordered, Pool, Queries, Scanned, Selected, places_of, words_of

NOTHING = float("-inf")


def project(hidden: torch.Tensor, mean: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """A (h - m), float32 [n, width]."""
    return (hidden.float() - mean) @ matrix.float().T


def quantise(rotated: torch.Tensor, row_mean: torch.Tensor, *, bits: int, vocab: int) -> Queries:
    """Queries as int8: the largest component becomes 127 or -127."""
    largest = rotated.abs().amax(1)
    largest = torch.where(largest > 1e-30, largest, 127.0)
    codes = torch.floor(rotated * (127.0 / largest)[:, None] + 0.5).to(torch.int32)
    half = codes.shape[1] // 2
    if bits == 8:
        shifts = 0.5 * codes.sum(1).float()
    else:
        shifts = 0.5 * codes[:, half:].sum(1).float() - 7.5 * codes[:, :half].sum(1).float()
    factors = (torch.arange(codes.shape[1], device=codes.device) * 40503) % 251
    windows = ((codes * factors).sum(1).abs() * 7919) % vocab
    return Queries(codes.to(torch.int8), largest / 127.0, shifts, rotated @ row_mean, windows.to(torch.int32))


def scan(rows: CodedRows, queries: Queries, *, kept: int, scale: float, softcap: float | None) -> Scanned:
    """The best `kept` rows of every block for every query, by (leading 25 bits of the estimate desc, id asc)."""
    n, blocks = len(queries.codes), blocks_of(rows.vocab)
    values = _finished(_raw(rows, queries, torch.arange(blocks * BLOCK_ROWS, device=rows.codes.device)), scale, softcap)
    slots = torch.arange(BLOCK_ROWS, device=rows.codes.device)
    ids = slots * blocks + torch.arange(blocks, device=rows.codes.device)[:, None]
    values = torch.where(ids < rows.vocab, values.view(n, blocks, BLOCK_ROWS), NOTHING)
    coarse = torch.where(ids < rows.vocab, _unordered(_ordered(values) & -BLOCK_ROWS), NOTHING)
    best = torch.sort(coarse, dim=2, descending=True, stable=True).indices
    taken, left = best[:, :, :kept], best[:, :, kept:]
    estimates = coarse.gather(2, taken)
    found = ids.expand(n, -1, -1).gather(2, taken)
    rest = (
        torch.logsumexp(values.gather(2, left), dim=2)
        if kept < BLOCK_ROWS
        else torch.full_like(values[:, :, 0], NOTHING)
    )
    return Scanned(estimates, torch.where(estimates > NOTHING, found, -1).to(torch.int32), rest)


def select(estimates: torch.Tensor, ids: torch.Tensor, *, keep: int) -> Selected:
    """The `keep` best of each row by (estimate desc, id asc), in the order in which they came."""
    n = len(estimates)
    chosen = _best(estimates, ids, ids >= 0, keep)
    out = torch.full((n, keep), NOTHING, device=estimates.device)
    out_ids = torch.full((n, keep), -1, dtype=torch.int32, device=estimates.device)
    for q in range(n):
        places = chosen[q].nonzero()[:, 0]
        out[q, : len(places)] = estimates[q, places]
        out_ids[q, : len(places)] = ids[q, places]
    left = torch.where((ids >= 0) & ~chosen, estimates, NOTHING)
    return Selected(out, out_ids, torch.logsumexp(left, dim=1, keepdim=True))


def score(
    weight: torch.Tensor,
    bias: torch.Tensor,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Logits float32 [n, m] of rows ids int32 [n, m]; -inf where an id is negative."""
    safe = ids.clamp_min(0).long()
    raw = (weight[safe].float() * hidden.float()[:, None, :]).sum(2) + bias[safe]
    return torch.where(ids >= 0, _finished(raw, scale, softcap), NOTHING)


def order(
    logits: torch.Tensor,
    estimates: torch.Tensor,
    ids: torch.Tensor,
    rest: torch.Tensor,
    more_rest: torch.Tensor,
    sampled: torch.Tensor,
    *,
    vocab: int,
) -> Ordered:
    """Candidates by (logit desc, id asc), with log-probabilities, log Z and its standard error."""
    there = ids >= 0
    count = there.sum(1, keepdim=True).clamp_min(1)
    error = torch.where(there, logits.double() - torch.where(there, estimates, 0.0).double(), NOTHING)
    ratio = error.exp()
    mean = ratio.sum(1, keepdim=True) / count
    spread = (torch.where(there, ratio - mean, 0.0) ** 2).sum(1, keepdim=True) / count**2
    top = logits.amax(1, keepdim=True).double()
    others = torch.cat([rest, more_rest], dim=1).double().sub(top).exp().sum(1, keepdim=True)
    total = (logits.double() - top).exp().sum(1, keepdim=True) + others * mean
    variance = (MARGIN * others) ** 2 * spread
    if sampled.shape[1]:
        share = (sampled.double() - top).exp()
        total = total + vocab * share.mean(1, keepdim=True)
        variance = variance + vocab**2 * share.var(1, keepdim=True, correction=0) / sampled.shape[1]
    log_partition = (top + total.log()).float()
    by_id = torch.sort(torch.where(there, ids, 0x40000000), dim=1, stable=True).indices
    best = by_id.gather(1, torch.sort(logits.gather(1, by_id), dim=1, descending=True, stable=True).indices)
    sorted_logits = logits.gather(1, best)
    stderr = (variance.sqrt() / total).float()
    return Ordered(ids.gather(1, best), sorted_logits, sorted_logits - log_partition, log_partition[:, 0], stderr[:, 0])


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
    """Entries, then `steps` times the neighbours of the best `beam` rows not yet expanded; every scored row stays."""
    n, degree, device = len(queries.codes), links.shape[1], links.device
    places = places_of(entries=len(entries), degree=degree, steps=steps, beam=beam)
    pool = Pool(
        torch.full((n, places), NOTHING, device=device),
        torch.full((n, places), -1, dtype=torch.int32, device=device),
        torch.zeros((n, words_of(rows.vocab)), dtype=torch.int32, device=device),
    )
    unexpanded = torch.empty_like(pool.estimates)
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
    """Estimates of the chosen rows' neighbours into places start.. of pool and `unexpanded`; of equal ones the first."""
    for q in range(len(chosen)):
        neighbours = torch.where(chosen[q, :, None] >= 0, links[chosen[q].clamp_min(0).long()], -1).flatten()
        there = (neighbours >= 0) & (neighbours < rows.vocab)
        safe = torch.where(there, neighbours, 0).long()
        first = torch.full((rows.vocab,), len(neighbours), device=links.device)
        turn = torch.arange(len(neighbours), device=links.device)
        first.scatter_reduce_(0, safe[there], turn[there], "amin")
        seen = (pool.seen[q, safe >> 5] >> (safe & 31)) & 1
        fresh = there & (first[safe] == turn) & (seen == 0)
        one = Queries(*(part[q : q + 1] for part in queries))
        raw = _raw(rows, one, position(safe, rows.vocab))[0]
        end = start + len(neighbours)
        pool.estimates[q, start:end] = torch.where(fresh, _finished(raw, scale, softcap), NOTHING)
        pool.ids[q, start:end] = torch.where(fresh, neighbours, -1)
        bits = torch.zeros(pool.seen.shape[1] * 32, dtype=torch.int64, device=links.device)
        bits[safe[fresh]] = 1
        pool.seen[q] |= (bits.view(-1, 32) << torch.arange(32, device=links.device)).sum(1).to(torch.int32)
        unexpanded[q, start:end] = pool.estimates[q, start:end]


def frontier(unexpanded: torch.Tensor, ids: torch.Tensor, *, filled: int, beam: int) -> torch.Tensor:
    """The best `beam` of the first `filled` places, int32 [n, beam], -1 where there are fewer; they become -inf."""
    waiting = unexpanded[:, :filled]
    chosen = _best(waiting, ids[:, :filled], waiting > NOTHING, beam)
    out = torch.full((len(ids), beam), -1, dtype=torch.int32, device=ids.device)
    for q in range(len(ids)):
        places = chosen[q].nonzero()[:, 0]
        out[q, : len(places)] = ids[q, places]
    waiting[chosen] = NOTHING
    return out


def draw(windows: torch.Tensor, permutation: torch.Tensor, seen: torch.Tensor, *, size: int) -> torch.Tensor:
    """`size` rows a query, uniform over all: int32 [n, size], -1 for rows that were seen."""
    places = (windows[:, None].long() + torch.arange(size, device=windows.device)) % len(permutation)
    rows = permutation[places]
    bits = (seen.gather(1, (rows >> 5).long()) >> (rows & 31)) & 1
    return torch.where(bits == 0, rows, -1)


def _raw(rows: CodedRows, queries: Queries, places: torch.Tensor) -> torch.Tensor:
    """Estimates of raw logits of the rows at these places, float32 [n, places]: the kernels' operations in their order."""
    # Exact: integers below 2^53.
    product = queries.codes.double() @ unpacked(rows.codes[places], rows.bits).double().T
    raw = (product.float() + queries.shifts[:, None]) * (rows.scales[places] * queries.scales[:, None])
    return raw + (rows.bias[places] + queries.offsets[:, None])


def _finished(raw: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
    logits = raw * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _best(estimates: torch.Tensor, ids: torch.Tensor, there: torch.Tensor, keep: int) -> torch.Tensor:
    """Which of each row's entries are its `keep` best by (estimate desc, id asc), bool; only those that are there."""
    by_id = torch.sort(ids, dim=1, stable=True).indices
    value = torch.where(there, estimates, NOTHING).gather(1, by_id)
    best = by_id.gather(1, torch.sort(value, dim=1, descending=True, stable=True).indices)[:, :keep]
    return torch.zeros_like(there).scatter_(1, best, torch.ones_like(best, dtype=torch.bool)) & there


def _ordered(values: torch.Tensor) -> torch.Tensor:
    # -0 becomes 0, as in the kernels.
    bits = (values + 0.0).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _unordered(bits: torch.Tensor) -> torch.Tensor:
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32)
