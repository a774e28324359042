"""Exact logits of the candidates, their order, and log Z.

score       logits of given rows from the layer's own weights, accumulated in float32 in one fixed order
order       candidates by (logit desc, id asc), log-probabilities, log Z with its standard error

log Z adds up the exact logits of the candidates and the estimates of all other rows. The estimates' own error is measured on
the candidates, where both are known: the sum over the others is multiplied by the mean of exp(logit - estimate). Where only
a part of the rows was estimated (a walk), a uniform sample of rows stands for those that were not. Not here: estimates
(scan.py, walk.py), sampling (walk.py).
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from decoder.gpu.launch import Launch, finish, finite, log_or_nothing
from decoder.gpu.layout import padded
from decoder.gpu.results import MARGIN, ROUNDING, Ordered

CHUNK = 32
"""Candidates that all others are compared with at a time."""


def score_launch(*, dim: int, capped: bool) -> Launch:
    """How score is compiled."""
    # A program has all its loads in flight at once: rows lie anywhere, and waiting for each in turn is what would cost.
    block = min(padded(dim, 64), 4096)
    return Launch({"DIM": dim, "CAPPED": int(capped), "ROWS": max(min(8192 // block, 8), 1), "BLOCK_D": block})


def order_launch(*, keep: int, parts: int, samples: int) -> Launch:
    """How order is compiled. parts: values of `rest` a query; samples: sampled rows a query, 0 for none."""
    constants = {
        "KEEP": keep,
        "CHUNK": min(CHUNK, keep, 8192 // keep),
        "PART": min(padded(parts, 16), 2048),
        "SAMPLES": samples,
    }
    return Launch(constants, warps=min(max(keep // 64, 4), 8))


def score(
    weight: torch.Tensor,
    bias: torch.Tensor,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Logits float32 [n, m] of rows ids int32 [n, m] under hidden states [n, dim]; -inf where an id is negative.

    Components that are not finite count as 0.
    """
    (n, dim), m = hidden.shape, ids.shape[1]
    out = torch.empty((n, m), dtype=torch.float32, device=ids.device)
    launch = score_launch(dim=dim, capped=softcap is not None)
    grid = (n, -(-m // launch.constants["ROWS"]))
    _score[grid](weight, bias, hidden, ids, out, m, scale, softcap or 1.0, **launch.keywords())
    return out


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
    """Best first, with log-probabilities.

    logits, estimates, ids: [n, R], R a power of two; rest, more_rest: logs of sums of exponentials of estimated rows that are
    no candidates, [n, parts] each; sampled: estimates of a uniform sample of all rows, [n, samples], -inf for those already
    counted; [n, 0] where every row was estimated; failed: uint8 [n];
    rows_scored: int32 [n], passed on.
    """
    n, keep = logits.shape
    out = Ordered.empty(n, keep, logits.device)
    parts, more = rest.shape[1], more_rest.shape[1]
    launch = order_launch(keep=keep, parts=max(parts, more), samples=sampled.shape[1])
    _order[(n,)](
        *(logits, estimates, ids, rest, more_rest, sampled, failed, rows_scored, out.flat),
        *(parts, more, vocab, MARGIN, ROUNDING),
        **launch.keywords(),
    )
    return out


@triton.jit(do_not_specialize=["m"])
def _score(
    weight,
    bias,
    hidden,
    ids,
    out,
    m,
    scale,
    softcap,
    DIM: tl.constexpr,
    CAPPED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    n = tl.program_id(0)
    at = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    row = tl.load(ids + n * m + at, mask=at < m, other=-1)
    there = row >= 0
    base = weight + tl.maximum(row, 0).to(tl.int64)[:, None] * DIM
    total = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for start in range(0, DIM, BLOCK_D):
        k = start + tl.arange(0, BLOCK_D)
        w = tl.load(base + k[None, :], mask=there[:, None] & (k < DIM)[None, :], other=0.0)
        h = tl.load(hidden + n * DIM + k, mask=k < DIM, other=0.0).to(tl.float32)
        total += w.to(tl.float32) * tl.where(finite(h), h, 0.0)[None, :]
    raw = tl.sum(total, 1) + tl.load(bias + row, mask=there, other=0.0)
    tl.store(out + n * m + at, tl.where(there, finish(raw, scale, softcap, CAPPED), float("-inf")), mask=at < m)


@triton.jit
def _summed(rest, parts, top, PART: tl.constexpr):
    """Sum of exp(x - top) over the parts of one query."""
    total = 0.0
    for start in range(0, parts, PART):
        at = start + tl.arange(0, PART)
        total += tl.sum(tl.exp(tl.load(rest + at, mask=at < parts, other=float("-inf")) - top), 0)
    return total


@triton.jit
def _largest(rest, parts, PART: tl.constexpr):
    top = -1e30
    for start in range(0, parts, PART):
        at = start + tl.arange(0, PART)
        top = tl.maximum(top, tl.max(tl.load(rest + at, mask=at < parts, other=float("-inf")), 0))
    return top


@triton.jit
def _rank(logits, ids, mine, my_id, KEEP: tl.constexpr, CHUNK: tl.constexpr):
    """How many candidates stand before each one; absent ones stand last, in the order in which they came."""
    rank = tl.zeros([KEEP], tl.int32)
    for start in range(0, KEEP, CHUNK):
        at = start + tl.arange(0, CHUNK)
        other, other_id = tl.load(logits + at), tl.load(ids + at)
        other_id = tl.where(other_id >= 0, other_id, 0x40000000 + at)
        before = other[None, :] > mine[:, None]
        before = before | ((other[None, :] == mine[:, None]) & (other_id[None, :] < my_id[:, None]))
        rank += tl.sum(before.to(tl.int32), 1)
    return rank


@triton.jit(do_not_specialize=["parts", "more", "vocab"])
def _order(
    logits,
    estimates,
    ids,
    rest,
    more_rest,
    sampled,
    failed,
    rows_scored,
    out,
    parts,
    more,
    vocab,
    margin,
    rounding,
    KEEP: tl.constexpr,
    CHUNK: tl.constexpr,
    PART: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    n = tl.program_id(0)
    at = tl.arange(0, KEEP)
    mine = tl.load(logits + n * KEEP + at)
    row = tl.load(ids + n * KEEP + at)
    there = row >= 0
    rank = _rank(logits + n * KEEP, ids + n * KEEP, mine, tl.where(there, row, 0x40000000 + at), KEEP, CHUNK)

    # The mean of exp(logit - estimate), kept as a log and a mean near one.
    count = tl.maximum(tl.sum(there.to(tl.float32), 0), 1.0)
    estimate = tl.load(estimates + n * KEEP + at, mask=there, other=0.0)
    error = tl.where(there, mine - estimate, float("-inf"))
    worst = tl.maximum(tl.max(error, 0), -1e30)
    ratio = tl.exp(error - worst)
    mean = tl.sum(ratio, 0) / count
    spread = tl.sum(tl.where(there, (ratio - mean) * (ratio - mean), 0.0), 0) / (count * count)

    top_rest = tl.maximum(_largest(rest + n * parts, parts, PART), _largest(more_rest + n * more, more, PART))
    others = _summed(rest + n * parts, parts, top_rest, PART) + _summed(more_rest + n * more, more, top_rest, PART)
    top = tl.maximum(tl.max(mine, 0), tl.maximum(top_rest + worst, -1e30))
    if SAMPLES > 0:
        drawn = tl.load(sampled + n * SAMPLES + tl.arange(0, SAMPLES))
        # Estimates, too: what the candidates say of an estimate holds for them.
        drawn = drawn + worst
        top = tl.maximum(top, tl.max(drawn, 0))
    factor = tl.exp(top_rest + worst - top) * others
    total = tl.sum(tl.exp(mine - top), 0) + factor * mean
    variance = margin * margin * factor * factor * spread
    if SAMPLES > 0:
        weigh = mean * vocab
        share = tl.exp(drawn - top)
        mean_share = tl.sum(share, 0) / SAMPLES
        total += mean_share * weigh
        scatter = tl.sum((share - mean_share) * (share - mean_share), 0) / (SAMPLES * SAMPLES)
        variance += scatter * weigh * weigh
    bad = tl.load(failed + n).to(tl.int32)
    good = bad == 0
    log_partition = tl.where(good, top + log_or_nothing(total), 0.0)
    # Where there is no candidate at all, log Z may be -inf: nothing is subtracted from nothing then.
    taken = tl.where(log_partition > float("-inf"), log_partition, 0.0)
    least = tl.where(total > 0.0, total, 1.0)
    stderr = tl.sqrt(variance / (least * least) + rounding * rounding)
    base = out + n * (3 * KEEP + 4)
    tl.store(base + rank, tl.where(good, row, -1))
    tl.store(base + KEEP + rank, tl.where(good, mine, float("-inf")).to(tl.int32, bitcast=True))
    tl.store(base + 2 * KEEP + rank, tl.where(good, mine - taken, float("-inf")).to(tl.int32, bitcast=True))
    tl.store(base + 3 * KEEP, log_partition.to(tl.int32, bitcast=True))
    tl.store(base + 3 * KEEP + 1, stderr.to(tl.int32, bitcast=True))
    tl.store(base + 3 * KEEP + 2, bad)
    tl.store(base + 3 * KEEP + 3, tl.load(rows_scored + n))
