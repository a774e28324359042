"""What every way to the best tokens can do, and what it is measured by.

Entrant    prepare, settings, answer
Found      token ids of some states, with what else is known of the answer
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.bench.decoder.heads import Head

Floats = NDArray[np.float32]
Setting = dict[str, float]
"""One value of each knob: what is tuned."""
Tell = Callable[[str, int, int], None]
"""Progress: (what, done, total)."""
ANY_BATCH = 1 << 20


class Kind(Enum):
    """ours: the decoder; exact: all rows in full, nothing to tune; peer: another way that looks at a part."""

    OURS = "ours"
    EXACT = "exact"
    PEER = "peer"


class MissingEntrantError(Exception):
    """An entrant that cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """token_ids int32 (n, k), best first. rows_scored float64 (n,): rows looked at, None where that is not counted.

    logprobs, stderr float32 (n,): of the best token, None where none are given. mode: which of ours answered, else "".
    """

    token_ids: NDArray[np.int32]
    rows_scored: NDArray[np.float64] | None = None
    logprobs: Floats | None = None
    stderr: Floats | None = None
    mode: str = ""


class Entrant:
    """One way, in this process. Used by one thread."""

    name: str
    kind: Kind
    batch_matters = False
    """Whether what it finds depends on how many states are asked at once."""
    largest_batch = ANY_BATCH

    build_seconds = 0.0
    """All that was made before the first answer can be given."""
    memory_bytes = 0
    """All that an answer may read, the layer included."""

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """Build what is needed; set build_seconds and memory_bytes. folder: for what is kept between runs.

        Raises MissingEntrantError.
        """
        raise NotImplementedError

    def settings(self) -> list[Setting]:
        """What can be tuned, least effort first; one empty setting where nothing can."""
        return [{}]

    def answer(self, states: Floats, k: int, setting: Setting, threads: int) -> Found:
        """The k best tokens of states float32 (n, d), n <= largest_batch, with so many threads."""
        raise NotImplementedError


def best_of(logits: NDArray[np.floating], k: int) -> NDArray[np.int32]:
    """The columns of the k largest of each row, best first: int32 (n, k). logits: float (n, m), m >= k."""
    n, m = logits.shape
    if k < m:
        best = np.argpartition(logits, m - k, axis=1)[:, m - k :]
    else:
        best = np.broadcast_to(np.arange(m), (n, m))
    order = np.argsort(-np.take_along_axis(logits, best, axis=1), axis=1)
    return np.take_along_axis(best, order, axis=1).astype(np.int32)
