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
    "screen": (128, 200, 300, 450, 700, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 12_000, 20_000),
}
ENOUGH = 0.9995
"""Lower bounds do not get better than the number of states allows: a curve ends where every recall is above this."""
PIECE = 64


@dataclass(frozen=True, slots=True)
class Truth:
    """states float32 (n, d); token_ids int32 (n, k), best first; best float32 (n,): the best logit; log_z float64 (n,)."""

    states: NDArray[np.float32]
    token_ids: NDArray[np.int32]
    best: NDArray[np.float32]
    log_z: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.states)

    def part(self, rows: slice) -> Truth:
        """Some of the states."""
        return Truth(self.states[rows], self.token_ids[rows], self.best[rows], self.log_z[rows])


def measure_curve(
    answer: Answer,
    mode: str,
    truth: Truth,
    *,
    vocab_size: int,
    whole_codes: bool,
    threads: int,
    check: Callable[[], None],
) -> Iterator[DecoderPoint]:
    """Points of a mode, from narrow to wide."""
    for width in WIDTHS[mode]:
        if width > vocab_size:
            return
        point = measure_point(
            answer, mode, width, truth, vocab_size=vocab_size, whole_codes=whole_codes, threads=threads, check=check
        )
        yield point
        if min(point.recall.values()) >= ENOUGH and point.logprob_error < 1e-3:
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
    """One mode at one width."""
    bare = DecoderPoint(
        mode=mode, width=width, recall={}, low={}, rows_scored=0.0, logprob_error=0.0, interval=1.0, half_width=0.0
    )
    recall, low = {}, {}
    found = None
    for k in MEASURED_AT:
        wanted = min(k, vocab_size, truth.token_ids.shape[1])
        effort = effort_of(bare, wanted, vocab_size=vocab_size, whole_codes=whole_codes, log_z=k == 10)
        answers = _answers(answer, truth.states, effort, threads, check)
        shares = _shares(answers.token_ids[:, :wanted], truth.token_ids[:, :wanted])
        recall[str(k)], low[str(k)] = float(shares.mean()), lower_bound(shares)
        if k == 10:
            found = answers
    assert found is not None
    # The error of a log-probability is that of log Z, as logits are exact; and the best token may be another one.
    errors = np.abs(found.log_z - truth.log_z)
    missed = np.abs((found.logits[:, 0] - found.log_z) - (truth.best - truth.log_z))
    ratios = np.sort(errors / (1.96 * found.error))
    interval = max(1.0, float(ratios[min(len(ratios) - 1, int(np.ceil(0.95 * (len(ratios) + 1))) - 1)]))
    return DecoderPoint(
        mode=mode,
        width=width,
        recall=recall,
        low=low,
        rows_scored=float(found.scored.mean()),
        logprob_error=float(np.maximum(errors, missed).mean()),
        interval=interval,
        half_width=float(1.96 * interval * found.error.mean()),
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
