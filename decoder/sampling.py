"""Drawing one token of a state from exact candidates and a weighted sample of all the others.

SamplingOptions   temperature, top_k, top_p, min_p, seed
Entries           distinct tokens with their logits; the weight says how many tokens an entry stands for
draw()            one token; processed_logprobs() of all entries; log_partition() at any temperature

The cuts come in vLLM's documented order, which is Hugging Face's: temperature, top_k, top_p, min_p, each on what the one
before left, renormalised. Exact entries weigh 1. The tail comes as a uniform sample of its tokens, each standing for w of
them: mass counts w times, top_k counts w tokens, and a cut through an entry keeps the part of its weight that is inside. A
draw gives the sampled token itself: over many samples each token of the tail comes as often as it should, as nearly as one
sample knows the tail's mass. Cuts among exact entries are exact where that mass is; a cut that falls into the tail is placed
as well as the sample knows it.
Ties are cut by id: top_k keeps k tokens, never more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder import option_checks as checks
from decoder.constraints import best_first

SEED_MAX = 2**63 - 1
GREEDY_BELOW = 1e-5
"""Temperatures below count as 0, as in vLLM."""
ROUNDING = 1e-9
"""Shares that differ by less are equal: a token that begins where top_p ends is out, whichever way the sum was rounded."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How one token is drawn. Checked when made; DecoderOptionsError names what makes no sense."""

    temperature: float = 1.0
    """0: the best token, always."""
    top_k: int = 0
    """Only the k best tokens; 0 or -1: no limit."""
    top_p: float = 1.0
    """Only the best tokens that hold this share of the probability together."""
    min_p: float = 0.0
    """Only tokens that are at least this many times as probable as the best."""
    seed: int | None = None
    """0 to 2^63 - 1: the same draws for the same seed, step and row. None: other draws each time."""

    def __post_init__(self) -> None:
        keep = object.__setattr__
        keep(self, "temperature", checks.number("temperature", self.temperature, low=0.0))
        keep(self, "top_k", max(0, checks.whole("top_k", self.top_k, low=-1)))
        keep(self, "top_p", checks.number("top_p", self.top_p, low=0.0, high=1.0, above=True))
        keep(self, "min_p", checks.number("min_p", self.min_p, low=0.0, high=1.0))
        if self.seed is not None:
            keep(self, "seed", checks.whole("seed", self.seed, low=0, high=SEED_MAX))

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken without a draw."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class Entries:
    """Distinct tokens of one state, best first, ties by id. ids int32, logits float32, weights float64, all (m,), m >= 1."""

    ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    weights: Floats

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The token drawn, its place among the entries, and its log-probability after temperature and cuts."""

    token_id: int
    place: int
    logprob: float


def entries_of(
    ids: NDArray[np.int32], logits: NDArray[np.float32], weights: NDArray[np.float64] | None = None
) -> Entries:
    """Entries in order, from distinct tokens in any order. weights: 1 each where None."""
    order = best_first(ids, logits)
    heavy = np.ones(len(ids)) if weights is None else np.asarray(weights, np.float64)[order]
    return Entries(ids[order], logits[order], heavy)


def generator_of(seed: int | None, step: int, row: int) -> np.random.Generator:
    """The source of randomness of one state at one step: the same for the same three, another for another row or step."""
    return np.random.default_rng() if seed is None else np.random.default_rng([seed, step, row])


def log_partition(entries: Entries, temperature: float = 1.0) -> float:
    """log of the sum of exp(logit / temperature) over all tokens that the entries stand for."""
    return _log_sum(_tempered(entries, temperature), entries.weights)


def draw(entries: Entries, options: SamplingOptions, generator: np.random.Generator) -> Drawn:
    """One token. Greedy: the first entry, whose log-probability is that after the cuts, at temperature 1."""
    logits, weights = _cut(entries, options)
    mass = weights * np.exp(logits - logits[0])
    place = 0
    if not options.greedy:
        ends = np.cumsum(mass)
        place = int(np.searchsorted(ends, generator.random() * ends[-1], side="right"))
        # A product that rounds up to the very end would point past the last entry, or at one that was cut.
        place = min(place, int(np.flatnonzero(mass)[-1]))
    return Drawn(int(entries.ids[place]), place, float(logits[place] - logits[0] - np.log(mass.sum())))


def processed_logprobs(entries: Entries, options: SamplingOptions) -> NDArray[np.float32]:
    """Log-probability of each entry's token after temperature and cuts, float32 (m,); minus infinity where it was cut."""
    logits, weights = _cut(entries, options)
    found = np.where(weights > 0, logits - _log_sum(logits, weights), -np.inf)
    with np.errstate(over="ignore"):
        return found.astype(np.float32)


def _tempered(entries: Entries, temperature: float) -> Floats:
    """logits / temperature, float64; differences stay finite whatever the temperature."""
    best = np.float64(entries.logits[0])
    with np.errstate(over="ignore"):
        return np.float64(best / temperature) + (entries.logits - best) / temperature


def _log_sum(logits: Floats, weights: Floats) -> float:
    return float(logits[0] + np.log(np.sum(weights * np.exp(logits - logits[0]))))


def _cut(entries: Entries, options: SamplingOptions) -> tuple[Floats, Floats]:
    """Tempered logits, and of each entry's weight what the cuts leave; the first entry always stays."""
    logits = _tempered(entries, 1.0 if options.greedy else options.temperature)
    weights = entries.weights
    if options.top_k > 0:
        weights = _first(weights, float(options.top_k))
    each = np.exp(logits - logits[0])
    if options.top_p < 1.0:
        mass = weights * each
        share = _first(mass, options.top_p * float(mass.sum()) * (1.0 - ROUNDING))
        # A token is in or out: the one in which the share ends is in.
        tokens = np.ceil(np.divide(share, each, out=np.zeros_like(each), where=each > 0) * (1.0 - ROUNDING))
        weights = np.minimum(weights, tokens)
    if options.min_p > 0.0:
        weights = np.where(each >= options.min_p, weights, 0.0)
    return logits, weights


def _first(amounts: Floats, limit: float) -> Floats:
    """The amounts until they reach the limit together, the last one in part."""
    before = np.cumsum(amounts) - amounts
    return np.clip(limit - before, 0.0, amounts)
