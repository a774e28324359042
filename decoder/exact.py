"""The oracle: logits, top-K and log-probabilities from all rows of the output layer, float32 sums, blocked.

exact_logits      the whole table, or chosen tokens' column of it
exact_topk        the k best tokens of each state and log Z, without the table
exact_logprobs    log-probability and rank of one given token for each state, without the table

Each logit has the bits that a walk or a screen gives the same token. Ties stand by ascending id; padding rows never answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decoder.constraints import Plan
from decoder.errors import BadHiddenError, DecoderOptionsError, named
from decoder.hidden import States, as_states, require_finite
from decoder.kernels import exact as kernel
from decoder.kernels.score import score_rows
from decoder.option_checks import whole
from decoder.output_layer import OutputLayer
from decoder.threads import each_part
from index.errors import BuildCancelledError

STATES_AT_ONCE = 64


class Cancel(Protocol):
    """Asked between blocks; threading.Event is one."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


@dataclass(frozen=True, slots=True)
class ExactAnswer:
    """The best tokens of n states, best first, filled to counts int32 (n,): past it ids are -1 and logits minus infinity.

    token_ids int32 (n, k); logits float32 (n, k), a constraint's bias added; raw_logits float32 (n, k), without;
    log_partition float64 (n,): log Z over all real tokens, constraints left out; log_partition_processed float64 (n,): over
    those that may answer, with their biases.
    """

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    raw_logits: NDArray[np.float32]
    counts: NDArray[np.int32]
    log_partition: NDArray[np.float64]
    log_partition_processed: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.counts)


def exact_logits(layer: OutputLayer, hidden: Any, *, ids: Any = None) -> NDArray[np.float32]:
    """Logits float32 (n, V) of states (n, d), or (n, m) of the m token ids asked for."""
    states = as_states(hidden, layer.dim)
    require_finite(states)
    if ids is None:
        logits = np.empty((len(states), layer.vocab_size), np.float32)
        scale, softcap = np.float32(layer.scale), np.float32(layer.softcap or 0.0)
        for at in range(0, len(states), STATES_AT_ONCE):
            part = slice(at, at + STATES_AT_ONCE)
            kernel.all_logits(layer.bits, layer.kind, layer.bias, scale, softcap, states[part], logits[part])
    else:
        chosen = token_ids_of(ids, layer.vocab_size)
        logits = _logits_of(layer, states, np.broadcast_to(chosen, (len(states), len(chosen))))
    _require_finite_logits(np.asarray(np.isfinite(logits).all(axis=1)))
    return logits


def exact_topk(
    layer: OutputLayer,
    hidden: Any,
    k: int,
    *,
    plan: Plan | None = None,
    threads: int = 1,
    cancel: Cancel | None = None,
) -> ExactAnswer:
    """The min(k, vocab_size) best tokens of each state (n, d), and log Z.

    plan: constraints that hold for all these states. threads: into how many parts the rows are divided; answers do not
    depend on it. cancel: BuildCancelledError once set.
    """
    wanted = min(whole("k", k, low=1), layer.vocab_size)
    states = as_states(hidden, layer.dim)
    require_finite(states)
    extra = _NO_EXTRA if plan is None or plan.empty else plan.extra(layer.vocab_size)
    scans = [_scan(layer, some, wanted, threads, extra=extra) for some in _blocks(states, cancel)]
    # The empty ones first: there may be no states at all.
    ids = np.concatenate([np.empty((0, wanted), np.int32), *(scan.token_ids for scan in scans)])
    logits = np.concatenate([np.empty((0, wanted), np.float32), *(scan.logits for scan in scans)])
    answer = ExactAnswer(
        token_ids=ids,
        logits=logits,
        # Summed anew, since taking the bias off again would round.
        raw_logits=_logits_of(layer, states, ids) if len(extra) else logits,
        counts=np.concatenate([np.empty(0, np.int32), *(scan.counts for scan in scans)]),
        log_partition=np.concatenate([np.empty(0), *(scan.log_partition for scan in scans)]),
        log_partition_processed=np.concatenate([np.empty(0), *(scan.log_partition_processed for scan in scans)]),
    )
    # A logit that overflowed downwards is missing among the best of all tokens, where nothing was banned.
    missing = answer.counts < (0 if len(extra) else wanted)
    _require_finite_logits(np.isfinite(answer.log_partition) & ~missing)
    return answer


def _logits_of(layer: OutputLayer, states: States, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits of the tokens ids[i] under state i, both (n, m); minus infinity where an id is -1."""
    raw = np.empty(ids.shape, np.float32)
    for state, line, out in zip(states, np.maximum(ids, 0), raw):
        score_rows(layer.bits, layer.kind, layer.bias, state, line, 0, len(line), out)
    return np.where(ids >= 0, layer.finish(raw), np.float32(-np.inf))


def exact_logprobs(
    layer: OutputLayer, hidden: Any, token_ids: Any, *, threads: int = 1, cancel: Cancel | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Log-probability float32 (n,) and rank int32 (n,) of token_ids[i] under state i. Rank 1 is the most probable token."""
    states = as_states(hidden, layer.dim)
    require_finite(states)
    ids = token_ids_of(token_ids, layer.vocab_size)
    if len(ids) != len(states):
        raise DecoderOptionsError(f"token_ids has {len(ids)} entries, needed one for each of the {len(states)} states")
    targets = _Targets(ids, _logits_of(layer, states, ids[:, None])[:, 0])
    log_partition, ranks = np.empty(len(states)), np.empty(len(states), np.int64)
    for block, some in enumerate(_blocks(states, cancel)):
        part = slice(block * STATES_AT_ONCE, block * STATES_AT_ONCE + len(some))
        scan = _scan(layer, some, 0, threads, targets=targets.of(part))
        log_partition[part], ranks[part] = scan.log_partition, scan.before + 1
    _require_finite_logits(np.isfinite(log_partition) & np.isfinite(targets.logits))
    return (targets.logits - log_partition).astype(np.float32), ranks.astype(np.int32)


def token_ids_of(ids: Any, vocab_size: int) -> NDArray[np.int32]:
    """Token ids as int32 (m,); DecoderOptionsError names one that is no token."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DecoderOptionsError(
            f"token ids have shape {array.shape} and dtype {array.dtype}, needed a list of whole numbers"
        )
    wrong = array[(array < 0) | (array >= vocab_size)]
    if len(wrong):
        raise DecoderOptionsError(
            f"token id {wrong[0]} is not in the vocabulary of {vocab_size} tokens, needed 0 to {vocab_size - 1}"
        )
    return array.astype(np.int32)


@dataclass(frozen=True, slots=True)
class _Scan:
    """What one pass over the rows found. before: how many tokens come before each target."""

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    counts: NDArray[np.int32]
    log_partition: NDArray[np.float64]
    log_partition_processed: NDArray[np.float64]
    before: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Targets:
    """Tokens whose ranks are wanted, one a state, or none at all."""

    ids: NDArray[np.int32]
    logits: NDArray[np.float32]

    def of(self, part: slice) -> _Targets:
        return _Targets(self.ids[part], self.logits[part])


_NO_TARGETS = _Targets(np.empty(0, np.int32), np.empty(0, np.float32))
_NO_EXTRA = np.empty(0, np.float32)


def _blocks(states: States, cancel: Cancel | None) -> Iterator[States]:
    for at in range(0, len(states), STATES_AT_ONCE):
        if cancel is not None and cancel.is_set():
            raise BuildCancelledError(f"exact search was cancelled after {at:,} of {len(states):,} states")
        yield states[at : at + STATES_AT_ONCE]


def _scan(
    layer: OutputLayer,
    states: States,
    k: int,
    threads: int,
    *,
    extra: NDArray[np.float32] = _NO_EXTRA,
    targets: _Targets = _NO_TARGETS,
) -> _Scan:
    """One pass over the rows, divided among threads at the borders of pieces."""
    n, V = len(states), layer.vocab_size
    pieces = -(-V // kernel.PIECE)
    tops, sums = np.empty((n, pieces), np.float32), np.empty((n, pieces))
    moved = (np.empty((n, pieces), np.float32), np.empty((n, pieces))) if len(extra) else (tops, sums)
    parts = max(1, min(threads, pieces))
    borders = [min(V, pieces * part // parts * kernel.PIECE) for part in range(parts)] + [V]
    scale, softcap = np.float32(layer.scale), np.float32(layer.softcap or 0.0)

    def scan(part: int) -> _Part:
        first, last = borders[part], borders[part + 1]
        found = _Part.empty(n, min(k, last - first), len(targets.ids))
        kernel.scan(
            *(layer.bits, layer.kind, layer.bias, scale, softcap, states, first, last),
            *(found.ids, found.far, found.kept, tops, sums, extra, *moved, targets.ids, targets.logits, found.before),
        )
        kernel.sort_best(found.ids, found.far, found.kept)
        return found

    best = _merged(each_part(scan, parts), k)
    return _Scan(
        *(best.ids, -best.far, best.kept.astype(np.int32)),
        *(_log_partition(tops, sums), _log_partition(*moved), best.before),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What one thread found: ids and minus logits (n, k), best first, filled to kept (n,); before (n,) or (0,)."""

    ids: NDArray[np.int32]
    far: NDArray[np.float32]
    kept: NDArray[np.int64]
    before: NDArray[np.int64]

    @classmethod
    def empty(cls, n: int, k: int, targets: int) -> _Part:
        return cls(
            np.empty((n, k), np.int32), np.empty((n, k), np.float32), np.zeros(n, np.int64), np.zeros(targets, np.int64)
        )


def _merged(found: list[_Part], k: int) -> _Part:
    """The k best of several sorted lists; of equals the lower ids, which the earlier lists hold."""
    if len(found) == 1:
        return found[0]
    ids = np.concatenate([part.ids for part in found], axis=1)
    far = np.concatenate([part.far for part in found], axis=1)
    kept, before = sum(part.kept for part in found), sum(part.before for part in found)
    order = np.argsort(far, axis=1, kind="stable")[:, :k]
    return _Part(
        np.take_along_axis(ids, order, axis=1),
        np.take_along_axis(far, order, axis=1),
        np.minimum(kept, k),
        np.asarray(before),
    )


def _log_partition(tops: NDArray[np.float32], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """log of the sum over pieces of exp(top) * sum."""
    top = tops.max(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        total: NDArray[np.float64] = top + np.log((np.exp(tops - top[:, None]) * sums).sum(axis=1))
    return total


def _require_finite_logits(ok: NDArray[np.bool_]) -> None:
    """Logits past float32 make a state unanswerable though its components are finite. ok: which states are fine, (n,)."""
    rows = np.flatnonzero(~ok).tolist()
    if rows:
        raise BadHiddenError(
            f"hidden row{'s' if len(rows) > 1 else ''} {named(rows)} of {len(ok)}: the logits overflow float32, "
            "needed finite ones. The states are too large for these weights.",
            rows=rows,
        )
