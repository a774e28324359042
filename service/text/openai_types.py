"""Bodies of OpenAI's completions and chat completions, and the rule for members that are not among them.

parse_body()   JSON -> CompletionBody or ChatBody; BadParamError names the member that is wrong

A member that would change the answer and is not there is refused, unless it has its neutral value; one that cannot change it
is ignored. null stands for a member that was left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from service.answers import decode
from service.edits import nearest_name
from service.errors import MalformedError

LogitBias = dict[int, float]


class BadParamError(MalformedError):
    """A member of the body that cannot be taken; param names it."""

    def __init__(self, param: str, sentence: str) -> None:
        self.param = param
        super().__init__(sentence)


class StreamOptions(msgspec.Struct, kw_only=True):
    """stream_options; other members of it do not change the answer."""

    include_usage: bool | None = None


class SharedBody(msgspec.Struct, kw_only=True):
    """What both routes take. OpenAI's names; top_k and what follows are vLLM's, logprobs_mode is ours too."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: LogitBias | None = None
    top_k: int | None = None
    min_p: float | None = None
    allowed_token_ids: list[int] | None = None
    return_tokens_as_token_ids: bool | None = None
    logprobs_mode: str | None = None


class CompletionBody(SharedBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None


class ChatBody(SharedBody, kw_only=True):
    """POST /v1/chat/completions. openai_options.messages_of() reads the messages."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


B = TypeVar("B", bound=SharedBody)

IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prediction", "parallel_tool_calls"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_salt"),
        *("priority", "request_id", "spaces_between_special_tokens"),
    }
)
"""Members that cannot change the answer here."""

_NEUTRAL_IN_BOTH: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "early_stopping": (False,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "bad_words": ([],),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "logprob_token_ids": (),
    "structured_outputs": (),
}
_NEUTRAL: Mapping[type[SharedBody], Mapping[str, tuple[Any, ...]]] = {
    CompletionBody: {
        **_NEUTRAL_IN_BOTH,
        "best_of": (1,),
        "suffix": ("",),
        "add_special_tokens": (True,),
        "prompt_embeds": (),
    },
    ChatBody: {
        **_NEUTRAL_IN_BOTH,
        "tools": ([],),
        "functions": ([],),
        "tool_choice": ("none", "auto"),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "web_search_options": (),
        "reasoning_effort": (),
        "verbosity": (),
        "echo": (False,),
        "add_special_tokens": (False,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "documents": ([],),
    },
}
"""Members that are known and not there, with the values that change nothing (null never does)."""

_PATH = re.compile(r"`\$\.(\w+)")
_MISSING = re.compile(r"missing required field `(\w+)`")


def parse_body(body: bytes, kind: type[B]) -> B:
    """The body as `kind`. Raises BadParamError, and MalformedError for what is no JSON object."""
    try:
        value = decode(body, kind)
    except MalformedError as error:
        at = _PATH.search(str(error)) or _MISSING.search(str(error))
        if at is None:
            raise
        raise BadParamError(at[1], str(error)) from None
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    for name, raw in decode(body, dict[str, Raw]).items():
        if name not in known and name not in IGNORED:
            _require_neutral(name, raw, kind, known)
    return value


def _require_neutral(name: str, raw: Raw, kind: type[SharedBody], known: set[str]) -> None:
    value = decode(raw, object)
    if value is None:
        return
    neutral = _NEUTRAL[kind].get(name)
    if neutral is None:
        near = nearest_name(name, known)
        advice = f"Did you mean {near!r}?" if near is not None else "docs/http.md lists what there is. Leave it out."
        raise BadParamError(name, f"Unknown member {name!r}, which might change the answer. {advice}")
    if not any(value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in neutral):
        shown = " or ".join(msgspec.json.encode(allowed).decode() for allowed in neutral)
        advice = f"Leave it out, or send {shown}." if shown else "Leave it out."
        raise BadParamError(name, f"{name} is not supported. {advice}")
