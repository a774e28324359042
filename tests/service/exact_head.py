"""A decoder that looks at every token, for tests of text where no decoder is built: the oracle, behind the real face."""

from __future__ import annotations

from typing import Any

import numpy as np

from decoder.answers import Sampled, TopK
from decoder.constraints import Constraints, plan
from decoder.exact import exact_logits, exact_logprobs, exact_topk
from decoder.output_layer import OutputLayer
from decoder.sampling import draw, entries_of, generator_of, processed_logprobs


class ExactHead:
    """As decoder.head.OpenDecoder. calls: (what, rows) of each call."""

    def __init__(self, layer: OutputLayer) -> None:
        self.layer, self.vocab_size, self.dim = layer, layer.vocab_size, layer.dim
        self.calls: list[tuple[str, int]] = []

    def topk(self, hidden: Any, *, k: int, normalize: str, mode: str) -> TopK:
        self.calls.append(("topk", len(hidden)))
        assert (normalize, mode) == ("exact", "exact")
        found = exact_topk(self.layer, hidden, k)
        logprobs = (found.logits - found.log_partition[:, None]).astype(np.float32)
        return _topk(found.token_ids, found.logits, logprobs, found.counts)

    def sample(
        self, hidden: Any, *, sampling: Any, constraints: Constraints | None, k: int, logprobs: str, step: int
    ) -> Sampled:
        self.calls.append(("sample", len(hidden)))
        assert len(hidden) == 1
        logits = exact_logits(self.layer, hidden)[0]
        raw = logits - np.logaddexp.reduce(logits.astype(np.float64))
        all_ids = np.arange(self.vocab_size, dtype=np.int32)
        entries = entries_of(*plan(constraints, self.vocab_size).apply(all_ids, logits))
        drawn = draw(entries, sampling, generator_of(sampling.seed, step, 0))
        shown = entries.ids[:k]
        processed = processed_logprobs(entries, sampling)
        values = raw[shown].astype(np.float32) if logprobs == "raw" else processed[:k]
        logprob = raw[drawn.token_id] if logprobs == "raw" else drawn.logprob
        counts = np.array([len(shown)], np.int32)
        return Sampled(
            np.array([drawn.token_id], np.int32),
            np.array([logprob], np.float32),
            np.zeros(1, np.float32),
            _topk(shown[None], entries.logits[None, :k], values[None], counts),
        )

    def logprobs_of(self, hidden: Any, token_ids: Any) -> Any:
        self.calls.append(("logprobs_of", len(hidden)))
        return exact_logprobs(self.layer, hidden, token_ids)

    def close(self) -> None:
        pass


def _topk(ids: Any, logits: Any, logprobs: Any, counts: Any) -> TopK:
    n = len(counts)
    zeros = np.zeros(n, np.float32)
    scored = np.zeros(n, np.int64)
    return TopK(ids, logits, logprobs, zeros, counts, scored, "exact", True, np.zeros(n, np.bool_))
