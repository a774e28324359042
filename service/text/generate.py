"""One answer, step by step: states from the model, tokens from the decoder, text from the tokens.

generate()        an iterator of steps; each is a block of the prompt or one token, so that others get their turn between
                  two of them, and an answer that nobody waits for any more ends by not being asked for its next step

Invariant: no table [tokens, vocabulary] is ever made. A step runs one block of the prompt through the model, or scores a few
of its positions, or does one token.

Not here: threads, deadlines and leases (service.routes.openai); the shapes of answers (openai_answers.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from decoder.answers import Sampled, TopK
from decoder.constraints import Constraints
from decoder.errors import ConstraintError
from service.text.detokenize import Detokenizer
from service.text.parts import DecoderCall, FinishReason, GenerateOptions, Head, Model, Step, TokenScore
from service.text.pieces import Pieces
from service.text.prompt import Prompt
from service.text.stop import StopStrings

BLOCK = 128
"""Positions of a prompt in one step of the model: enough that weights are read seldom, few enough that a step is short."""
SCORED_AT_ONCE = 16
"""Positions of a prompt that are scored in one step; each looks at the whole output layer."""

# The decoder is asked for at least so many candidates: what it draws from does not depend on how many are shown.
_CANDIDATES = 10


def generate(model: Model, head: Head, pieces: Pieces, prompt: Prompt, options: GenerateOptions) -> Iterator[Step]:
    """Steps of one answer; the last one, and no other, has a finish_reason. Raises what model and head raise.

    ConstraintError is raised where constraints leave nothing for the first token; later it ends the answer with
    "constraint". Not thread-safe, but each step may run in another thread.
    """
    scored = options.echo and options.top_logprobs is not None
    if options.echo:
        yield Step(text=prompt.text, scores=_first_of(prompt) if scored else ())
    if options.max_tokens == 0 and not scored:
        yield Step(finish_reason="length")
        return
    reading = model.read()
    states = np.empty((0, 0), np.float32)
    for start in range(0, len(prompt.ids), BLOCK):
        states = reading.hidden(prompt.ids[start : start + BLOCK])
        yield Step()
        if scored:
            yield from _prompt_scores(head, prompt, start, states, top=options.top_logprobs or 0)
    if options.max_tokens == 0:
        yield Step(finish_reason="length")
        return
    answer = _Answer(head, pieces, options, end_ids=model.end_ids, offset=len(prompt.text) if options.echo else 0)
    state = states[-1:]
    while True:
        step = answer.next_token(state)
        yield step
        if step.finish_reason is not None:
            return
        state = reading.hidden(answer.tokens[-1:])


class _Answer:
    """The tokens and the text that came so far."""

    def __init__(
        self, head: Head, pieces: Pieces, options: GenerateOptions, *, end_ids: frozenset[int], offset: int
    ) -> None:
        self._head, self._pieces, self._options = head, pieces, options
        self._end_ids, self._offset = end_ids, offset
        self._text, self._stops = Detokenizer(), StopStrings(options.stop)
        self.tokens: list[int] = []

    def next_token(self, state: NDArray[np.float32]) -> Step:
        """The step that this state leads to."""
        begun = time.perf_counter()
        try:
            sampled = self._sample(state)
        except ConstraintError:
            if not self.tokens:
                raise
            return Step(text=self._rest(), finish_reason="constraint")
        call = DecoderCall(sampled.candidates.mode, 1, time.perf_counter() - begun)
        token_id = int(sampled.token_ids[0])
        self.tokens.append(token_id)
        piece = self._pieces.of(token_id)
        offset = self._offset + self._text.begins(piece)
        text = self._stops.push(self._text.push(piece))
        finish_reason = self._finish_reason(token_id)
        if finish_reason is not None and self._stops.found is None:
            text += self._rest()
            finish_reason = "stop" if self._stops.found is not None else finish_reason
        scores = () if self._options.top_logprobs is None else (self._score(sampled, offset),)
        return Step(text=text, scores=scores, generated=1, finish_reason=finish_reason, call=call)

    def _sample(self, state: NDArray[np.float32]) -> Sampled:
        options = self._options
        constraints = options.constraints
        if constraints is not None and not isinstance(constraints, Constraints):
            constraints = constraints(self.tokens)
        return self._head.sample(
            state,
            sampling=options.sampling,
            constraints=constraints,
            k=max(options.top_logprobs or 0, _CANDIDATES),
            logprobs=options.logprobs,
            step=len(self.tokens),
        )

    def _finish_reason(self, token_id: int) -> FinishReason | None:
        if self._stops.found is not None or token_id in self._end_ids:
            return "stop"
        return "length" if len(self.tokens) >= self._options.max_tokens else None

    def _rest(self) -> str:
        """What was held back: the end of a character that is not whole, the beginning of a stop string."""
        return self._stops.push(self._text.finish()) + self._stops.finish()

    def _score(self, sampled: Sampled, offset: int) -> TokenScore:
        return TokenScore(
            token_id=int(sampled.token_ids[0]),
            logprob=float(sampled.logprobs[0]),
            stderr=float(sampled.logprob_stderr[0]),
            top=_top_of(sampled.candidates, 0, self._options.top_logprobs or 0),
            offset=offset,
        )


def _first_of(prompt: Prompt) -> tuple[TokenScore, ...]:
    return (TokenScore(prompt.ids[0], None, 0.0, (), 0),)


def _prompt_scores(head: Head, prompt: Prompt, start: int, states: NDArray[np.float32], *, top: int) -> Iterator[Step]:
    """Scores of the tokens after positions start, start + 1, ... of the prompt, exact; the last one has none after it."""
    following: Sequence[int] = prompt.ids[start + 1 : start + 1 + len(states)]
    for at in range(0, len(following), SCORED_AT_ONCE):
        ids = following[at : at + SCORED_AT_ONCE]
        some = states[at : at + len(ids)]
        begun = time.perf_counter()
        logprobs, _ = head.logprobs_of(some, np.asarray(ids, np.int32))
        best = head.topk(some, k=top, normalize="exact", mode="exact") if top else None
        yield Step(
            call=DecoderCall("exact", len(ids), time.perf_counter() - begun),
            scores=tuple(
                TokenScore(
                    token_id=token_id,
                    logprob=float(logprobs[row]),
                    stderr=0.0,
                    top=() if best is None else _top_of(best, row, top),
                    offset=prompt.offsets[start + 1 + at + row],
                )
                for row, token_id in enumerate(ids)
            ),
        )


def _top_of(best: TopK, row: int, top: int) -> tuple[tuple[int, float], ...]:
    """The first `top` candidates of a row that are possible at all."""
    count = int(best.counts[row])
    found = zip(best.token_ids[row, :count].tolist(), best.logprobs[row, :count].tolist())
    return tuple((token_id, logprob) for token_id, logprob in found if logprob > -np.inf)[:top]
