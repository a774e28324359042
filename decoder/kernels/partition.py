"""log Z from what a walk or a screen saw: exact rows, estimates of the other rows scored, and a sample of the rest.

state_seed, draw,
uniform                 random numbers that are a function of the state and the decoder's seed
estimate_error          how far estimates are from exact logits, by the reranked rows
sum_seen, add_ties      the estimated mass of rows that were scored and not reranked
sample_seen             a systematic sample of them, in proportion to their estimated mass
mass_seen               the last three of one state: what its walk or screen saw
combine                 all strata to log Z and its standard error
sum_up                  the same, with the weights of a uniform sample

Strata of the sum of exp(logit - top): the reranked rows, exact. The other scored rows: the sum of their estimates, corrected,
where a sample of them was rescored, by the mean ratio of exact to estimated mass (unbiased: the sample is drawn in
proportion to the estimate). The rest: a uniform sample, exact, scaled up (unbiased whatever the walk missed).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.exponent import exp_below_zero
from decoder.kernels.score import finish_one

FEW = 1e-5
"""No standard error is below it: a logit summed in float32 is that uncertain itself."""
HIGHEST = np.float32(60.0)
"""No estimate counts for more than exp(60) times the best logit: an estimate by few coordinates may be far off."""


@njit(cache=True, nogil=True)
def state_seed(state: Any, seed: Any) -> Any:
    """A random number's first state, uint64, from the bits of a state float32 (d,) and a seed uint64."""
    x = seed ^ np.uint64(0x9E3779B97F4A7C15)
    bits = state.view(np.uint32)
    for t in range(bits.shape[0]):
        x = (x ^ np.uint64(bits[t])) * np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(29)
    return x


@njit(cache=True, nogil=True, inline="always")
def draw(x: Any) -> Any:
    """The next of splitmix64: (new state, a random uint64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    z = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x, z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def uniform(x: Any) -> Any:
    """(new state, a random float64 in [0, 1))."""
    x, bits = draw(x)
    return x, np.float64(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def estimate_error(logits: Any, distances: Any, offset: Any, scale: Any, softcap: Any, count: Any) -> Any:
    """Standard deviation of exact over estimated mass, from `count` rows of which both are known."""
    spread = 0.0
    for j in range(count):
        estimate = np.float64(np.float32(-0.5) * distances[j] + offset) * scale
        if softcap != np.float32(0.0):
            estimate = softcap * np.tanh(estimate / softcap)
        spread += (np.exp(min(np.float64(logits[j]) - estimate, 20.0)) - 1.0) ** 2
    return np.sqrt(spread / max(count, 1))


# error_model: a division that may raise is not vectorised, and tanh divides.
@njit(cache=True, nogil=True, error_model="numpy")
def sum_seen(
    distances: Any, count: Any, limit: Any, offset: Any, scale: Any, softcap: Any, top: Any, masses: Any
) -> Any:
    """masses[j] = exp(estimated logit - top) of the scored rows farther than `limit`, 0 for others.

    distances: float32, -2 (estimated raw logit - offset); masses: float32 (>= count,). Returns (sum, sum of squares).
    """
    half = np.float32(-0.5)
    if softcap == np.float32(0.0):
        for j in range(count):
            mass = exp_below_zero(min((half * distances[j] + offset) * scale - top, HIGHEST))
            masses[j] = mass if distances[j] > limit else np.float32(0.0)
    else:
        for j in range(count):
            mass = exp_below_zero(min(finish_one(half * distances[j] + offset, scale, softcap) - top, HIGHEST))
            masses[j] = mass if distances[j] > limit else np.float32(0.0)
    total = 0.0
    squares = 0.0
    for j in range(count):
        mass = np.float64(masses[j])
        total += mass
        squares += mass * mass
    return total, squares


@njit(cache=True, nogil=True)
def add_ties(
    rows: Any, distances: Any, count: Any, who: Any, near: Any, known: Any, offset: Any, scale: Any, softcap: Any,
    top: Any, masses: Any,
) -> Any:  # fmt: skip
    """The masses of scored rows that are as far as the last reranked one and were not reranked: sum_seen() left them out.

    who int32, near float32 (>= known,): the reranked rows, nearest first. Returns (sum, sum of squares) of what was added.
    """
    limit = near[known - 1]
    others = 0
    for j in range(count):
        others += np.int64(distances[j] == limit)
    first = known
    while first > 0 and near[first - 1] == limit:
        first -= 1
    total = 0.0
    if others == known - first:
        return total, total
    mass = exp_below_zero(min(finish_one(np.float32(-0.5) * limit + offset, scale, softcap) - top, HIGHEST))
    for j in range(count):
        if distances[j] != limit:
            continue
        masses[j] = mass
        for e in range(first, known):
            if who[e] == rows[j]:
                masses[j] = np.float32(0.0)
        total += np.float64(masses[j])
    return total, total * np.float64(mass)


@njit(cache=True, nogil=True)
def mass_seen(
    logit: Any, who: Any, near: Any, known: Any, rows: Any, distances: Any, count: Any, offset: Any, scale: Any,
    softcap: Any, masses: Any,
) -> Any:  # fmt: skip
    """(largest exact logit, error of estimates, their mass, their squares) of rows[:count], `known` of which are reranked.

    who, logit, near: the reranked rows, their exact logits and distances; masses[j] becomes the mass of rows[j].
    """
    spread = estimate_error(logit, near, offset, scale, softcap, known)
    top = logit[:known].max()
    total, squares = sum_seen(distances, count, near[known - 1], offset, scale, softcap, top, masses)
    more, their_squares = add_ties(rows, distances, count, who, near, known, offset, scale, softcap, top, masses)
    return top, spread, total + more, squares + their_squares


@njit(cache=True, nogil=True, inline="always")
def draws_below(mass: Any, hits: Any, reach: Any, draws: Any, start: Any, step: Any) -> Any:
    """(hits, reach) once every systematic draw that falls below `mass`, summed so far, has hit; the next falls on reach."""
    while hits < draws and reach < mass:
        hits += 1
        reach = (start + hits) * step
    return hits, reach


@njit(cache=True, nogil=True)
def sample_seen(
    rows: Any, masses: Any, count: Any, total: Any, draws: Any, start: Any, who: Any, weights: Any, times: Any
) -> Any:
    """`draws` systematic draws in proportion to mass; returns how many different rows.

    start: uniform in [0, 1). who: int32, weights: float64, times: int32 (>= draws,): the rows, how many tokens each stands
    for (the sum of weight * estimated mass is the sum of all masses), and how often it was drawn.
    """
    step = total / draws
    if not step > 0.0:
        return 0
    reach = start * step
    passed = 0.0
    hits = 0
    m = 0
    for j in range(count):
        mass = np.float64(masses[j])
        passed += mass
        if reach >= passed:
            continue
        before = hits
        hits, reach = draws_below(passed, hits, reach, draws, start, step)
        who[m] = rows[j]
        times[m] = hits - before
        weights[m] = (hits - before) * step / mass
        m += 1
        if hits == draws:
            break
    return m


@njit(cache=True, nogil=True)
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
    """(log Z, its standard error) of one state. Masses are exp(logit - largest logit of the exact rows).

    logits float32, weights float64: `exact` reranked rows; `sampled` rows drawn, times[j] times each, in `draws` draws from
    scored rows whose estimated masses sum to `drawn_from`; then a uniform sample of the `rest` tokens that were not scored.
    total, squares: of the estimated masses of scored rows that count as they are; estimate_error: standard deviation of
    exact over estimated mass. masses: float64, scratch as long as logits.
    """
    count = logits.shape[0]
    best = np.float32(-np.inf)
    for j in range(exact):
        best = max(best, logits[j])
    # A drawn row may be better than all that were found, by more than exp() can say.
    top = best
    for j in range(exact, count):
        top = max(top, logits[j])
    if top > best:
        moved = np.exp(np.float64(best) - np.float64(top))
        total *= moved
        squares *= moved * moved
        drawn_from *= moved
    whole = total
    for j in range(count):
        masses[j] = np.exp(np.float64(logits[j]) - np.float64(top))
        if j < exact:
            whole += masses[j]
    variance = squares * estimate_error * estimate_error
    if sampled > 0:
        middle = 0.0
        for j in range(exact, exact + sampled):
            middle += weights[j] * masses[j]
        spread = 0.0
        for j in range(sampled):
            often = np.float64(times[j])
            one = weights[exact + j] * masses[exact + j] / often
            spread += often * (one - middle / draws) ** 2
        variance += draws / max(1.0, draws - 1.0) * spread
        whole += middle
    else:
        whole += drawn_from
    drawn = count - exact - sampled
    if drawn > 0 and rest > 0:
        mean = 0.0
        for j in range(exact + sampled, count):
            mean += masses[j]
        mean /= drawn
        spread = 0.0
        for j in range(exact + sampled, count):
            spread += (masses[j] - mean) ** 2
        whole += mean * rest
        if drawn > 1:
            variance += rest * np.float64(rest) * (spread / (drawn - 1)) / drawn * (1.0 - drawn / np.float64(rest))
    return np.float64(top) + np.log(whole), max(np.sqrt(variance) / whole, FEW)


@njit(cache=True, nogil=True)
def sum_up(
    logits: Any, weights: Any, known: Any, sampled: Any, times: Any, total: Any, squares: Any, spread: Any,
    drawn_from: Any, draws: Any, rest: Any, exps: Any,
) -> Any:  # fmt: skip
    """combine() once all logits are there; the weights of the uniform sample, rows known + sampled and on, are set."""
    first, count = known + sampled, logits.shape[0]
    for j in range(first, count):
        weights[j] = np.float64(rest) / (count - first)
    return combine(logits, weights, known, sampled, times, total, squares, spread, drawn_from, draws, rest, exps)
