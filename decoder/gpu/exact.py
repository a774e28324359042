"""All rows in float32, in blocks, in plain torch: what the other ways are measured against, on any device.

exact       candidates that hold the best k of every state, and log Z over all rows
best        candidates by (logit desc, id asc), for any number of them

The candidates are SLACK more than k, so that equal logits at the edge are told apart by id afterwards, from logits that are
summed in the same order as everywhere (rerank.score). With float32 products set to TF32 (torch.backends.cuda.matmul) the
candidates and log Z are TF32's. Not here: speed; a bfloat16 product and torch.topk are faster (bench.py).
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import torch

BLOCK = 16_384
"""Rows whose logits stand in memory at a time."""
SLACK = 64


def exact(
    weight: torch.Tensor,
    bias: torch.Tensor,
    hidden: torch.Tensor,
    *,
    k: int,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(candidates int32 [n, min(k + SLACK, V)], log Z float32 [n]). weight: [>= V, dim]; bias: float32 [V]."""
    vocab, wanted = len(bias), min(k + SLACK, len(bias))
    values: torch.Tensor | None = None
    for start in range(0, vocab, BLOCK):
        end = min(start + BLOCK, vocab)
        logits = (hidden @ weight[start:end].float().T + bias[start:end]) * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        total = torch.logsumexp(logits, dim=1)
        ids = torch.arange(start, end, device=hidden.device).expand_as(logits)
        if values is None:
            values, found, log_partition = logits, ids, total
        else:
            values, found = torch.cat([values, logits], dim=1), torch.cat([found, ids], dim=1)
            log_partition = torch.logaddexp(log_partition, total)
        values, places = values.topk(min(wanted, values.shape[1]), dim=1, sorted=False)
        found = found.gather(1, places)
    return found.to(torch.int32), log_partition


def best(logits: torch.Tensor, ids: torch.Tensor, *, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, logits) of the best k of each row by (logit desc, id asc)."""
    by_id = torch.sort(ids, dim=1, stable=True).indices
    order = by_id.gather(1, torch.sort(logits.gather(1, by_id), dim=1, descending=True, stable=True).indices)[:, :k]
    return ids.gather(1, order), logits.gather(1, order)
