"""From candidates to what a caller sees: the k best, log-probabilities by what they are relative to, rows back in place.

Answer        the k best of the good states, before failed rows are put back
normalised    log-probabilities of an answer
requested     logits and log-probabilities of tokens asked for besides
spread_rows   an Answer -> TopK
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decoder.answers import TopK
from decoder.candidates import Candidates
from decoder.constraints import Plan
from decoder.exact import exact_topk
from decoder.finder import Finder

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Answer:
    """Of n good states: token_ids int32, logits, logprobs float32 (n, k); counts int32, scored int64 (n,).

    log_z, error float64 (n,): what log-probabilities are relative to, and its standard error; shift float64 (n,): what has to
    be added to log_z for processed ones. exact: whether everything is.
    """

    token_ids: NDArray[np.int32]
    logits: Floats
    logprobs: Floats
    counts: NDArray[np.int32]
    scored: NDArray[np.int64]
    log_z: NDArray[np.float64]
    error: NDArray[np.float64]
    exact: bool

    @staticmethod
    def of(found: Candidates, k: int) -> Answer:
        """The k best candidates; log-probabilities still missing."""
        width = min(k, found.token_ids.shape[1])
        counts = np.minimum(found.exact, width).astype(np.int32)
        ids, logits = found.token_ids[:, :width].copy(), found.logits[:, :width].copy()
        if counts.min(initial=width) < width:
            past = np.arange(width) >= counts[:, None]
            ids[past], logits[past] = -1, -np.inf
        n = len(counts)
        nothing = np.full((n, width), np.nan, np.float32)
        return Answer(ids, logits, nothing, counts, found.scored, np.full(n, np.nan), np.zeros(n), exact=False)

    def with_log_z(self, log_z: NDArray[np.float64], error: NDArray[np.float64], *, exact: bool) -> Answer:
        """The same with log-probabilities relative to log Z."""
        logprobs = (self.logits - log_z[:, None]).astype(np.float32)
        return replace(self, logprobs=logprobs, log_z=log_z, error=error, exact=exact)


def normalised(
    finder: Finder,
    states: Floats,
    answer: Answer,
    normalize: str,
    found: Candidates,
    *,
    exact_mode: bool,
    interval: float,
) -> Answer:
    """The answer with log-probabilities. interval: what standard errors are multiplied by to be honest."""
    if normalize == "none":
        return replace(answer, exact=exact_mode)
    if normalize == "topk":
        log_z = log_sum(answer.logits)
        return answer.with_log_z(log_z, np.zeros(len(log_z)), exact=False)
    if exact_mode:
        return answer.with_log_z(found.log_z, np.zeros(len(found)), exact=True)
    if normalize == "exact":
        log_z = exact_topk(finder.layer, states, 1).log_partition
        return answer.with_log_z(log_z, np.zeros(len(log_z)), exact=False)
    return answer.with_log_z(found.log_z, found.error * interval, exact=False)


def log_sum(logits: Floats) -> NDArray[np.float64]:
    """log of the sum of exp over each row's entries, float64 (n,)."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, initial=-np.inf)
    total: NDArray[np.float64] = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    return total


def requested(
    finder: Finder,
    states: Floats,
    ids: NDArray[np.int32],
    answer: Answer,
    plans: Sequence[Plan] | None,
    *,
    processed: bool,
) -> tuple[Floats, Floats]:
    """Logits and log-probabilities float32 (n, m) of the same tokens of each state, raw or as the answer's are."""
    logits = np.empty((len(states), len(ids)), np.float32)
    for row, state in enumerate(states):
        logits[row] = finder.exact_rows(state, ids)
        if plans is not None and processed:
            may = plans[row].may_answer(ids)
            logits[row] = np.where(may, logits[row] + plans[row].bias_of(ids), -np.inf)
    return logits, (logits - answer.log_z[:, None]).astype(np.float32)


def spread_rows(
    answer: Answer, mode: str, failed: NDArray[np.bool_], good: NDArray[np.intp], extra: tuple[Floats, Floats] | None
) -> TopK:
    """Rows of failed states put back, as rows without entries."""
    if not failed.any():
        return TopK(
            token_ids=answer.token_ids,
            logits=answer.logits,
            logprobs=answer.logprobs,
            logprob_stderr=answer.error.astype(np.float32),
            counts=answer.counts,
            rows_scored=answer.scored,
            mode=mode,
            exact=answer.exact,
            failed=failed,
            requested_logits=None if extra is None else extra[0],
            requested_logprobs=None if extra is None else extra[1],
        )
    n = len(failed)

    def whole(values: NDArray[np.generic], nothing: float) -> NDArray[np.generic]:
        out = np.full((n, *values.shape[1:]), nothing, values.dtype)
        out[good] = values
        return out

    return TopK(
        token_ids=whole(answer.token_ids, -1).view(np.int32),
        logits=whole(answer.logits, -np.inf).view(np.float32),
        logprobs=whole(answer.logprobs, -np.inf).view(np.float32),
        logprob_stderr=whole(answer.error.astype(np.float32), 0.0).view(np.float32),
        counts=whole(answer.counts, 0).view(np.int32),
        rows_scored=whole(answer.scored, 0).view(np.int64),
        mode=mode,
        exact=answer.exact,
        failed=failed,
        requested_logits=None if extra is None else whole(extra[0], np.nan).view(np.float32),
        requested_logprobs=None if extra is None else whole(extra[1], np.nan).view(np.float32),
    )
