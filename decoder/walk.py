"""The walk: a graph over the compressed rows, from where a state's cluster usually wins to its best tokens.

Walker.answer    states and effort -> candidates

One call is one compiled loop over its states (kernels/walk.py); each state is answered by itself, so its answer does not
depend on the batch. Threads: any number, each with a Scratch of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder.candidates import Candidates, Effort
from decoder.entries import Entries
from decoder.kernels.walk import walk_states
from decoder.output_layer import OutputLayer
from decoder.preview import Preview
from decoder.scratch import Scratch
from decoder.transform import Frame, Projection
from index.kernels.walk import visited_slots

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Walker:
    """Everything a walk reads. links: int32 (V, degree), -1 ends a row. Immutable."""

    layer: OutputLayer
    frame: Frame
    projection: Projection
    preview: Preview
    links: NDArray[np.int32]
    entries: Entries
    seed: int

    def answer(
        self, states: Floats, effort: Effort, scratch: Scratch, *, warm: NDArray[np.int32] | None = None
    ) -> Candidates:
        """Candidates of states float32 (n, d), C-contiguous. warm: int32 (n, any), rows to begin at besides; -1 for none."""
        layer, preview, entries = self.layer, self.preview, self.entries
        found = Candidates.empty(len(states), effort)
        first = np.empty((len(states), 0), np.int32) if warm is None else np.require(warm, np.int32, "C")
        most = entries.table.shape[1] + first.shape[1] + effort.tail
        # No more rows than there are can be visited: past twice as many slots no table fills up.
        degree = self.links.shape[1]
        enough = 1 << (2 * (len(preview.codes) + degree)).bit_length()
        visited = scratch.for_walk(min(visited_slots(effort.width, degree, most), enough), len(states))
        scratch.mark = walk_states(
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
            self.links,
            entries.centroids,
            entries.halves,
            entries.table,
            states,
            first,
            effort.width,
            effort.rerank,
            effort.middle,
            effort.tail,
            np.uint64(self.seed),
            visited,
            scratch.mark,
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
