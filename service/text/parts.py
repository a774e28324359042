"""What text is generated with, as the parts that do it see each other: a model, a decoder, and what one step brings.

Model, Reading      token ids -> hidden states (service.text.model; a table in tests)
Head                hidden states -> tokens (decoder.head)
GenerateOptions     what one answer shall be
TokenScore, Step    what came of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from decoder.answers import Sampled, TopK
from decoder.constraints import Constraints
from decoder.sampling import SamplingOptions

FinishReason = Literal["stop", "length", "constraint"]
LogprobsMode = Literal["raw", "processed"]

ConstraintsAt = Callable[[Sequence[int]], Constraints | None]
"""Constraints of the next token, given the tokens generated so far."""


class Reading(Protocol):
    """One sequence that a model is reading."""

    def hidden(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Read these tokens; their states, [n, dim]."""
        ...


class Model(Protocol):
    """What generation needs of a language model."""

    end_ids: frozenset[int]

    def read(self) -> Reading:
        """A new, empty sequence."""
        ...


class Head(Protocol):
    """What generation needs of an open decoder."""

    def topk(self, hidden: Any, *, k: int, normalize: str, mode: str) -> TopK:
        """The k best tokens of each state."""
        ...

    def sample(
        self,
        hidden: Any,
        *,
        sampling: SamplingOptions,
        constraints: Constraints | None,
        k: int,
        logprobs: LogprobsMode,
        step: int,
    ) -> Sampled:
        """One token for each state."""
        ...

    def logprobs_of(self, hidden: Any, token_ids: Any) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Log-probability and rank of a given token for each state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What one answer shall be."""

    max_tokens: int
    """Tokens after which it ends with "length"; 0 answers nothing, which together with echo scores a prompt."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    constraints: Constraints | ConstraintsAt | None = None
    stop: tuple[str, ...] = ()
    """Strings that end it; they do not belong to the text."""
    echo: bool = False
    """The prompt comes first, scored like the answer."""
    top_logprobs: int | None = None
    """Candidates that are named for each token; None: no log-probabilities at all."""
    logprobs: LogprobsMode = "raw"
    """raw: before temperature, filters and constraints. Of the prompt they are always raw."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and how likely it was.

    logprob: None for a prompt's first token, which nothing came before; stderr: its standard error, 0 where it is exact;
    top: (token id, log-probability), best first, impossible ones left out; offset: characters of the text before it.
    """

    token_id: int
    logprob: float | None
    stderr: float
    top: tuple[tuple[int, float], ...]
    offset: int


@dataclass(frozen=True, slots=True)
class DecoderCall:
    """One use of the decoder: how it answered, for how many states, in what time."""

    mode: str
    states: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step brought: text that is new, scores that are new, and at the end why it ended."""

    text: str = ""
    scores: tuple[TokenScore, ...] = ()
    generated: int = 0
    """Tokens generated in this step: 0 or 1."""
    call: DecoderCall | None = None
    finish_reason: FinishReason | None = None
