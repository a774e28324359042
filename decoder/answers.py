"""What a decoder answers: the K best tokens of each hidden state, or one sampled token of each.

Invariant: entries of a row past its count are -1 (ids) and -infinity (logits, log-probabilities); equal logits stand by
ascending id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TopK:
    """The best tokens of n hidden states, best first.

    token_ids int32 (n, k); logits float32 (n, k): exact, soft-cap and scale applied, a constraint's bias added;
    logprobs float32 (n, k): raw, before constraints, unless "processed" was asked for; logprob_stderr float32 (n,): of the
    log-probabilities, 0 where they are exact; counts int32 (n,): how many entries of a row are tokens.

    rows_scored int64 (n,): rows of the layer looked at; mode: "walk", "screen" or "exact"; exact: whether ids, logits and
    log-probabilities all are; failed bool (n,): rows that hold NaN or infinity, where on_bad="mark".
    requested_logits, requested_logprobs float32 (n, m): of the m ids asked for besides.
    """

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    logprob_stderr: NDArray[np.float32]
    counts: NDArray[np.int32]
    rows_scored: NDArray[np.int64]
    mode: str
    exact: bool
    failed: NDArray[np.bool_]
    requested_logits: NDArray[np.float32] | None = None
    requested_logprobs: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token for each of n hidden states.

    token_ids int32 (n,), -1 where the row failed; logprobs float32 (n,): raw, or processed where that was asked for;
    logprob_stderr float32 (n,); candidates: the best tokens that the draw saw.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    logprob_stderr: NDArray[np.float32]
    candidates: TopK

    def __len__(self) -> int:
        return len(self.token_ids)
