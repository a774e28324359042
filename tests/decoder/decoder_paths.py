"""The ways to get a decoder's answer, under one signature, so that a scenario is written once and run on each.

answer(layer, hidden, k=..., constraints=None, processed=False, on_bad="fail") -> TopK
PATHS: name -> answer; walks and screens are forced, at their widest, where a planner would take an exact scan
opened(layer, mode): a decoder built for the layer, once
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from layer_oracle import random_states

from decoder import DecoderOptions, OpenDecoder, open_decoder
from decoder import build as building
from decoder.answers import TopK
from decoder.constraints import Constraints, plan
from decoder.exact import exact_topk
from decoder.hidden import as_states, bad_rows
from decoder.operating_points import DecoderPoint
from decoder.output_layer import OutputLayer
from decoder.planner import Choice

Answer = Callable[..., TopK]


def exact_path(
    layer: OutputLayer,
    hidden: Any,
    *,
    k: Any,
    constraints: Constraints | None = None,
    processed: bool = False,
    on_bad: str = "fail",
) -> TopK:
    """From decoder.exact alone."""
    states = as_states(hidden, layer.dim)
    failed = np.zeros(len(states), bool)
    if on_bad == "mark":
        failed[bad_rows(states)] = True
    answer = exact_topk(layer, states[~failed], k, plan=plan(constraints, layer.vocab_size))
    n, width = len(states), answer.token_ids.shape[1]
    ids, logits = np.full((n, width), -1, np.int32), np.full((n, width), -np.inf, np.float32)
    logprobs, counts = np.full((n, width), -np.inf, np.float32), np.zeros(n, np.int32)
    ids[~failed], logits[~failed], counts[~failed] = answer.token_ids, answer.logits, answer.counts
    if processed:
        logprobs[~failed] = answer.logits - answer.log_partition_processed[:, None]
    else:
        logprobs[~failed] = answer.raw_logits - answer.log_partition[:, None]
    return TopK(
        token_ids=ids,
        logits=logits,
        logprobs=logprobs,
        logprob_stderr=np.zeros(n, np.float32),
        counts=counts,
        rows_scored=np.full(n, layer.vocab_size),
        mode="exact",
        exact=True,
        failed=failed,
    )


class Forced:
    """In place of a planner: always one mode, as wide as it was measured, however small the vocabulary or large k."""

    def __init__(self, mode: str, points: Sequence[DecoderPoint]) -> None:
        self._choice = Choice(mode, max((p for p in points if p.mode == mode), key=lambda p: p.width), reached=True)

    def choose(self, **asked: Any) -> Choice:
        return self._choice


_folder = tempfile.TemporaryDirectory(prefix="decoder-paths-")
atexit.register(_folder.cleanup)
_opened: dict[tuple[str, str], OpenDecoder] = {}
OPTIONS = DecoderOptions(threads=1, degree=16, room=2, clusters=4)


def opened(layer: OutputLayer, mode: str) -> OpenDecoder:
    """A decoder built for the layer, even where it is so small that nobody would; mode "auto": as users have it."""
    key = (layer.weights_hash(), mode)
    if key not in _opened:
        folder = Path(_folder.name) / key[0]
        small = building.SMALL
        building.SMALL = 0
        try:
            if not folder.exists():
                large = layer.vocab_size > 1000
                states = random_states(400, layer.dim, seed=77) if large else None
                building.build_decoder(layer, folder, calibration=states, options=OPTIONS)
        finally:
            building.SMALL = small
        head = open_decoder(folder, layer=layer)
        if mode != "auto":
            head._planner = Forced(mode, head.parts.points)  # type: ignore[assignment]
        _opened[key] = head
    return _opened[key]


def _path(mode: str) -> Answer:
    def answer(
        layer: OutputLayer,
        hidden: Any,
        *,
        k: Any,
        constraints: Constraints | None = None,
        processed: bool = False,
        on_bad: str = "fail",
    ) -> TopK:
        logprobs = "processed" if processed else "raw"
        return opened(layer, mode).topk(hidden, k=k, constraints=constraints, on_bad=on_bad, logprobs=logprobs)

    return answer


PATHS: dict[str, Answer] = {
    "exact": exact_path,
    "walk": _path("walk"),
    "screen": _path("screen"),
    "auto": _path("auto"),
}
