"""Answers under constraints: a boosted token outside the candidates is found, a ban never empties an answer.

plans_of             constraints as given -> one checked plan for each good state, or None where nothing is asked
answer_constrained   states and plans -> an Answer
scored_under         candidates of one state that may answer, biased; complete enough for k of them

Three ways, by what is asked of a state: few tokens allowed - score exactly those; few banned or biased - more candidates,
and the boosted tokens scored besides; else every token, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder.constraints import Constraints, Plan, plan
from decoder.errors import BadHiddenError, ConstraintError
from decoder.exact import exact_topk
from decoder.finder import Finder
from decoder.planner import Choice
from decoder.results import Answer, log_sum

FEW_ALLOWED = 4096
"""Allowed tokens that are scored one by one; more are found like any others."""
FEW_BANNED = 128
"""Tokens that may be banned or held down before more candidates cost more than all rows would."""
FEW_BOOSTED = 1024

LEAST_LEFT = 0.02
"""Where bans leave less than this share of the probability, what is left is no more than the error of what was taken off."""

Floats = NDArray[np.float32]
Given = Constraints | Sequence[Constraints | None] | None


def plans_of(given: Given, n: int, vocab_size: int, good: NDArray[np.intp]) -> list[Plan] | None:
    """Checked plans of the good rows of n states; None where no row asks anything. ConstraintError names the row."""
    if given is None:
        return None
    each = [given] * n if isinstance(given, Constraints) else list(given)
    if len(each) != n:
        raise ConstraintError(
            f"constraints has {len(each)} entries, needed one for each of the {n} states, or one Constraints for all",
            row=min(len(each), n),
        )
    plans = [plan(one, vocab_size, row) for row, one in enumerate(each)]
    if all(one.empty for one in plans):
        return None
    return [plans[row] for row in good]


@dataclass(frozen=True, slots=True)
class Scored:
    """Of one state: tokens that may answer, best first, with biased logits; log Z raw and processed and their errors.

    ids int32, logits float32 (m,).
    """

    ids: NDArray[np.int32]
    logits: Floats
    log_z: float
    processed_log_z: float
    error: float
    processed_error: float
    scored: int
    exact: bool


def answer_constrained(
    finder: Finder,
    states: Floats,
    plans: Sequence[Plan],
    choice: Choice,
    *,
    k: int,
    normalize: str,
    processed: bool,
    interval: float,
) -> Answer:
    """The k best tokens that may answer, for each state."""
    n = len(states)
    ids, logits = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
    logprobs, counts = np.full((n, k), -np.inf, np.float32), np.zeros(n, np.int32)
    scored, log_z, error = np.zeros(n, np.int64), np.full(n, np.nan), np.zeros(n)
    exact = True
    for row in range(n):
        try:
            one = scored_under(finder, states[row : row + 1], plans[row], choice, k=k, normalize=normalize)
        except BadHiddenError:  # which knows of one state only
            raise BadHiddenError(
                f"hidden row {row} of {n}: it or its logits overflow float32, needed finite ones. "
                "The state is too large for these weights.",
                rows=[row],
            ) from None
        m = min(k, len(one.ids))
        ids[row, :m], logits[row, :m], counts[row], scored[row] = one.ids[:m], one.logits[:m], m, one.scored
        raw = one.logits[:m] if processed else finder.exact_rows(states[row], ids[row, :m])
        if normalize == "topk":
            log_z[row] = log_sum(raw[None, :])[0]
        elif normalize != "none":
            log_z[row] = one.processed_log_z if processed else one.log_z
            error[row] = (one.processed_error if processed else one.error) * interval
        logprobs[row, :m] = raw - log_z[row]
        exact &= one.exact
    return Answer(ids, logits, logprobs, counts, scored, log_z, error, exact=exact and normalize != "topk")


def scored_under(finder: Finder, state: Floats, asked: Plan, choice: Choice, *, k: int, normalize: str) -> Scored:
    """Tokens that may answer the state float32 (1, d), at least the k best of them. normalize: whether log Z is wanted."""
    held_down = len(asked.banned) + int((asked.bias_values < 0).sum())
    boosted = asked.to_score
    listed = asked.allowed is not None
    few = len(asked.allowed) <= FEW_ALLOWED if asked.allowed is not None else held_down <= FEW_BANNED
    if choice.point is None or not few or len(boosted) > FEW_BOOSTED:
        return _all_tokens(finder, state, asked, k)
    wanted = min(k if listed else k + held_down, finder.layer.vocab_size)
    found = finder.find(state, choice, k=wanted, log_z=normalize == "estimate")
    candidates = found.token_ids[0, : found.exact[0]]
    touched = np.union1d(asked.bias_ids, asked.banned).astype(np.int32)
    if asked.allowed is not None:
        ids = asked.allowed
    else:
        ids = np.union1d(candidates, boosted).astype(np.int32)
    kept, biased = asked.apply(ids, finder.exact_rows(state[0], ids))
    if not listed and len(kept) < min(k, asked.free):
        return _all_tokens(finder, state, asked, k)
    scored = int(found.scored[0]) + len(ids)
    if normalize in ("none", "topk"):
        return Scored(kept, biased, np.nan, np.nan, 0.0, 0.0, scored, exact=False)
    if normalize == "exact":
        raw = exact_topk(finder.layer, state, 1, plan=asked)
        z, own = float(raw.log_partition[0]), float(raw.log_partition_processed[0])
        return Scored(kept, biased, z, own, 0.0, 0.0, scored, exact=listed)
    z, error = float(found.log_z[0]), float(found.error[0])
    if listed:
        return Scored(kept, biased, z, float(log_sum(biased[None, :])[0]), error, 0.0, scored, exact=False)
    own = _moved(finder, state[0], asked, touched, z)
    if own < z + np.log(LEAST_LEFT):
        return _all_tokens(finder, state, asked, k)
    # The same error of Z is a larger share of what is left after bans.
    return Scored(kept, biased, z, own, error, error * float(np.exp(min(z - own, 80.0))), scored, exact=False)


def _moved(finder: Finder, state: Floats, asked: Plan, touched: NDArray[np.int32], log_z: float) -> float:
    """log Z after bans and biases: what the touched tokens weighed is taken off, what they weigh now is added."""
    if not len(touched):
        return log_z
    logits = finder.exact_rows(state, touched).astype(np.float64)
    after = np.where(asked.may_answer(touched), logits + asked.bias_of(touched), -np.inf)
    top = max(log_z, float(after.max()))
    mass = np.exp(log_z - top) - np.exp(logits - top).sum() + np.exp(after - top).sum()
    return float(top + np.log(max(mass, np.exp(float(after.max()) - top), 1e-300)))


def _all_tokens(finder: Finder, state: Floats, asked: Plan, k: int) -> Scored:
    answer = exact_topk(finder.layer, state, k, plan=asked)
    m = int(answer.counts[0])
    return Scored(
        answer.token_ids[0, :m],
        answer.logits[0, :m],
        float(answer.log_partition[0]),
        float(answer.log_partition_processed[0]),
        0.0,
        0.0,
        finder.layer.vocab_size,
        exact=True,
    )
