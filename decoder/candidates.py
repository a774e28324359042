"""What a walk or a screen found for n states: exact rows, sampled rows with the weight they stand for, and log Z.

Invariant: a logit here is exact, never an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Effort:
    """How much one call looks at.

    width: beam of a walk, or rows that a screen scores by all coordinates; rerank: rows scored exactly; middle, tail: rows
    drawn for log Z, 0 where it is not asked for: a walk draws `middle` from the rows it scored and `tail` from all others, a
    screen, which scores all, `middle` from all.
    """

    width: int
    rerank: int
    middle: int = 0
    tail: int = 0


@dataclass(frozen=True, slots=True)
class Candidates:
    """token_ids int32, logits float32, weights float64 (n, c).

    exact int64 (n,): so many first ones are reranked rows, best first, of weight 1; up to counts int64 (n,) come sampled
    rows, each standing for `weight` tokens, with exact logits where entries were asked for. log_z float64 (n,) with standard
    error `error`, NaN where it was not asked for; scored int64 (n,): rows whose code was looked at.
    """

    token_ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    weights: NDArray[np.float64]
    exact: NDArray[np.int64]
    counts: NDArray[np.int64]
    log_z: NDArray[np.float64]
    error: NDArray[np.float64]
    scored: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.exact)

    @staticmethod
    def empty(n: int, effort: Effort) -> Candidates:
        """Room for n states."""
        shape = (n, effort.rerank + effort.middle + effort.tail)
        return Candidates(
            np.empty(shape, np.int32),
            np.empty(shape, np.float32),
            np.empty(shape, np.float64),
            np.empty(n, np.int64),
            np.empty(n, np.int64),
            np.full(n, np.nan),
            np.full(n, np.nan),
            np.empty(n, np.int64),
        )

    def put(self, rows: slice, some: Candidates) -> None:
        """Write the candidates of some states in their place."""
        for name in self.__slots__:
            getattr(self, name)[rows] = getattr(some, name)
