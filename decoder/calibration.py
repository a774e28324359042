"""Calibration states: read from a file or an array, answered exactly, divided into those that shape and those that measure.

read_states     what a caller gave -> float32 [n, d]
Calibration     the states with their exact answers; shaping, choosing and measuring parts

States that lie side by side come from one text, so the parts are whole stretches: the first four fifths shape, the rest
measures. Without calibration states the rows themselves are asked for, which says little about real states.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.errors import DecoderOptionsError
from decoder.exact import exact_topk
from decoder.hidden import as_states, require_finite
from decoder.output_layer import OutputLayer
from decoder.tune import Truth
from index.sources import open_source

ANSWERS = 100
"""Exact best tokens of each state: as many as recall is measured at."""
AT_ONCE = 256
MEASURED_MOST = 2500
CHOOSING = 0.2
LEAST = 200
"""Fewer calibration states than this say too little to be divided."""

Floats = NDArray[np.float32]


def read_states(given: Any, dim: int) -> Floats:
    """float32 (n, dim) from an array, a tensor, or the path of a file of vectors. BadHiddenError names rows with NaN."""
    if isinstance(given, str | os.PathLike):
        source = open_source(os.fspath(given))
        given = np.concatenate([np.asarray(block.vectors) for block in source.blocks()])
    states = as_states(given, dim)
    require_finite(states)
    return states


@dataclass(frozen=True, slots=True)
class Calibration:
    """states float32 (n, d), answers int32 (n, k), log_z float64 (n,); the first `shaping` of them shape the decoder."""

    states: Floats
    answers: NDArray[np.int32]
    log_z: NDArray[np.float64]
    shaping: int
    choosing: int
    real: bool
    """False for states made of rows."""

    @property
    def shapes(self) -> tuple[Floats, NDArray[np.int32]]:
        """States that shape, and their answers."""
        return self.states[: self.shaping], self.answers[: self.shaping]

    @property
    def chooses(self) -> Truth:
        """What variants are compared with."""
        return self._truth(slice(self.shaping, self.shaping + self.choosing))

    @property
    def measures(self) -> Truth:
        """What operating points are measured with: neither shaped nor chose anything, unless there are very few states."""
        return self._truth(slice(self.shaping + self.choosing, len(self.states)))

    def _truth(self, rows: slice) -> Truth:
        return Truth(self.states[rows], self.answers[rows], self.log_z[rows])


def calibrate(
    layer: OutputLayer,
    states: Floats | None,
    *,
    seed: int,
    threads: int,
    on_progress: Callable[[int, int], None],
) -> Calibration:
    """Exact answers of the states; of states made of rows where there are none."""
    real = states is not None
    if states is None:
        states = _states_of_rows(layer, seed)
    elif len(states) < LEAST:
        raise DecoderOptionsError(
            f"calibration has {len(states)} states, needed at least {LEAST}: a part of them measures what the decoder "
            "promises. Some thousands of real hidden states are best; leave calibration out where there are none."
        )
    answers, log_z = _answered(layer, states, threads, on_progress)
    held = len(states) if not real else max(LEAST // 2, min(MEASURED_MOST, len(states) // 5))
    shaping = len(states) - held if real else 0
    choosing = int(held * CHOOSING)
    return Calibration(states, answers, log_z, shaping, choosing, real)


def _answered(
    layer: OutputLayer, states: Floats, threads: int, on_progress: Callable[[int, int], None]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    k = min(ANSWERS, layer.vocab_size)
    answers, log_z = np.empty((len(states), k), np.int32), np.empty(len(states))
    for start in range(0, len(states), AT_ONCE):
        on_progress(start, len(states))
        rows = slice(start, start + AT_ONCE)
        found = exact_topk(layer, states[rows], k, threads=threads)
        answers[rows], log_z[rows] = found.token_ids, found.log_partition
    on_progress(len(states), len(states))
    return answers, log_z


def _states_of_rows(layer: OutputLayer, seed: int) -> Floats:
    """States that point at rows, with noise as large as themselves: all there is to measure with."""
    generator = np.random.default_rng([seed, 1])
    count = min(1000, max(LEAST, layer.vocab_size // 4))
    rows = layer.rows(generator.integers(0, layer.vocab_size, count))
    noise = generator.normal(size=rows.shape).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    noise *= lengths / np.maximum(np.linalg.norm(noise, axis=1, keepdims=True), 1e-20)
    spread = np.float32(np.sqrt(layer.dim)) / np.maximum(lengths, np.float32(1e-20))
    return np.ascontiguousarray((rows + noise) * spread, np.float32)
