"""Slow twins of the kernels: the same names and signatures in plain torch, written to be read.

They run on any device, give the kernels' numbers (estimates bit by bit from the same queries; sums of floats within
rounding), and answer for CPU tensors. One test class runs both (tests/decoder/gpu/). Not here: what is not a kernel
(layout.py, exact.py).
"""

# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found"

from __future__ import annotations

import torch

from decoder.gpu.layout import BLOCK_ROWS, CodedRows, blocks_of, position, unpacked
from decoder.gpu.results import MARGIN, ROUNDING, WORD_BITS, Ordered, Pool, Queries, Scanned, Selected, words_of

NOTHING = float("-inf")


def project(hidden: torch.Tensor, mean: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """A (h - m), float32 [n, width]."""
    return torch.where(hidden.isfinite(), hidden.float() - mean, 0.0) @ matrix.float().T


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
    """Queries as int8: the largest component becomes 127 or -127; states that are not finite are marked."""
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
    failed = (~hidden.isfinite().all(1)).to(torch.uint8)
    offsets = rotated @ row_mean + torch.where(hidden.isfinite(), hidden.float() - mean, 0.0) @ centre
    return Queries(codes.to(torch.int8), largest / 127.0, shifts, offsets, windows.to(torch.int32), failed)


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
    state = torch.where(hidden.isfinite(), hidden.float(), 0.0)
    raw = (weight[safe].float() * state[:, None, :]).sum(2) + bias[safe]
    return torch.where(ids >= 0, _finished(raw, scale, softcap), NOTHING)


def order(
    logits: torch.Tensor,
    estimates: torch.Tensor,
    ids: torch.Tensor,
    rest: torch.Tensor,
    more_rest: torch.Tensor,
    sampled: torch.Tensor,
    failed: torch.Tensor,
    rows_scored: torch.Tensor,
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
    top = logits.amax(1, keepdim=True).double().clamp_min(-1e30)
    others = torch.cat([rest, more_rest], dim=1).double().sub(top).exp().sum(1, keepdim=True)
    total = (logits.double() - top).exp().sum(1, keepdim=True) + others * mean
    variance = (MARGIN * others) ** 2 * spread
    if sampled.shape[1]:
        share = (sampled.double() - top).exp()
        total = total + vocab * share.mean(1, keepdim=True) * mean
        variance = variance + (vocab * mean) ** 2 * share.var(1, keepdim=True, correction=0) / sampled.shape[1]
    good = failed[:, None] == 0
    log_partition = torch.where(good, top + total.log(), 0.0).float()
    by_id = torch.sort(torch.where(there, ids, 0x40000000), dim=1, stable=True).indices
    best = by_id.gather(1, torch.sort(logits.gather(1, by_id), dim=1, descending=True, stable=True).indices)
    sorted_logits = torch.where(good, logits.gather(1, best), NOTHING)
    sorted_ids = torch.where(good, ids.gather(1, best), -1)
    logprobs = torch.where(sorted_logits > NOTHING, sorted_logits - log_partition, NOTHING)
    stderr = (variance / torch.where(total > 0, total, 1.0) ** 2 + ROUNDING**2).sqrt().float()
    floats = torch.cat([sorted_logits, logprobs, log_partition, stderr], dim=1).view(torch.int32)
    return Ordered(torch.cat([sorted_ids, floats, failed.to(torch.int32)[:, None], rows_scored[:, None]], dim=1))


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
    """Entries, then `steps` times the neighbours of the best `beam` rows not yet expanded; every scored row stays."""
    n, device = len(queries.codes), links.device
    pool = Pool(
        torch.full((n, places), NOTHING, device=device),
        torch.full((n, places), -1, dtype=torch.int32, device=device),
        torch.full((n, places), NOTHING, device=device),
        torch.zeros((n, words_of(rows.vocab)), dtype=torch.int32, device=device),
        torch.zeros(n, dtype=torch.int32, device=device),
    )
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
    """Put the chosen rows' neighbours into the pool, by id, those that were not seen before."""
    places, bits = pool.ids.shape[1], torch.arange(WORD_BITS, device=links.device)
    for q in range(len(chosen)):
        neighbours = links[chosen[q, chosen[q] >= 0].long()].flatten().unique().long()
        neighbours = neighbours[(neighbours >= 0) & (neighbours < rows.vocab)]
        fresh = neighbours[(pool.seen[q, neighbours >> 5] >> (neighbours & 31)) & 1 == 0]
        marks = torch.zeros(pool.seen.shape[1] * WORD_BITS, dtype=torch.int64, device=links.device)
        marks[fresh] = 1
        pool.seen[q] |= (marks.view(-1, WORD_BITS) << bits).sum(1).to(torch.int32)
        start = int(pool.filled[q])
        pool.filled[q] += len(fresh)
        fresh = fresh[: max(places - start, 0)]
        here = slice(start, start + len(fresh))
        one = Queries(*(part[q : q + 1] for part in queries))
        pool.estimates[q, here] = _finished(_raw(rows, one, position(fresh, rows.vocab))[0], scale, softcap)
        pool.unexpanded[q, here] = pool.estimates[q, here]
        pool.ids[q, here] = fresh.to(torch.int32)


def frontier(pool: Pool, *, beam: int) -> torch.Tensor:
    """The best `beam` unexpanded rows, int32 [n, beam], -1 where there are fewer; they count as expanded from then on."""
    # Places that were never filled hold nothing of meaning.
    waiting = (pool.ids >= 0) & (pool.unexpanded > NOTHING)
    chosen = _best(pool.unexpanded, pool.ids, waiting, beam)
    out = torch.full((len(pool.ids), beam), -1, dtype=torch.int32, device=pool.ids.device)
    for q in range(len(pool.ids)):
        rows = pool.ids[q, chosen[q]]
        out[q, : len(rows)] = rows
    pool.unexpanded[chosen] = NOTHING
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
    """Estimates of the next `size` rows of the permutation from each window on, [n, size]; -inf for those that were seen."""
    out = torch.full((len(seen), size), NOTHING, device=seen.device)
    for q in range(len(seen)):
        drawn = permutation[
            (queries.windows[q].long() + torch.arange(size, device=seen.device)) % len(permutation)
        ].long()
        one = Queries(*(part[q : q + 1] for part in queries))
        estimates = _finished(_raw(rows, one, position(drawn, rows.vocab))[0], scale, softcap)
        out[q] = torch.where((seen[q, drawn >> 5] >> (drawn & 31)) & 1 == 0, estimates, NOTHING)
    return out


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
