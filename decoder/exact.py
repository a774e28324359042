"""The oracle: logits, top-K and log-probabilities from all rows of the output layer, float32 sums, blocked.

exact_logits      the whole table, or chosen tokens' column of it
exact_topk        the k best tokens of each state and log Z, without the table
exact_logprobs    log-probability and rank of one given token for each state, without the table

Each logit has the bits that a walk or a screen gives the same token. Ties stand by ascending id; padding rows never answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decoder.errors import BadHiddenError, DecoderOptionsError, named
from decoder.hidden import States, as_states, require_finite
from decoder.kernels import exact as kernel
from decoder.kernels.score import score_rows
from decoder.option_checks import whole
from decoder.output_layer import OutputLayer
from index.errors import BuildCancelledError

STATES_AT_ONCE = 64


class Cancel(Protocol):
    """Asked between blocks; threading.Event is one."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


@dataclass(frozen=True, slots=True)
class ExactAnswer:
    """token_ids int32 (n, k), logits float32 (n, k), best first; log_partition float64 (n,): log Z over all real tokens."""

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    log_partition: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.log_partition)

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Log-probabilities of the tokens, float32 (n, k)."""
        return (self.logits - self.log_partition[:, None]).astype(np.float32)


def exact_logits(layer: OutputLayer, hidden: Any, *, ids: Any = None) -> NDArray[np.float32]:
    """Logits float32 (n, V) of states (n, d), or (n, m) of the m token ids asked for."""
    states = as_states(hidden, layer.dim)
    require_finite(states)
    chosen = np.arange(layer.vocab_size, dtype=np.int32) if ids is None else token_ids_of(ids, layer.vocab_size)
    raw = np.empty((len(states), len(chosen)), np.float32)
    for state, line in zip(states, raw):
        score_rows(layer.bits, layer.kind, layer.bias, state, chosen, 0, len(chosen), line)
    return layer.finish(raw)


def exact_topk(
    layer: OutputLayer, hidden: Any, k: int, *, threads: int = 1, cancel: Cancel | None = None
) -> ExactAnswer:
    """The min(k, vocab_size) best tokens of each state (n, d), and log Z.

    threads: into how many parts the rows are divided; answers do not depend on it. cancel: BuildCancelledError once set.
    """
    wanted = min(whole("k", k, low=1), layer.vocab_size)
    states = as_states(hidden, layer.dim)
    require_finite(states)
    scans = [_scan(layer, some, wanted, threads) for some in _blocks(states, cancel)]
    if not scans:
        return ExactAnswer(np.empty((0, wanted), np.int32), np.empty((0, wanted), np.float32), np.empty(0))
    log_partition = np.concatenate([scan.log_partition for scan in scans])
    _require_sums(log_partition)
    return ExactAnswer(
        np.concatenate([scan.token_ids for scan in scans]),
        np.concatenate([scan.logits for scan in scans]),
        log_partition,
    )


def exact_logprobs(
    layer: OutputLayer, hidden: Any, token_ids: Any, *, threads: int = 1, cancel: Cancel | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Log-probability float32 (n,) and rank int32 (n,) of token_ids[i] under state i. Rank 1 is the most probable token."""
    states = as_states(hidden, layer.dim)
    require_finite(states)
    targets = token_ids_of(token_ids, layer.vocab_size)
    if len(targets) != len(states):
        raise DecoderOptionsError(
            f"token_ids has {len(targets)} entries, needed one for each of the {len(states)} states"
        )
    logits = np.empty(len(states), np.float32)
    for i, state in enumerate(states):
        score_rows(layer.bits, layer.kind, layer.bias, state, targets[i : i + 1], 0, 1, logits[i : i + 1])
    logits = layer.finish(logits)
    log_partition, ranks = np.empty(len(states)), np.empty(len(states), np.int64)
    at = 0
    for some in _blocks(states, cancel):
        part = slice(at, at + len(some))
        scan = _scan(layer, some, 0, threads, targets[part], logits[part])
        log_partition[part], ranks[part] = scan.log_partition, scan.before + 1
        at += len(some)
    _require_sums(log_partition)
    return (logits - log_partition).astype(np.float32), ranks.astype(np.int32)


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
    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    log_partition: NDArray[np.float64]
    before: NDArray[np.int64]


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
    targets: NDArray[np.int32] | None = None,
    target_logits: NDArray[np.float32] | None = None,
) -> _Scan:
    """One pass over the rows, divided among threads at the borders of pieces."""
    n, V = len(states), layer.vocab_size
    pieces = -(-V // kernel.PIECE)
    tops, sums = np.empty((n, pieces), np.float32), np.empty((n, pieces))
    targets = np.empty(0, np.int32) if targets is None else targets
    target_logits = np.empty(0, np.float32) if target_logits is None else target_logits
    parts = max(1, min(threads, pieces))
    borders = [min(V, pieces * part // parts * kernel.PIECE) for part in range(parts)] + [V]

    def scan(part: int) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
        first, last = borders[part], borders[part + 1]
        who, far = np.empty((n, min(k, last - first)), np.int32), np.empty((n, min(k, last - first)), np.float32)
        before = np.zeros(len(targets), np.int64)
        scale, softcap = np.float32(layer.scale), np.float32(layer.softcap or 0.0)
        kept = kernel.scan(
            layer.bits,
            layer.kind,
            layer.bias,
            scale,
            softcap,
            states,
            first,
            last,
            who,
            far,
            tops,
            sums,
            targets,
            target_logits,
            before,
        )
        kernel.sort_best(who, far, kept)
        return who, far, before

    if parts == 1:
        found = [scan(0)]
    else:
        with ThreadPoolExecutor(parts) as pool:
            found = list(pool.map(scan, range(parts)))
    who, far = _merged([(ids, far) for ids, far, _ in found], k)
    return _Scan(who, -far, _log_partition(tops, sums), np.sum([before for _, _, before in found], axis=0))


def _merged(
    found: list[tuple[NDArray[np.int32], NDArray[np.float32]]], k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k best of several sorted lists; of equals the lower ids, which the earlier lists hold."""
    if len(found) == 1:
        return found[0]
    who, far = (np.concatenate(arrays, axis=1) for arrays in zip(*found))
    order = np.argsort(far, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(who, order, axis=1), np.take_along_axis(far, order, axis=1)


def _log_partition(tops: NDArray[np.float32], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """log of the sum over pieces of exp(top) * sum."""
    top = tops.max(axis=1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        total: NDArray[np.float64] = top + np.log((np.exp(tops - top[:, None]) * sums).sum(axis=1))
    return total


def _require_sums(log_partition: NDArray[np.float64]) -> None:
    """Logits past float32 make a state unanswerable though its components are finite."""
    rows = np.flatnonzero(~np.isfinite(log_partition)).tolist()
    if rows:
        raise BadHiddenError(
            f"hidden row{'s' if len(rows) > 1 else ''} {named(rows)} of {len(log_partition)}: the logits overflow float32, "
            "needed finite ones. The states are too large for these weights.",
            rows=rows,
        )
