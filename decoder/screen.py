"""The screen: every row by its leading coordinates, the best by all of them, the best of those exactly.

Screener.answer    states and effort -> candidates

It reads all leading codes, in order: the floor is memory bandwidth. Slower than a walk over many rows, it misses less and
knows something of every token, so its log Z is the more exact. Threads: any number, each with a Scratch of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder.candidates import Candidates, Effort
from decoder.kernels.screen import screen_states
from decoder.output_layer import OutputLayer
from decoder.preview import Preview
from decoder.scratch import Scratch
from decoder.transform import Frame, Projection


@dataclass(frozen=True, slots=True)
class Screener:
    """Everything a screen reads. Immutable."""

    layer: OutputLayer
    frame: Frame
    projection: Projection
    preview: Preview
    seed: int

    def answer(
        self, states: NDArray[np.float32], effort: Effort, scratch: Scratch, *, whole: bool = False
    ) -> Candidates:
        """Candidates of states float32 (n, d), C-contiguous. whole: sampled rows stand for all tokens but the exact ones."""
        layer, preview = self.layer, self.preview
        found = Candidates.empty(len(states), effort)
        scratch.for_screen(len(preview.codes))
        screen_states(
            layer.bits.view(np.uint8),
            layer.kind,
            layer.bias,
            np.float32(layer.scale),
            np.float32(layer.softcap or 0.0),
            self.frame.mean,
            self.projection.rows,
            self.projection.kind,
            preview.codes,
            preview.scalars,
            preview.lead_codes,
            preview.lead_scalars,
            states,
            effort.width,
            effort.rerank,
            effort.middle,
            whole,
            np.uint64(self.seed),
            scratch.values,
            scratch.rows,
            scratch.distances,
            scratch.masses,
            found.token_ids,
            found.logits,
            found.weights,
            found.exact,
            found.counts,
            found.log_z,
            found.error,
            found.scored,
        )
        return found
