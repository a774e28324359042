"""Small decoders made by hand, for tests of one part: frame, preview, links and entries without a build.

Small         a layer with everything that walks and screens read; its states
small_decoder makes one
walked(), screened()   what a kernel of either kind, compiled or not, answers
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from layer_oracle import random_layer, random_states

from decoder.candidates import Candidates, Effort
from decoder.entries import Entries
from decoder.output_layer import OutputLayer
from decoder.preview import Preview
from decoder.transform import Frame, Projection, each_block, fit_frame
from index.kernels.walk import visited_slots


@dataclass(frozen=True)
class Small:
    layer: OutputLayer
    states: np.ndarray
    frame: Frame
    projection: Projection
    preview: Preview
    links: np.ndarray
    entries: Entries

    def but(self, **changes: Any) -> Small:
        return replace(self, **changes)


def small_decoder(
    V: int,
    dim: int,
    dtype: str = "float16",
    *,
    width: int | None = None,
    lead: int = 64,
    degree: int = 8,
    n: int = 5,
    seed: int = 0,
    layer: OutputLayer | None = None,
    **options: Any,
) -> Small:
    """Random rows, links and entries. states: float32 (n, dim), unlike any the frame was fitted to."""
    layer = random_layer(V, dim, dtype, seed=seed, **options) if layer is None else layer
    calibration = random_states(200, dim, seed=seed + 1) * np.linspace(0.3, 1.5, dim, dtype=np.float32)
    frame, rows = fit_frame(layer, calibration, width=width, lead=lead, seed=seed)
    preview = Preview.empty(V, width=frame.width, lead=lead)

    def fill(start: int, weight: np.ndarray) -> None:
        part = slice(start, start + len(weight))
        preview.fill(start, rows.coordinates(weight), rows.biases(weight, layer.bias[part]))

    deque(each_block(layer, fill, 1))
    generator = np.random.default_rng(seed + 2)
    links = generator.integers(0, V, (V, degree)).astype(np.int32)
    links[:, 0] = (np.arange(V) + 1) % V  # every row can be reached
    for row, cut in enumerate(generator.integers(1, degree + 1, V)):
        links[row, cut:] = -1
    leading = min(12, frame.width)
    centroids = generator.normal(size=(3, leading)).astype(np.float32)
    table = np.stack([generator.permutation(V)[: min(4, V)] for _ in range(3)]).astype(np.int32)
    states = random_states(n, dim, seed=seed + 3)
    return Small(layer, states, frame, Projection.of(frame), preview, links, Entries.of(centroids, table))


def walked(
    kernel: Any, small: Small, effort: Effort, *, warm: Any = None, seed: int = 0, slots: int | None = None
) -> Candidates:
    """What walk_states(), compiled or its twin, fills."""
    layer, preview, entries, n = small.layer, small.preview, small.entries, len(small.states)
    found = Candidates.empty(n, effort)
    warm = np.empty((n, 0), np.int32) if warm is None else warm
    most = entries.table.shape[1] + warm.shape[1] + effort.tail
    slots = slots or visited_slots(effort.width, small.links.shape[1], most)
    last = kernel(
        layer.bits.view(np.uint8), layer.kind, layer.bias, np.float32(layer.scale), np.float32(layer.softcap or 0.0),
        small.frame.mean, small.projection.rows, small.projection.kind, preview.codes, preview.scalars, small.links,
        entries.centroids, entries.halves, entries.table, small.states, warm, effort.width, effort.rerank, effort.middle,
        effort.tail, np.uint64(seed), np.zeros(slots, np.uint64), 7, np.empty(slots, np.int32),
        np.empty(slots, np.float32), np.empty(slots, np.float32), *filled(found),
    )  # fmt: skip
    assert last == 7 + np.count_nonzero(found.exact)
    return found


def screened(kernel: Any, small: Small, effort: Effort, *, whole: bool = False, seed: int = 0) -> Candidates:
    """What screen_states(), compiled or its twin, fills."""
    layer, preview, V = small.layer, small.preview, small.layer.vocab_size
    found = Candidates.empty(len(small.states), effort)
    kernel(
        layer.bits.view(np.uint8), layer.kind, layer.bias, np.float32(layer.scale), np.float32(layer.softcap or 0.0),
        small.frame.mean, small.projection.rows, small.projection.kind, preview.codes, preview.scalars,
        preview.lead_codes, preview.lead_scalars, small.states, effort.width, effort.rerank, effort.middle, whole,
        np.uint64(seed), np.empty(V, np.float32), np.empty(V + 1, np.int32),
        np.empty(V + 1, np.float32), np.empty(V + 1, np.float32), *filled(found),
    )  # fmt: skip
    return found


def filled(found: Candidates) -> tuple[np.ndarray, ...]:
    """The arrays in the order in which kernels take them."""
    return (
        found.token_ids, found.logits, found.weights, found.exact, found.counts, found.log_z, found.error, found.scored,
    )  # fmt: skip


def require_same_row(mine: Candidates, i: int, theirs: Candidates, j: int) -> None:
    """Bit for bit, as far as rows are filled."""
    count = int(mine.counts[i])
    for name in mine.__slots__:
        a, b = getattr(mine, name)[i : i + 1], getattr(theirs, name)[j : j + 1]
        assert a[..., :count].tobytes() == b[..., :count].tobytes(), name


def require_alike(mine: Candidates, theirs: Candidates) -> None:
    """The same rows with the same numbers, but for rounding."""
    for name in ("exact", "counts", "scored"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    for row, count in enumerate(mine.counts):
        np.testing.assert_array_equal(mine.token_ids[row, :count], theirs.token_ids[row, :count])
        np.testing.assert_allclose(mine.logits[row, :count], theirs.logits[row, :count], rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(mine.weights[row, :count], theirs.weights[row, :count], rtol=2e-4)
    np.testing.assert_allclose(mine.log_z, theirs.log_z, atol=2e-5)
    np.testing.assert_allclose(mine.error, theirs.error, rtol=1e-2, atol=1e-6)
