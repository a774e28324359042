"""What is asked of a decoder, as it arrives: JSON body or raw states with a query string -> DecoderQuery.

parse_topk() parse_next()           JSON bodies
parse_raw_topk() parse_raw_next()   an octet-stream of states, with options in the query string

Everything is checked that needs no decoder; states become arrays in the thread that answers, where the dimension is known.
Invariant: unknown members and options are refused, each one would change the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw

from service.allowed import hint
from service.answers import decode
from service.errors import MalformedError
from service.hidden_states import HiddenStates, json_states, raw_states
from service.query import in_range
from service.settings import Settings

_LISTS = ("allowed_token_ids", "banned_token_ids", "logprob_token_ids")
_NOT_OPTIONS = frozenset({"timeout", "dtype"})
"""Of the query string, read elsewhere."""


class _Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    k: int = 10
    mode: Literal["auto", "walk", "screen", "exact"] = "auto"
    recall: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    banned_token_ids: list[int] | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    on_bad: Literal["fail", "mark"] = "fail"


class TopKOptions(_Options, forbid_unknown_fields=True, kw_only=True):
    """What /topk takes beside the states."""

    normalize: Literal["estimate", "topk", "exact", "none"] = "estimate"
    logprob_token_ids: list[int] | None = None


class NextOptions(_Options, forbid_unknown_fields=True, kw_only=True):
    """What /next takes beside the states."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None


class TopKBody(TopKOptions, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/decoders/{name}/topk."""

    hidden: Raw
    with_tokens: bool = False


class NextBody(NextOptions, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/decoders/{name}/next."""

    hidden: Raw
    with_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """Constraints and ids to score, as they were asked for; `None` where they were not."""

    logit_bias: Mapping[int, float] | None
    allowed: list[int] | None
    banned: list[int] | None
    scored: list[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderQuery:
    """One request: for the top tokens of each state (TopKOptions), or for one sampled token of each (NextOptions)."""

    hidden: HiddenStates
    options: TopKOptions | NextOptions
    limits: TokenLimits
    with_tokens: bool
    batch_max: int


Options = TypeVar("Options", TopKOptions, NextOptions)


def parse_topk(raw: bytes, settings: Settings) -> DecoderQuery:
    """Raises MalformedError, OutOfRangeError naming the member."""
    body = decode(raw, TopKBody)
    return _query(body, json_states(body.hidden), settings, with_tokens=body.with_tokens)


def parse_next(raw: bytes, settings: Settings) -> DecoderQuery:
    """Raises MalformedError, OutOfRangeError naming the member."""
    body = decode(raw, NextBody)
    return _query(body, json_states(body.hidden), settings, with_tokens=body.with_tokens)


def parse_raw_topk(body: bytes, given: Mapping[str, str], settings: Settings) -> DecoderQuery:
    """Raises MalformedError, OutOfRangeError naming the option."""
    return _query(_from_query_string(given, TopKOptions), raw_states(body, given.get("dtype")), settings)


def parse_raw_next(body: bytes, given: Mapping[str, str], settings: Settings) -> DecoderQuery:
    """Raises MalformedError, OutOfRangeError naming the option."""
    return _query(_from_query_string(given, NextOptions), raw_states(body, given.get("dtype")), settings)


def _query(
    options: TopKOptions | NextOptions, hidden: HiddenStates, settings: Settings, *, with_tokens: bool = False
) -> DecoderQuery:
    in_range(options.k, "k", low=1, high=settings.decoder_k_max)
    limits = TokenLimits(
        logit_bias=_biases(options.logit_bias),
        allowed=options.allowed_token_ids,
        banned=options.banned_token_ids,
        scored=options.logprob_token_ids if isinstance(options, TopKOptions) else None,
    )
    return DecoderQuery(
        hidden=hidden, options=options, limits=limits, with_tokens=with_tokens, batch_max=settings.query_batch_max
    )


def _from_query_string(given: Mapping[str, str], kind: type[Options]) -> Options:
    members: dict[str, Any] = {name: value for name, value in given.items() if name not in _NOT_OPTIONS}
    for name in _LISTS:
        if name in members:
            members[name] = [part for part in members[name].split(",") if part]
    if "logit_bias" in members:
        members["logit_bias"] = _pairs(members["logit_bias"])
    try:
        return msgspec.convert(members, kind, strict=False)
    except msgspec.ValidationError as error:
        what = str(error) if "`$" in str(error) else f"{error} - at `$`"
        raise MalformedError(f"Wrong query string: {what}.{hint(error, kind)}") from None


def _pairs(text: str) -> dict[str, str]:
    """`17:-100,5:2.5`."""
    pairs = [part.partition(":") for part in text.split(",") if part]
    for token_id, colon, _ in pairs:
        if not colon:
            raise MalformedError(
                f"logit_bias holds {token_id!r}; write pairs of token id and bias, such as 17:-100,5:2.5."
            )
    return {token_id: bias for token_id, _, bias in pairs}


def _biases(given: Mapping[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    biases = {}
    for key, bias in given.items():
        # Longer than any id: int() of thousands of digits would take its time.
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise MalformedError(f'logit_bias has the key {key[:40]!r}; keys are token ids, such as "17".')
        if not math.isfinite(bias):
            raise MalformedError(f"logit_bias of token {key} is {bias}; it must be a finite number.")
        biases[int(key)] = bias
    return biases
