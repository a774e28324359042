"""The ways to get a decoder's answer, under one signature, so that a scenario is written once and run on each.

answer(layer, hidden, k=..., constraints=None, processed=False, on_bad="fail") -> TopK
PATHS: name -> answer
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from decoder.answers import TopK
from decoder.constraints import Constraints, plan
from decoder.exact import exact_topk
from decoder.hidden import as_states, bad_rows
from decoder.output_layer import OutputLayer

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


PATHS: dict[str, Answer] = {"exact": exact_path}
