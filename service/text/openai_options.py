"""From a body of OpenAI's shape to prompts and GenerateOptions. Everything is checked here, before an answer begins.

completion_options() chat_options()   GenerateOptions, without the number of tokens
messages_of()                         messages as the chat template takes them
completion_prompts() chat_prompt()    Prompts; encoding takes a while: not on the event loop
tokens_asked()                        how many tokens an answer gets

Invariant: what is wrong is a BadParamError, which names the member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from decoder.constraints import Constraints, plan
from decoder.errors import ConstraintError
from decoder.sampling import SEED_MAX, SamplingOptions
from service.text.openai_types import BadParamError, ChatBody, CompletionBody, SharedBody
from service.text.parts import GenerateOptions, LogprobsMode, Model
from service.text.prompt import Prompt, prompt_of
from service.text.tokenizer import TextTokenizer

COMPLETION_TOKENS = 16
"""max_tokens of a completion where none is given, as OpenAI has it; a chat goes on to its end or its limit."""

_STOPS_MAX = 4
_BIAS_MAX = 100.0
_TEMPERATURE_MAX = 2.0
_TOP_K_MAX = 2**31 - 1
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MESSAGE_MEMBERS = frozenset({"role", "content", "name"})

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of the service's settings and of one decoder with its model."""

    logprobs_max: int
    tokens_max: int
    prompts_max: int
    vocab_size: int
    context_length: int | None


class TextSide(Model, Protocol):
    """What is asked of a model beside its states."""

    tokenizer: TextTokenizer
    context_length: int | None
    rows: int


def completion_options(body: CompletionBody, limits: Limits) -> GenerateOptions:
    """Of a completion. Raises BadParamError."""
    top = None if body.logprobs is None else _top("logprobs", body.logprobs, limits)
    return _options(body, limits, top=top, echo=bool(body.echo))


def chat_options(body: ChatBody, limits: Limits) -> GenerateOptions:
    """Of a chat. Raises BadParamError."""
    top = None
    if body.logprobs:
        top = _top("top_logprobs", body.top_logprobs or 0, limits)
    elif body.top_logprobs:
        raise BadParamError("top_logprobs", "top_logprobs needs logprobs: true. Send both, or neither.")
    return _options(body, limits, top=top, echo=False)


def tokens_asked(body: SharedBody, limits: Limits, prompts: Sequence[Prompt]) -> int:
    """max_tokens of every prompt. Raises BadParamError where they do not fit into the model's context."""
    longest = max(len(prompt.ids) for prompt in prompts)
    room = None if limits.context_length is None else limits.context_length - longest
    name, asked, low = "max_tokens", body.max_tokens, 0
    if isinstance(body, ChatBody):
        low = 1
        if body.max_completion_tokens is not None:
            if asked is not None and asked != body.max_completion_tokens:
                raise BadParamError("max_tokens", "max_tokens and max_completion_tokens differ. Send one of them.")
            name, asked = "max_completion_tokens", body.max_completion_tokens
    elif asked is None:
        asked = COMPLETION_TOKENS
    if asked is None:
        return limits.tokens_max if room is None else max(1, min(limits.tokens_max, room))
    _between(name, asked, low, limits.tokens_max, setting="completion_tokens_max")
    if room is not None and asked > room:
        raise BadParamError(
            name,
            f"The model's context has {limits.context_length} tokens; the prompt has {longest}, and {name} asks for "
            f"{asked} more. Shorten the prompt, or ask for fewer.",
        )
    return asked


def completion_prompts(body: CompletionBody, limits: Limits, text: TextSide) -> list[Prompt]:
    """The prompts of a completion: one or several, as text or token ids. Raises BadParamError."""
    given = body.prompt
    if isinstance(given, str) or (given and all(isinstance(one, int) for one in given)):
        given = [cast("str | list[int]", given)]
    if not given or any(isinstance(one, int) for one in given):
        raise BadParamError("prompt", "prompt is a text, token ids, or a list of either; this list is empty or mixed.")
    if len(given) > limits.prompts_max:
        raise BadParamError(
            "prompt",
            f"{len(given)} prompts came in one request, the limit is {limits.prompts_max}. "
            "Send fewer, or raise query_batch_max.",
        )
    return [_prompt(cast("str | list[int]", one), limits, text) for one in given]


def chat_prompt(messages: Sequence[Mapping[str, str]], limits: Limits, text: TextSide) -> Prompt:
    """The prompt of a conversation. Raises BadParamError; MalformedError where the template refuses it."""
    length = sum(len(message["content"]) for message in messages)
    _require_length("messages", length, limits, text)
    return _checked("messages", prompt_of(text.tokenizer.encode_chat(messages), text.tokenizer.pieces), limits, text)


def messages_of(body: ChatBody) -> list[dict[str, str]]:
    """role, content and, where one is given, name of each message. Raises BadParamError."""
    if not body.messages:
        raise BadParamError("messages", "messages is empty. Send one at least.")
    return [_message(one, f"messages[{place}]") for place, one in enumerate(body.messages)]


def _message(given: Mapping[str, Any], path: str) -> dict[str, str]:
    for member, value in given.items():
        if member not in _MESSAGE_MEMBERS and value not in (None, [], ""):
            raise BadParamError(f"{path}.{member}", f"{path}.{member} is not supported. Send role and content.")
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadParamError(f"{path}.role", f"{path}.role is {role!r}; it may be one of {', '.join(_ROLES)}.")
    message = {"role": _ROLES[role], "content": _content(given.get("content"), path)}
    name = given.get("name")
    if name is not None and not isinstance(name, str):
        raise BadParamError(f"{path}.name", f"{path}.name is {name!r}; a string is needed.")
    return message if name is None else {**message, "name": name}


def _content(content: Any, path: str) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise BadParamError(f"{path}.content", f"{path}.content must be a text, or a list of parts of type text.")
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadParamError(f"{path}.content", f"{path}.content has a part that is no text; only text is read.")
    return "".join(part["text"] for part in parts)


def _prompt(given: str | list[int], limits: Limits, text: TextSide) -> Prompt:
    tokenizer = text.tokenizer
    if isinstance(given, str):
        _require_length("prompt", len(given), limits, text)
        made = prompt_of(tokenizer.encode(given), tokenizer.pieces, text=given)
    else:
        made = prompt_of(_known(given, limits), tokenizer.pieces, strips_first_space=tokenizer.strips_first_space)
    return _checked("prompt", made, limits, text)


def _known(ids: list[int], limits: Limits) -> list[int]:
    for token_id in ids:
        if not 0 <= token_id < limits.vocab_size:
            raise BadParamError(
                "prompt",
                f"Token id {token_id} in prompt is outside the vocabulary of {limits.vocab_size} tokens; "
                f"0 to {limits.vocab_size - 1} are needed.",
            )
    return ids


def _checked(param: str, prompt: Prompt, limits: Limits, text: TextSide) -> Prompt:
    if not prompt.ids:
        raise BadParamError(param, f"{param} has no tokens. Send some text.")
    if limits.context_length is not None and len(prompt.ids) > limits.context_length:
        raise _too_long(param, f"{len(prompt.ids)} tokens", limits)
    highest = max(prompt.ids)
    if highest >= min(limits.vocab_size, text.rows):
        raise BadParamError(
            param,
            f"{param} has token id {highest}; the decoder knows {limits.vocab_size} tokens, the model {text.rows}. "
            "Leave that token out.",
        )
    return prompt


def _require_length(param: str, characters: int, limits: Limits, text: TextSide) -> None:
    """Refuses a text that cannot fit whatever its tokens are, before it is encoded."""
    if limits.context_length is not None and characters > limits.context_length * text.tokenizer.characters_max:
        raise _too_long(param, f"{characters:,} characters", limits)


def _too_long(param: str, came: str, limits: Limits) -> BadParamError:
    return BadParamError(
        param, f"{param} has {came}; the model's context has {limits.context_length} tokens. Shorten it."
    )


def _options(body: SharedBody, limits: Limits, *, top: int | None, echo: bool) -> GenerateOptions:
    if body.stream_options is not None and not body.stream:
        raise BadParamError("stream_options", "stream_options goes with stream: true. Send both, or neither.")
    if body.logprobs_mode not in (None, "raw", "processed"):
        raise BadParamError("logprobs_mode", f"logprobs_mode is {body.logprobs_mode!r}; it may be raw or processed.")
    return GenerateOptions(
        max_tokens=0,
        sampling=_sampling(body),
        constraints=_constraints(body, limits),
        stop=_stops(body.stop),
        echo=echo,
        top_logprobs=top,
        logprobs=cast("LogprobsMode", body.logprobs_mode or "raw"),
    )


def _sampling(body: SharedBody) -> SamplingOptions:
    if body.seed is not None and not -SEED_MAX - 1 <= body.seed <= SEED_MAX:
        raise BadParamError("seed", f"seed is {body.seed}; a whole number of 64 bits is needed.")
    if body.top_p is not None and not 0.0 < body.top_p <= 1.0:
        raise BadParamError("top_p", f"top_p is {body.top_p:g}; it must be above 0 and at most 1.")
    return SamplingOptions(
        temperature=_between("temperature", _or(body.temperature, 1.0), 0.0, _TEMPERATURE_MAX),
        top_k=_between("top_k", _or(body.top_k, 0), -1, _TOP_K_MAX),
        top_p=_or(body.top_p, 1.0),
        min_p=_between("min_p", _or(body.min_p, 0.0), 0.0, 1.0),
        seed=None if body.seed is None else body.seed & SEED_MAX,
    )


def _constraints(body: SharedBody, limits: Limits) -> Constraints | None:
    bias = body.logit_bias or {}
    for token_id, value in bias.items():
        if not -_BIAS_MAX <= value <= _BIAS_MAX:
            raise BadParamError("logit_bias", f"logit_bias of token {token_id} is {value:g}; it may be -100 to 100.")
    made = Constraints(
        logit_bias={token_id: value for token_id, value in bias.items() if value > -_BIAS_MAX},
        # OpenAI's -100 bans, whatever the logits are.
        banned=[token_id for token_id, value in bias.items() if value == -_BIAS_MAX],
        allowed=body.allowed_token_ids,
    )
    if not bias and body.allowed_token_ids is None:
        return None
    _plan("logit_bias", Constraints(logit_bias=bias), limits)
    _plan("allowed_token_ids" if body.allowed_token_ids is not None else "logit_bias", made, limits)
    return made


def _plan(param: str, constraints: Constraints, limits: Limits) -> None:
    try:
        plan(constraints, limits.vocab_size)
    except ConstraintError as error:
        raise BadParamError(param, f"{param}: {error}") from None


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = tuple([stop] if isinstance(stop, str) else stop or ())
    if len(stops) > _STOPS_MAX:
        raise BadParamError("stop", f"{len(stops)} stop strings came; {_STOPS_MAX} are the most.")
    if "" in stops:
        raise BadParamError("stop", "stop has an empty string, which would end every answer at once. Leave it out.")
    return stops


def _top(name: str, value: int, limits: Limits) -> int:
    return _between(name, value, 0, limits.logprobs_max, setting="logprobs_max")


def _between(name: str, value: N, low: N, high: N, *, setting: str | None = None) -> N:
    """value. Raises BadParamError; setting: where the upper bound is set."""
    if low <= value <= high:
        return value
    where = f" (the setting {setting})" if setting is not None else ""
    raise BadParamError(name, f"{name} is {value:g}; it must be {low:g} to {high:g}{where}.")


def _or(value: N | None, otherwise: N) -> N:
    return otherwise if value is None else value
