"""Slow twins of this package's kernels: the same names and signatures, written to be read.

One test class runs both (tests/decoder/test_*_kernels.py). dot() shows the order of dots.py bit for bit; elsewhere floats
agree within rounding. Nothing in the product calls these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.kernels.dots import BFLOAT16, FLOAT16, LANES
from decoder.kernels.exact import PIECE


def widened(stored: Any, kind: Any) -> Any:
    """Rows as float32: uint16 holds the bits of float16 or bfloat16, as `kind` says."""
    if kind == FLOAT16:
        return stored.view(np.float16).astype(np.float32)
    if kind == BFLOAT16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored


def _multiply_add(a: Any, b: Any, total: Any, *, fused: bool) -> Any:
    """a * b + total in float32, rounded once or twice. float64 holds the product of two float32 exactly."""
    if fused:
        return (a.astype(np.float64) * b.astype(np.float64) + total.astype(np.float64)).astype(np.float32)
    return a * b + total


def dot(row: Any, state: Any, *, fused: bool) -> Any:
    """row . state of two float32 (d,), in the order of dots.py. fused: as on machines with a fused multiply-add."""
    lanes = np.zeros(LANES, np.float32)
    whole = len(row) - len(row) % LANES
    for at in range(0, whole, LANES):
        lanes = _multiply_add(row[at : at + LANES], state[at : at + LANES], lanes, fused=fused)
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    total = lanes
    for at in range(whole, len(row)):
        total = _multiply_add(row[at : at + 1], state[at : at + 1], total, fused=fused)
    return total[0]


def score_rows(weight: Any, kind: Any, bias: Any, state: Any, ids: Any, first: Any, last: Any, out: Any) -> None:
    """out[j] = weight[ids[j]] . state + bias[ids[j]] for first <= j < last."""
    chosen = ids[first:last]
    rows = widened(weight[chosen], kind).astype(np.float64)
    out[first:last] = rows @ state.astype(np.float64) + bias[chosen]


def exp_below_zero(x: Any) -> Any:
    """exp(x), never below exp(-87)."""
    return np.float32(np.exp(max(np.float64(x), -87.0)))


def exp_roughly(x: Any) -> Any:
    """exp(x), never below exp(-87), by a cubic of what is left of the binary exponent."""
    y = np.float32(max(np.float32(x), np.float32(-87.0))) * np.float32(1.4426950408889634)
    whole = np.rint(y)
    r = np.float32(y - whole)
    p = np.float32(0.05517166907905640)
    for c in (0.24261112219905600, 0.69326098546062416, 0.99992807353939517):
        p = np.float32(p * r + np.float32(c))
    return np.float32(np.ldexp(p, int(whole)))


def tanh(x: Any) -> Any:
    """tanh(x); NaN for infinities."""
    return np.float64(np.nan) if np.isinf(x) else np.tanh(np.float64(x))


def finish_one(raw: Any, scale: Any, softcap: Any) -> Any:
    """softcap * tanh(raw * scale / softcap), or raw * scale where softcap is 0."""
    if softcap == 0:
        return np.float32(np.float32(raw) * np.float32(scale))
    return np.float32(np.float64(softcap) * tanh(np.float64(raw) * np.float64(scale) / np.float64(softcap)))


def finish_in_place(values: Any, scale: Any, softcap: Any) -> None:
    """values[i] = finish_one(values[i])."""
    values[:] = [finish_one(value, scale, softcap) for value in values]


def finish_logits(raw: Any, scale: Any, softcap: Any, out: Any) -> None:
    """out[i] = finish_one(raw[i])."""
    out[:] = [finish_one(value, scale, softcap) for value in raw]


def exact_logits(
    weight: Any, kind: Any, bias: Any, scale: Any, softcap: Any, state: Any, ids: Any, first: Any, last: Any, out: Any
) -> None:
    """out[j] = the logit of ids[j] for first <= j < last."""
    score_rows(weight, kind, bias, state, ids, first, last, out)
    finish_in_place(out[first:last], scale, softcap)


def all_logits(weight: Any, kind: Any, bias: Any, scale: Any, softcap: Any, states: Any, out: Any) -> None:
    """out[s, v] = logit of token v under state s."""
    ids = np.arange(out.shape[1])
    for state, line in zip(states, out):
        score_rows(weight, kind, bias, state, ids, 0, len(ids), line)
        finish_in_place(line, scale, softcap)


def _best(logits: Any, ids: Any, far: Any, who: Any) -> int:
    """Fill who and far with the best of these tokens and of what they hold; returns how many there are."""
    order = np.lexsort((ids, -logits))
    order = order[logits[order] > -np.inf][: len(who)]
    who[: len(order)], far[: len(order)] = ids[order], -logits[order]
    return len(order)


def _pieces(logits: Any, first: Any, tops: Any, sums: Any) -> None:
    """Each piece's largest logit and its sum of exp(logit - top)."""
    for at in range(0, len(logits), PIECE):
        piece = logits[at : at + PIECE].astype(np.float64)
        tops[(first + at) // PIECE] = piece.max()
        sums[(first + at) // PIECE] = np.exp(piece - piece.max()).sum() if piece.max() > -np.inf else 0.0


def scan(
    weight: Any,
    kind: Any,
    bias: Any,
    scale: Any,
    softcap: Any,
    states: Any,
    first: Any,
    last: Any,
    who: Any,
    far: Any,
    kept: Any,
    tops: Any,
    sums: Any,
    extra: Any,
    extra_tops: Any,
    extra_sums: Any,
    targets: Any,
    target_logits: Any,
    ranks: Any,
) -> None:
    """All logits of a state at once, then what is wanted of them. Heaps come sorted, which is a heap from the other end."""
    ids = np.arange(first, last, dtype=np.int32)
    for s, state in enumerate(states):
        logits = np.empty(last - first, np.float32)
        score_rows(weight, kind, bias, state, ids, 0, len(ids), logits)
        finish_in_place(logits, scale, softcap)
        _pieces(logits, first, tops[s], sums[s])
        if len(targets):
            ranks[s] += np.count_nonzero(logits > target_logits[s])
            ranks[s] += np.count_nonzero((logits == target_logits[s]) & (ids < targets[s]))
        answers = logits
        if len(extra):
            answers = logits + extra[first:last]
            _pieces(answers, first, extra_tops[s], extra_sums[s])
        held = slice(0, kept[s])
        together = np.concatenate([answers, -far[s, held]]), np.concatenate([ids, who[s, held]])
        kept[s] = _best(*together, far[s], who[s])


def sort_best(who: Any, far: Any, kept: Any) -> None:
    """Each state's tokens in order; entries past kept[s] become -1, infinity."""
    for s in range(len(who)):
        ids, logits = who[s, : kept[s]].copy(), -far[s, : kept[s]]
        who[s], far[s] = -1, np.inf
        _best(logits, ids, far[s], who[s])
