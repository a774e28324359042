"""One drawn token of each state: exact candidates and a weighted sample of the tail become Entries, then sampling.draw().

draw_all     states, plans and options -> Drawings, the good rows only
Drawings     tokens, log-probabilities, and the candidates that were seen

A greedy draw takes the best candidate. Under constraints that only an exact answer serves, all tokens are entries.
Log-probabilities after temperature and cuts are those of all tokens too: no sample says how far off its own would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder.answers import Sampled
from decoder.candidates import Candidates
from decoder.constrained import FEW_ALLOWED, FEW_BANNED, FEW_BOOSTED
from decoder.constraints import Plan
from decoder.exact import exact_logits
from decoder.finder import Finder
from decoder.planner import Choice
from decoder.results import Answer, spread_rows
from decoder.sampling import Entries, SamplingOptions, draw, entries_of, generator_of, processed_logprobs

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Drawings:
    """token_ids int32, logprobs float32 (n,) of good states, and the candidates they were drawn from."""

    token_ids: NDArray[np.int32]
    logprobs: Floats
    candidates: Answer

    def spread(self, mode: str, failed: NDArray[np.bool_], good: NDArray[np.intp]) -> Sampled:
        """Rows of failed states put back."""
        candidates = spread_rows(self.candidates, mode, failed, good, None)
        ids, logprobs = np.full(len(failed), -1, np.int32), np.full(len(failed), -np.inf, np.float32)
        ids[good], logprobs[good] = self.token_ids, self.logprobs
        return Sampled(ids, logprobs, candidates.logprob_stderr, candidates)


def draw_all(
    finder: Finder,
    states: Floats,
    plans: Sequence[Plan] | None,
    choice: Choice,
    options: SamplingOptions,
    *,
    k: int,
    needed: int,
    rows: NDArray[np.intp],
    step: int,
    processed: bool,
    interval: float,
    threads: int,
) -> Drawings:
    """Draw for each state float32 (n, d). needed: exact candidates that cuts need; rows: the states' places in the batch."""
    held = 0 if plans is None else max((_held_down(plan) for plan in plans), default=0)
    wide = min(needed + min(held, FEW_BANNED), finder.layer.vocab_size)
    found = finder.find(states, choice, k=wide, log_z=True, entries=choice.point is not None, threads=threads)
    n = len(states)
    ids, logits = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
    logprobs, counts = np.full((n, k), -np.inf, np.float32), np.zeros(n, np.int32)
    tokens, drawn_logprobs = np.full(n, -1, np.int32), np.full(n, -np.inf, np.float32)
    log_z, error = found.log_z.copy(), found.error * interval
    exact = choice.point is None
    for row in range(n):
        plan = None if plans is None or plans[row].empty else plans[row]
        entries, whole = _entries(finder, states[row], found, row, plan, exact=exact)
        if whole and not exact:  # an exact answer has it already
            log_z[row], error[row] = _log_z_of_all(finder, states[row]), 0.0
        choice_of_row = draw(entries, options, generator_of(options.seed, step, int(rows[row])))
        tokens[row] = choice_of_row.token_id
        best = np.flatnonzero(entries.weights == 1.0)[:k]
        m = len(best)
        ids[row, :m], logits[row, :m], counts[row] = entries.ids[best], entries.logits[best], m
        if processed:
            every = entries if whole else _entries(finder, states[row], found, row, plan, exact=True)[0]
            after = _of_tokens(every, processed_logprobs(every, options), np.append(ids[row, :m], tokens[row]))
            # A cut may fall otherwise in a sample of the tail: what was drawn there has its chance among the entries.
            drawn_logprobs[row] = after[m] if after[m] > -np.inf else choice_of_row.logprob
            logprobs[row, :m], error[row] = after[:m], 0.0
            continue
        raw = finder.exact_rows(states[row], np.append(ids[row, :m], tokens[row]).astype(np.int32))
        logprobs[row, :m], drawn_logprobs[row] = raw[:m] - log_z[row], raw[m] - log_z[row]
    answer = Answer(ids, logits, logprobs, counts, found.scored, log_z, error, exact=exact)
    return Drawings(tokens, drawn_logprobs, answer)


def _of_tokens(entries: Entries, values: Floats, ids: NDArray[np.int32]) -> Floats:
    """The values (m,) of entries at these token ids, all of which are among them."""
    order = np.argsort(entries.ids)
    return values[order[np.searchsorted(entries.ids, ids, sorter=order)]]


def _held_down(plan: Plan) -> int:
    return len(plan.banned) + int((plan.bias_values < 0).sum())


def _entries(
    finder: Finder, state: Floats, found: Candidates, row: int, plan: Plan | None, *, exact: bool
) -> tuple[Entries, bool]:
    """What may be drawn of one state; and whether that is every token that may answer, scored exactly."""
    if plan is not None and plan.allowed is not None and len(plan.allowed) <= FEW_ALLOWED:
        ids = plan.allowed
        return entries_of(ids, finder.exact_rows(state, ids) + plan.bias_of(ids)), False
    hard = plan is not None and (
        plan.allowed is not None or _held_down(plan) > FEW_BANNED or len(plan.to_score) > FEW_BOOSTED
    )
    if exact or hard:
        ids = np.arange(finder.layer.vocab_size, dtype=np.int32)
        logits = exact_logits(finder.layer, state[None, :])[0]
        if plan is not None:
            stay = plan.may_answer(ids)
            ids, logits = ids[stay], logits[stay] + plan.bias_of(ids[stay])
        return entries_of(ids, logits), True
    count = int(found.counts[row])
    ids, first = np.unique(found.token_ids[row, :count], return_index=True)
    logits = found.logits[row, :count][first]
    weights = np.zeros(len(ids))
    np.add.at(weights, np.searchsorted(ids, found.token_ids[row, :count]), found.weights[row, :count])
    if plan is None:
        return entries_of(ids, logits, weights), False
    boosted = np.setdiff1d(plan.to_score, ids[weights == 1.0]).astype(np.int32)
    other = ~np.isin(ids, boosted) & plan.may_answer(ids)
    ids = np.concatenate([ids[other], boosted]).astype(np.int32)
    logits = np.concatenate([logits[other], finder.exact_rows(state, boosted)]) + plan.bias_of(ids)
    return entries_of(ids, logits, np.concatenate([weights[other], np.ones(len(boosted))])), False


def _log_z_of_all(finder: Finder, state: Floats) -> float:
    logits = exact_logits(finder.layer, state[None, :])[0].astype(np.float64)
    top = logits.max()
    return float(top + np.log(np.exp(logits - top).sum()))
