"""From the best tokens of a state to the row over all tokens that transformers expects of an output layer.

Best         the best tokens of n states, exact logits, log Z; Best.of: from a decoder's answer
AfterHead    what a model does to its head's output afterwards, and how that is undone
full_rows    Best -> rows

The candidates stand in a row with their exact logits, every other token with one constant such that the row's log-softmax is
normalised by the estimate of log Z. So the order at the top, the log-probabilities of candidates and the mass of all others
together are right; how that mass lies among the others is not told.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from decoder.answers import TopK

LEAST_SHARE = 1e-9
"""Of the probability, for all other tokens together: an estimate of log Z may leave them nothing."""
LEAST_GAP = 1e-3
"""Nats between the last candidate and the others, so that no tie can put one of them in its place."""
NEAR_CAP = 1.0 - 1e-15
"""Of a soft-cap: where float64's tanh is still undone to something finite."""


class Best(NamedTuple):
    """Tensors: token_ids int64 and logits float32 (n, m), best first; log_z float64 (n,); failed bool (n,)."""

    token_ids: Any
    logits: Any
    log_z: Any
    failed: Any

    @staticmethod
    def of(top: TopK) -> Best:
        """An answer of arrays, or of tensors on whatever device: there it stays."""
        torch = sys.modules["torch"]
        ids, logits, logprobs, failed = map(
            torch.as_tensor, (top.token_ids, top.logits, top.logprobs[:, :1], top.failed)
        )
        return Best(ids.long(), logits, logits[:, 0].double() - logprobs[:, 0].double(), failed)


@dataclass(frozen=True, slots=True)
class AfterHead:
    """softcap * tanh((output + bias) * scale / softcap). bias: float32 tensor (rows,), or None."""

    scale: float = 1.0
    softcap: float | None = None
    bias: Any = None

    def applied(self, output: Any) -> Any:
        """What the model makes of its head's output (..., rows)."""
        logits = (output if self.bias is None else output + self.bias) * self.scale
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def undone(self, logits: Any) -> Any:
        """(output + bias) from which the model makes these logits, float64, any shape."""
        before = logits.double()
        if self.softcap is not None:
            before = self.softcap * (before / self.softcap).clamp(-NEAR_CAP, NEAR_CAP).atanh()
        return before / self.scale


def full_rows(best: Best, after: AfterHead, *, vocab_size: int, rows: int) -> Any:
    """What the head has to put out, float32 (n, rows), for the model to end with the row described above.

    Rows at and beyond vocab_size are padding: minus infinity.
    """
    torch = sys.modules["torch"]
    ids = best.token_ids.clamp(min=0)  # of failed states they are -1
    values, rest = after.undone(best.logits), after.undone(_constant(best, vocab_size)).float()
    out = rest[:, None].repeat(1, rows)
    if after.bias is not None:
        out -= after.bias
        values = values - after.bias[ids]
    out.scatter_(1, ids, values.float())
    if rows > vocab_size:
        out[:, vocab_size:] = -torch.inf
    # The processors of generate() see NaN where the model itself would have put out NaN.
    return out.masked_fill_(best.failed[:, None], torch.nan)


def _constant(best: Best, vocab_size: int) -> Any:
    """The logit of each token that is no candidate, float64 (n,)."""
    logits = best.logits.double()
    share = 1.0 - (logits - best.log_z[:, None]).exp().sum(1)
    others = max(vocab_size - logits.shape[1], 1)
    constant = best.log_z + share.clamp(min=LEAST_SHARE).log() - math.log(others)
    return constant.minimum(logits[:, -1] - LEAST_GAP)
