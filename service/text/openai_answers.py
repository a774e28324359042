"""Answers of OpenAI's shape: whole ones, chunks of streamed ones, log-probabilities in the two forms.

Choice                               one answer as its steps come
CompletionShape, ChatShape           whole() and chunk() of one request
completion_logprobs chat_logprobs    scores -> lists, or entries

Invariant: no NaN and no infinity: what is impossible is left out, what is below -9999 is written -9999.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from service.text.parts import FinishReason, Step, TokenScore
from service.text.pieces import Pieces

LOGPROB_MIN = -9999.0


@dataclass(slots=True)
class Choice:
    """One answer of a request, as its steps come."""

    index: int
    prompt_tokens: int
    completion_tokens: int = 0
    finish_reason: FinishReason | None = None
    texts: list[str] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Take a step on, for a whole answer."""
        self.count(step)
        self.texts.append(step.text)
        self.scores += step.scores

    def count(self, step: Step) -> None:
        """Take on what usage tells, for a streamed one, whose text is gone already."""
        self.completion_tokens += step.generated
        self.finish_reason = step.finish_reason


class Shape(Protocol):
    """How one of the two routes shows an answer."""

    @property
    def usage(self) -> bool:
        """True where a last chunk tells the usage."""
        ...

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The answer."""
        ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk before the first text of a choice, where there is one."""
        ...

    def chunk(self, index: int, step: Step) -> dict[str, Any]:
        """What a step brought."""
        ...

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The last chunk, with no choices."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What both have. token_ids: tokens are shown as `token_id:17`; usage: chunks have a member usage, null until the end."""

    id: str
    created: int
    model: str
    pieces: Pieces
    logprobs: bool
    token_ids: bool = False
    usage: bool = False

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.token_ids else self.pieces.name(token_id)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head(kind), "choices": choices, **({"usage": None} if self.usage else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape(_Shape):
    """/v1/completions."""

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The answer."""
        shown = [
            self._choice(choice.index, "".join(choice.texts), choice.scores, choice.finish_reason) for choice in choices
        ]
        return {**self._head("text_completion"), "choices": shown, "usage": usage_of(choices)}

    def opening(self, index: int) -> dict[str, Any] | None:
        """None: text comes at once."""
        return None

    def chunk(self, index: int, step: Step) -> dict[str, Any]:
        """What a step brought."""
        return self._chunk("text_completion", [self._choice(index, step.text, step.scores, step.finish_reason)])

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The last chunk."""
        return {**self._chunk("text_completion", []), "usage": usage_of(choices)}

    def _choice(
        self, index: int, text: str, scores: Sequence[TokenScore], finish_reason: FinishReason | None
    ) -> dict[str, Any]:
        logprobs = completion_logprobs(scores, self) if self.logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape(_Shape):
    """/v1/chat/completions."""

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The answer."""
        shown = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
                "logprobs": self._logprobs(choice.scores),
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return {**self._head("chat.completion"), "choices": shown, "usage": usage_of(choices)}

    def opening(self, index: int) -> dict[str, Any] | None:
        """Who speaks."""
        return self._delta(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, index: int, step: Step) -> dict[str, Any]:
        """What a step brought."""
        delta = {"content": step.text} if step.text or step.scores else {}
        return self._delta(index, delta, self._logprobs(step.scores), step.finish_reason)

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The last chunk."""
        return {**self._chunk("chat.completion.chunk", []), "usage": usage_of(choices)}

    def _delta(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: FinishReason | None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._chunk("chat.completion.chunk", [choice])

    def _logprobs(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        return {"content": chat_logprobs(scores, self), "refusal": None} if self.logprobs else None


def completion_logprobs(scores: Sequence[TokenScore], shape: _Shape) -> dict[str, Any]:
    """Lists of the legacy form, an entry a token; logprob_stderr is ours."""
    return {
        "tokens": [shape.name(score.token_id) for score in scores],
        "token_logprobs": [_written(score.logprob) for score in scores],
        "top_logprobs": [_top_map(score, shape) for score in scores],
        "text_offset": [score.offset for score in scores],
        "logprob_stderr": [None if score.logprob is None else score.stderr for score in scores],
    }


def chat_logprobs(scores: Sequence[TokenScore], shape: _Shape) -> list[dict[str, Any]]:
    """An entry a token, with its candidates; logprob_stderr is ours."""
    return [
        {
            **_entry(score.token_id, score.logprob, shape),
            "logprob_stderr": score.stderr,
            "top_logprobs": [_entry(token_id, logprob, shape) for token_id, logprob in score.top],
        }
        for score in scores
    ]


def usage_of(choices: Sequence[Choice]) -> dict[str, int]:
    """Tokens read and generated."""
    prompt = sum(choice.prompt_tokens for choice in choices)
    generated = sum(choice.completion_tokens for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _top_map(score: TokenScore, shape: _Shape) -> dict[str, float | None] | None:
    """Candidates and the token itself; of several that are shown alike, the most probable."""
    if score.logprob is None:
        return None
    shown: dict[str, float | None] = {}
    for token_id, logprob in (*score.top, (score.token_id, score.logprob)):
        shown.setdefault(shape.name(token_id), _written(logprob))
    return shown


def _entry(token_id: int, logprob: float | None, shape: _Shape) -> dict[str, Any]:
    special = token_id in shape.pieces.special
    piece = shape.pieces.name(token_id).encode() if special else shape.pieces.of(token_id)
    return {"token": shape.name(token_id), "logprob": _written(logprob), "bytes": list(piece)}


def _written(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOGPROB_MIN)
