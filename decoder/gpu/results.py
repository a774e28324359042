"""What the kernels hand to one another, and how large it is. Plain torch: kernels and twins share it.

Queries     quantised queries                    (queries.py)
Scanned     best rows of every block             (scan.py)
Selected    the best R of each query             (select.py)
Ordered     candidates best first, log Z         (rerank.py)
Pool        every row that a walk scored         (walk.py)
"""

# mypy: disable-error-code="import-not-found,no-any-return"

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from decoder.gpu.layout import BLOCK_ROWS, blocks_of, padded

WORD_BITS = 32
"""Rows to a word of Pool.seen."""
MARGIN = 1.5
"""How much wider log Z's error bar is than the candidates alone say: they are not drawn from the rows they speak for.
With it the 95 % interval covers 95 % of 1,000 held-out states of SmolLM2, with 4 and with 8 bits; without it, 84 to 91 %."""
ROUNDING = 1e-5
"""What float32 itself does to log Z, in nats: the least standard error of an estimated one."""


class Queries(NamedTuple):
    """Quantised queries of n hidden states."""

    codes: torch.Tensor
    """int8 [n, width]."""
    scales: torch.Tensor
    """float32 [n]."""
    shifts: torch.Tensor
    """float32 [n]: what the rows' codes stand above their signed bytes, times the query: joins the integer product."""
    offsets: torch.Tensor
    """float32 [n]: what all rows have in common and their codes therefore leave out, times the state."""
    windows: torch.Tensor
    """int32 [n]: where the query's sample of rows begins in the permutation; a function of its codes alone."""
    failed: torch.Tensor
    """uint8 [n]: 1 where the hidden state holds an infinity or NaN; it is answered with nothing."""


class Scanned(NamedTuple):
    """What a scan found for n queries."""

    estimates: torch.Tensor
    """float32 [n, blocks, kept]: logits, scaled and soft-capped, cut to 25 bits; -inf where a block has fewer rows."""
    ids: torch.Tensor
    """int32 [n, blocks, kept]; -1 there."""
    rest: torch.Tensor
    """float32 [n, blocks]: log of the summed exponentials of the estimates that were not kept."""


class Selected(NamedTuple):
    """The best R of each query, in the order in which they came."""

    estimates: torch.Tensor
    """float32 [n, R]; -inf where there were fewer."""
    ids: torch.Tensor
    """int32 [n, R]; -1 there."""
    rest: torch.Tensor
    """float32 [n, parts]: logs of summed exponentials of those that were not chosen."""


class Ordered(NamedTuple):
    """Candidates of n queries, best first, in one block of memory: one copy takes all of it away."""

    flat: torch.Tensor
    """int32 [n, 3 R + 4]: ids, and the bits of logits, log-probabilities, log Z, its error; failed, rows scored."""

    @staticmethod
    def empty(n: int, keep: int, device: torch.device) -> Ordered:
        """Room for the R = keep candidates of n queries."""
        return Ordered(torch.empty((n, 3 * keep + 4), dtype=torch.int32, device=device))

    @property
    def keep(self) -> int:
        """R."""
        return (self.flat.shape[1] - 4) // 3

    @property
    def ids(self) -> torch.Tensor:
        """int32 [n, R]; -1 where there are fewer, or where the state failed."""
        return self.flat[:, : self.keep]

    @property
    def logits(self) -> torch.Tensor:
        """float32 [n, R]; -inf there."""
        return self.flat[:, self.keep : 2 * self.keep].view(torch.float32)

    @property
    def logprobs(self) -> torch.Tensor:
        """float32 [n, R]; -inf there."""
        return self.flat[:, 2 * self.keep : 3 * self.keep].view(torch.float32)

    @property
    def log_partition(self) -> torch.Tensor:
        """float32 [n]; 0 where the state failed."""
        return self.flat[:, -4:-3].view(torch.float32)[:, 0]

    @property
    def stderr(self) -> torch.Tensor:
        """float32 [n]: of log Z."""
        return self.flat[:, -3:-2].view(torch.float32)[:, 0]

    @property
    def failed(self) -> torch.Tensor:
        """bool [n]: the state was not finite."""
        return self.flat[:, -2] != 0

    @property
    def rows_scored(self) -> torch.Tensor:
        """int32 [n]."""
        return self.flat[:, -1]


class Pool(NamedTuple):
    """Every row that a walk scored, for n queries; places are filled from the left."""

    estimates: torch.Tensor
    """float32 [n, places]."""
    ids: torch.Tensor
    """int32 [n, places]; -1 in places not filled."""
    unexpanded: torch.Tensor
    """float32 [n, places]: the estimates again, -inf once a row is expanded."""
    seen: torch.Tensor
    """int32 [n, words]: a bit a row."""
    filled: torch.Tensor
    """int32 [n]: rows that were scored; those past the last place are lost."""


def kept_of(vocab: int, rerank: int) -> int:
    """Rows that a block keeps so that `rerank` rows, dealt over all blocks, fit: mean, four deviations, and three."""
    expected = rerank / blocks_of(vocab)
    return min(padded(math.ceil(expected + 4.0 * math.sqrt(expected) + 3.0)), BLOCK_ROWS)


def words_of(vocab: int) -> int:
    """Words of a bit a row."""
    return -(-vocab // WORD_BITS)
