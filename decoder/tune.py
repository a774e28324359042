"""Operating points measured on states that shaped nothing.

Truth           exact answers of these states
measure_point   one mode at one width -> its recall, its log Z and how honest its error bars are
measure_curve   widths from narrow to wide, until nothing is gained
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder.candidates import Candidates, Effort
from decoder.operating_points import MEASURED_AT, DecoderPoint, effort_of, lower_bound
from decoder.scratch import Scratch

Answer = Callable[[NDArray[np.float32], Effort, Scratch], Candidates]

WIDTHS = {
    "walk": (24, 32, 48, 64, 96, 128, 160, 200, 256, 320, 400, 512, 640, 800, 1024, 1400, 2000),
    "screen": (32, 64, 96, 128, 160, 200, 250, 320, 400, 500, 640, 800, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 12_000,
               20_000),
}  # fmt: skip
FEW_STATES = 400
PIECE = 64


@dataclass(frozen=True, slots=True)
class Truth:
    """states float32 (n, d); token_ids int32 (n, k), best first; log_z float64 (n,)."""

    states: NDArray[np.float32]
    token_ids: NDArray[np.int32]
    log_z: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.states)

    def part(self, rows: slice) -> Truth:
        """Some of the states."""
        return Truth(self.states[rows], self.token_ids[rows], self.log_z[rows])


def measure_curve(
    answer: Answer,
    mode: str,
    truth: Truth,
    *,
    enough: Callable[[DecoderPoint], bool],
    vocab_size: int,
    whole_codes: bool,
    threads: int,
    check: Callable[[], None],
) -> Iterator[DecoderPoint]:
    """Points of a mode, from narrow to wide, up to the first that is enough, or as wide as the vocabulary; at least one."""
    for wanted in WIDTHS[mode]:
        width = min(wanted, vocab_size)
        point = measure_point(
            answer, mode, width, truth, vocab_size=vocab_size, whole_codes=whole_codes, threads=threads, check=check
        )
        yield point
        if enough(point) or width == vocab_size:
            return


def measure_point(
    answer: Answer,
    mode: str,
    width: int,
    truth: Truth,
    *,
    vocab_size: int,
    whole_codes: bool,
    threads: int,
    check: Callable[[], None],
) -> DecoderPoint:
    """One mode at one width. Recall at the largest k is measured on a few of the states: it varies least."""
    bare = DecoderPoint(
        mode=mode, width=width, recall={}, low={}, rows_scored=0.0, logprob_error=0.0, interval=1.0, half_width=0.0
    )

    def answers(k: int, states: NDArray[np.float32], *, log_z: bool) -> Candidates:
        effort = effort_of(bare, k, vocab_size=vocab_size, whole_codes=whole_codes, log_z=log_z)
        return _answers(answer, states, effort, threads, check)

    most = min(max(MEASURED_AT), vocab_size, truth.token_ids.shape[1])
    few = min(FEW_STATES, len(truth))
    middle = min(MEASURED_AT[1], most)
    usual, long = answers(middle, truth.states, log_z=True), answers(most, truth.states[:few], log_z=False)
    recall, low = {}, {}
    for k in MEASURED_AT:
        found = usual if k <= middle else long
        wanted = min(k, most)
        shares = _shares(found.token_ids[:, :wanted], truth.token_ids[: len(found), :wanted])
        recall[str(k)], low[str(k)] = float(shares.mean()), lower_bound(shares)
    errors = np.abs(usual.log_z - truth.log_z)  # that of every log-probability, as logits are exact
    ratios = np.sort(errors / (1.96 * usual.error))
    interval = max(1.0, float(ratios[min(len(ratios) - 1, int(np.ceil(0.95 * (len(ratios) + 1))) - 1)]))
    return DecoderPoint(
        mode=mode,
        width=width,
        recall=recall,
        low=low,
        rows_scored=float(usual.scored.mean()),
        logprob_error=float(errors.mean()),
        interval=interval,
        half_width=float(1.96 * interval * usual.error.mean()),
    )


def _answers(
    answer: Answer, states: NDArray[np.float32], effort: Effort, threads: int, check: Callable[[], None]
) -> Candidates:
    """Candidates of all states, in pieces shared by threads."""
    found = Candidates.empty(len(states), effort)
    starts = range(0, len(states), PIECE)

    def run(some: range) -> None:
        scratch = Scratch()
        for start in some:
            check()
            rows = slice(start, start + PIECE)
            found.put(rows, answer(np.ascontiguousarray(states[rows]), effort, scratch))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, [starts[t::threads] for t in range(threads)]))
    return found


def _shares(found: NDArray[np.int32], exact: NDArray[np.int32]) -> NDArray[np.float64]:
    """Of each row of `exact` int32 (n, k) the share that stands in the same row of `found`."""
    k = exact.shape[1]
    there = np.zeros(exact.shape, np.bool_)
    for j in range(found.shape[1]):
        there |= exact == found[:, j : j + 1]
    shares: NDArray[np.float64] = there.sum(axis=1) / k
    return shares
