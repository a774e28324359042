"""How right an entrant's answers are, against exact ones in float32.

Truth       exact answers of the held-out states
measure     all states, in batches -> Quality
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder import OutputLayer, exact_topk
from decoder.exact import exact_logprobs
from service.bench.decoder.entrant import Entrant, Floats, Found, Setting
from service.bench.decoder.results import Quality

BATCH = 64
COVERING = 1.96
ROUNDING = 3e-6
"""Log-probabilities are float32: where nothing is estimated the bar is 0 and they still differ by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """states float32 (n, d); token_ids int32 (n, k), best first; logprobs float32 (n,) of the best."""

    layer: OutputLayer
    states: Floats
    token_ids: NDArray[np.int32]
    logprobs: Floats

    @staticmethod
    def of(layer: OutputLayer, states: Floats, k: int, *, threads: int) -> Truth:
        """Exact answers."""
        found = exact_topk(layer, states, k, threads=threads)
        logprobs = (found.logits[:, 0] - found.log_partition).astype(np.float32)
        return Truth(layer=layer, states=states, token_ids=found.token_ids, logprobs=logprobs)

    def logprobs_of(self, token_ids: NDArray[np.int32]) -> Floats:
        """The true log-probability of one token for each state."""
        told = self.logprobs.copy()
        others = np.flatnonzero(token_ids != self.token_ids[:, 0])
        if len(others):
            told[others], _ = exact_logprobs(self.layer, self.states[others], token_ids[others])
        return told


def measure(entrant: Entrant, truth: Truth, setting: Setting, *, batch: int = BATCH, threads: int = 1) -> Quality:
    """Ask for every state, so many at once."""
    k = truth.token_ids.shape[1]
    batch = min(batch, entrant.largest_batch)
    found = [
        entrant.answer(np.ascontiguousarray(truth.states[start : start + batch]), k, setting, threads)
        for start in range(0, len(truth.states), batch)
    ]
    ids = np.concatenate([some.token_ids for some in found])
    there = (ids[:, :, None] == truth.token_ids[:, None, :]).any(axis=1)
    scored, logprobs, stderr = (_joined(found, name) for name in ("rows_scored", "logprobs", "stderr"))
    errors = None if logprobs is None else np.abs(logprobs - truth.logprobs_of(ids[:, 0]))
    half = None if stderr is None else COVERING * stderr
    return Quality(
        precision_1=float((ids[:, 0] == truth.token_ids[:, 0]).mean()),
        precision_k=float(there.mean()),
        rows_scored=None if scored is None else float(scored.mean()),
        logprob_error=None if errors is None else float(errors.mean()),
        logprob_error_p95=None if errors is None else float(np.percentile(errors, 95)),
        covered=None if half is None or errors is None else float((errors <= half + ROUNDING).mean()),
        half_width=None if half is None else float(half.mean()),
    )


def _joined(found: list[Found], name: str) -> NDArray[Any] | None:
    parts = [getattr(some, name) for some in found]
    return None if any(part is None for part in parts) else np.concatenate(parts)
