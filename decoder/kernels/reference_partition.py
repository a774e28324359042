"""Slow twins of partition.py: the same names and signatures, written to be read.

Random numbers are the same bits; sums agree within rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.kernels.partition import FEW, HIGHEST
from decoder.kernels.reference import exp_below_zero, finish_one

_WORD = (1 << 64) - 1


def state_seed(state: Any, seed: Any) -> Any:
    """Every bit of the state and of the seed counts."""
    x = int(seed) ^ 0x9E3779B97F4A7C15
    for word in state.view(np.uint32).tolist():
        x = ((x ^ word) * 0xBF58476D1CE4E5B9) & _WORD
        x ^= x >> 29
    return np.uint64(x)


def draw(x: Any) -> Any:
    """The next of splitmix64: (new state, a random uint64)."""
    state = (int(x) + 0x9E3779B97F4A7C15) & _WORD
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return np.uint64(state), np.uint64(z ^ (z >> 31))


def uniform(x: Any) -> Any:
    """(new state, a random float64 in [0, 1)) from the upper 53 bits."""
    x, bits = draw(x)
    return x, (int(bits) >> 11) / 2.0**53


def estimate_error(logits: Any, distances: Any, offset: Any, scale: Any, softcap: Any, count: Any) -> Any:
    """Root of the mean square of exact over estimated mass - 1."""
    estimates = _estimates(distances[:count], offset, scale, softcap)
    ratios = np.exp(np.minimum(logits[:count] - estimates, 20.0))
    return float(np.sqrt(np.mean((ratios - 1.0) ** 2))) if count else 0.0


def _estimates(distances: Any, offset: Any, scale: Any, softcap: Any) -> Any:
    raw = np.float32(-0.5) * distances + np.float32(offset)
    return np.array([finish_one(value, scale, softcap) for value in raw], np.float64)


def _masses(distances: Any, offset: Any, scale: Any, softcap: Any, top: Any) -> Any:
    above = np.minimum(_estimates(distances, offset, scale, softcap) - top, HIGHEST)
    return np.array([exp_below_zero(x) for x in above], np.float32)


def sum_seen(
    distances: Any, count: Any, limit: Any, offset: Any, scale: Any, softcap: Any, top: Any, masses: Any
) -> Any:
    """Masses of the rows farther than `limit`; (sum, sum of squares)."""
    some = _masses(distances[:count], offset, scale, softcap, top)
    masses[:count] = np.where(distances[:count] > limit, some, 0.0)
    wide = masses[:count].astype(np.float64)
    return float(wide.sum()), float((wide**2).sum())


def add_ties(
    rows: Any, distances: Any, count: Any, who: Any, near: Any, known: Any, offset: Any, scale: Any, softcap: Any,
    top: Any, masses: Any,
) -> Any:  # fmt: skip
    """Masses of rows as far as the last reranked one that are not among the reranked."""
    reranked = set(who[:known].tolist())
    tied = [j for j in range(count) if distances[j] == near[known - 1] and int(rows[j]) not in reranked]
    for j in tied:
        masses[j] = _masses(distances[j : j + 1], offset, scale, softcap, top)[0]
    wide = masses[tied].astype(np.float64)
    return float(wide.sum()), float((wide**2).sum())


def mass_seen(
    logit: Any, who: Any, near: Any, known: Any, rows: Any, distances: Any, count: Any, offset: Any, scale: Any,
    softcap: Any, masses: Any,
) -> Any:  # fmt: skip
    """(largest exact logit, error of estimates, their mass, their squares)."""
    spread = estimate_error(logit, near, offset, scale, softcap, known)
    top = logit[:known].max()
    total, squares = sum_seen(distances, count, near[known - 1], offset, scale, softcap, top, masses)
    more, their_squares = add_ties(rows, distances, count, who, near, known, offset, scale, softcap, top, masses)
    return top, spread, total + more, squares + their_squares


def sample_seen(
    rows: Any, masses: Any, count: Any, total: Any, draws: Any, start: Any, who: Any, weights: Any, times: Any
) -> Any:
    """Every (total / draws)-th of the mass is hit; returns how many rows were."""
    if total <= 0.0:
        return 0
    step = total / draws
    ends = np.cumsum(masses[:count].astype(np.float64))
    hit = np.searchsorted(ends, (start + np.arange(draws)) * step, side="right")
    places, often = np.unique(hit[hit < count], return_counts=True)
    m = len(places)
    who[:m], times[:m] = rows[places], often
    weights[:m] = often * step / masses[places]
    return m


def combine(
    logits: Any,
    weights: Any,
    exact: Any,
    sampled: Any,
    times: Any,
    total: Any,
    squares: Any,
    estimate_error: Any,
    drawn_from: Any,
    draws: Any,
    rest: Any,
    masses: Any,
) -> Any:
    """(log Z, its standard error): exact rows, estimates, the sample of estimated rows, the sample of the rest."""
    top = float(logits.max())
    moved = np.exp(float(logits[:exact].max()) - top)
    total, squares, drawn_from = total * moved, squares * moved**2, drawn_from * moved
    masses[:] = np.exp(logits.astype(np.float64) - top)
    known, drawn, others = np.split(masses, [exact, exact + sampled])
    whole, variance = known.sum() + total, squares * estimate_error**2
    if sampled:
        often = times[:sampled]
        one = weights[exact : exact + sampled] * drawn / often
        middle = (often * one).sum()
        variance += draws / max(1, draws - 1) * (often * (one - middle / draws) ** 2).sum()
        whole += middle
    else:
        whole += drawn_from
    if len(others) and rest:
        whole += others.mean() * rest
        if len(others) > 1:
            variance += rest**2 * others.var(ddof=1) / len(others) * (1 - len(others) / rest)
    return top + np.log(whole), max(np.sqrt(variance) / whole, FEW)


def sum_up(
    logits: Any, weights: Any, known: Any, sampled: Any, times: Any, total: Any, squares: Any, spread: Any,
    drawn_from: Any, draws: Any, rest: Any, exps: Any,
) -> Any:  # fmt: skip
    """combine() once all logits are there."""
    first = known + sampled
    weights[first:] = rest / max(1, len(logits) - first)
    return combine(
        logits, weights, known, sampled, times, total, squares, spread, drawn_from, draws, rest, exps[: len(logits)]
    )
