"""What one call of generate() looks at, and so whether candidates are enough to answer it.

Call        how many candidates each step needs; or all rows, and why
call_for    a generation's configuration and its logits processors -> Call

Candidates are enough where every token that could be chosen is among the best ones: greedy, beams, sampling among the top k,
and any of these with some tokens banned. Whatever may raise a token, or looks at all of them, gets every row exactly: an
unknown processor is taken for one that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

MODES = ("greedy_search", "sample", "beam_search", "beam_sample")
"""Generation modes that look at the last position only, and at nothing but the best tokens of it."""
HARMLESS = {
    "TemperatureLogitsWarper",
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
}
"""These keep the order of tokens, or look at none."""
AMONG_TOP_K = {
    "TopPLogitsWarper",
    "TopHLogitsWarper",
    "MinPLogitsWarper",
    "TypicalLogitsWarper",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
}
"""After TopKLogitsWarper these see candidates only; before it, all tokens."""
BANS: dict[str, Callable[[Any], int]] = {
    "MinLengthLogitsProcessor": lambda processor: processor.eos_token_id.numel(),
    "MinNewTokensLengthLogitsProcessor": lambda processor: processor.eos_token_id.numel(),
    "NoBadWordsLogitsProcessor": lambda processor: len(processor.sequence_bias),
    "SuppressTokensLogitsProcessor": lambda processor: len(processor.suppress_tokens),
    "SuppressTokensAtBeginLogitsProcessor": lambda processor: len(processor.begin_suppress_tokens),
}
"""How many tokens of a row each may ban: so many more candidates, and enough of them remain."""
OWN_MODULE = "transformers.generation.logits_process"


@dataclass(frozen=True, slots=True)
class Call:
    """candidates: how many best tokens each step needs, 0 for all rows; reason: why all rows; last_only: of what is asked
    for several positions, only the last one is looked at.
    """

    candidates: int = 0
    reason: str = ""
    last_only: bool = False

    @property
    def by_decoder(self) -> bool:
        """Whether the decoder answers."""
        return self.candidates > 0


def call_for(configuration: Any, processors: Iterable[Any], *, assisted: bool, k: int, vocab_size: int) -> Call:
    """What generate() with this prepared configuration and these processors needs. k: the fewest candidates."""
    mode = "assisted_generation" if assisted else str(configuration.get_generation_mode().value)
    if mode not in MODES:
        return Call(reason=f"{mode} looks at more than the best tokens of the last position")
    needed, reason = _needed(configuration, processors)
    if reason:
        return Call(reason=reason, last_only=True)
    wanted = max(k, needed)
    if wanted * 4 > vocab_size and wanted > k:
        return Call(reason=f"{wanted} candidates of {vocab_size} tokens save nothing", last_only=True)
    return Call(candidates=min(wanted, vocab_size), last_only=True)


def _needed(configuration: Any, processors: Iterable[Any]) -> tuple[int, str]:
    """How many candidates; or why they are not enough."""
    sampled, narrowed, banned = bool(configuration.do_sample), False, 0
    needed = _kept_beams(configuration) if (configuration.num_beams or 1) > 1 else 1
    for processor in processors:
        name = type(processor).__name__ if type(processor).__module__ == OWN_MODULE else ""
        if name == "TopKLogitsWarper":
            needed, narrowed = max(needed, int(processor.top_k)), True
        elif name in BANS:
            banned += BANS[name](processor)
        elif name not in HARMLESS and not (name in AMONG_TOP_K and narrowed):
            before = " without top_k before it" if name in AMONG_TOP_K else ""
            return 0, f"{type(processor).__name__}{before} may choose a token that is not among the best"
    if sampled and not narrowed:
        return 0, "sampling without top_k may draw any token"
    return needed + banned, ""


def _kept_beams(configuration: Any) -> int:
    """How many continuations a beam search takes at each step, which may all come from one row."""
    ends = getattr(configuration, "_eos_token_tensor", None)
    return max(2, 1 + (0 if ends is None else int(ends.numel()))) * int(configuration.num_beams)
