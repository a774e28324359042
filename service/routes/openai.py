"""/v1/models, /v1/completions, /v1/chat/completions: OpenAI's interface to decoders that have a model.

What is checked is checked before an answer begins, so that a stream, once its 200 is out, fails only for what nobody could
foresee; it then ends with an error event and without [DONE].
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from service.answers import encode, plain, read_body
from service.errors import ConflictError, NotFoundError, Problem, status_of
from service.routes.context import TIMEOUT_MAX_S, AppParts, number, parts
from service.text import openai_options as options_of
from service.text.generate import generate
from service.text.model import TextModel
from service.text.openai_answers import ChatShape, Choice, CompletionShape, Shape
from service.text.openai_types import ChatBody, CompletionBody, SharedBody, parse_body
from service.text.parts import GenerateOptions, Head, Step
from service.text.prompt import Prompt
from service.text.running import HeldDecoder, Turns

log = logging.getLogger("fullview.openai")

_OWNER = "fullview"
# OpenAI's clients ask again after these, unless they are told not to: the next answer would be the same, or as slow.
_FINAL = frozenset({408, 409, 501, 507})
_NO_RETRY = {"x-should-retry": "false"}
_NO_STORE = {"cache-control": "no-store"}

router = APIRouter(prefix="/v1")


class UnknownModelError(NotFoundError):
    """No decoder of that name has a model."""

    code = "model_not_found"
    param = "model"


def _in_openai_shape(route: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Errors of the route with the member that they are about, and as 400 where OpenAI knows no 422."""

    async def answer(request: Request) -> Response:
        try:
            return await route(request)
        except ClientDisconnect:
            raise
        except Exception as error:
            problem = status_of(error)
            if problem is None:
                raise
            status = 400 if problem.status == 422 else problem.status
            headers = problem.headers | (_NO_RETRY if status in _FINAL else {})
            body = encode(_error_body(problem, error))
            return Response(body, status_code=status, headers=headers, media_type="application/json")

    answer.__name__, answer.__doc__ = route.__name__, route.__doc__
    return answer


@router.get("/models")
@_in_openai_shape
async def models(request: Request) -> Response:
    """Decoders that have a model."""
    shown = [_model(name, created_at) for name, created_at in parts(request).decoders.served()]
    return plain({"object": "list", "data": shown})


@router.get("/models/{model}")
@_in_openai_shape
async def model(request: Request) -> Response:
    """One of them."""
    wanted: str = request.path_params["model"]
    for name, created_at in parts(request).decoders.served():
        if name == wanted:
            return plain(_model(name, created_at))
    raise _unknown(wanted)


@router.post("/completions")
@_in_openai_shape
async def completions(request: Request) -> Response:
    """Text that goes on from a prompt."""
    body = parse_body(await read_body(request), CompletionBody)
    return await _answer(
        request,
        body,
        lambda limits, text: options_of.completion_prompts(body, limits, text),
        lambda limits: options_of.completion_options(body, limits),
    )


@router.post("/chat/completions")
@_in_openai_shape
async def chat(request: Request) -> Response:
    """What the assistant says next."""
    body = parse_body(await read_body(request), ChatBody)
    messages = options_of.messages_of(body)
    return await _answer(
        request,
        body,
        lambda limits, text: [options_of.chat_prompt(messages, limits, text)],
        lambda limits: options_of.chat_options(body, limits),
    )


@dataclass(slots=True)
class _Work:
    """A request that is about to be answered."""

    own: AppParts
    model: str
    turns: Turns
    text: TextModel
    head: Head
    prompts: list[Prompt]
    options: GenerateOptions
    shape: Shape

    def steps(self, prompt: Prompt) -> Iterator[Step]:
        return generate(self.text, self.head, self.text.tokenizer.pieces, prompt, self.options)

    async def run(self, prompt: Prompt) -> AsyncIterator[Step]:
        """The steps of one answer, counted."""
        async for step in self.turns.steps_of(self.steps(prompt)):
            if step.call is not None:
                call = step.call
                self.own.metrics.decoder_done(self.model, call.mode, tokens=call.states, seconds=call.seconds)
            yield step


async def _answer(
    request: Request,
    body: SharedBody,
    prompts_of: Callable[[options_of.Limits, TextModel], list[Prompt]],
    options_for: Callable[[options_of.Limits], GenerateOptions],
) -> Response:
    own = parts(request)
    try:
        lease = own.decoders.lease(body.model)
    except NotFoundError:
        raise _unknown(body.model) from None
    held = HeldDecoder(lease)
    streamed = False
    try:
        turns = Turns(own.engine.pool, held, timeout_s=_timeout_s(request, own))
        text = await _text_of(held, lambda: lease.text)
        if text is None:
            raise _unknown(body.model)
        if text.dim != lease.head.dim:
            raise ConflictError(
                f"Decoder {body.model!r} takes states of {lease.head.dim} numbers, its model gives {text.dim}. "
                "Build it again from that model's own output layer."
            )
        limits = options_of.Limits(
            logprobs_max=own.settings.logprobs_max,
            tokens_max=own.settings.completion_tokens_max,
            prompts_max=own.settings.query_batch_max,
            vocab_size=lease.head.vocab_size,
            context_length=text.context_length,
        )
        options = options_for(limits)
        prompts = await turns.run(partial(prompts_of, limits, text))
        options = replace(options, max_tokens=options_of.tokens_asked(body, limits, prompts))
        work = _Work(own, body.model, turns, text, lease.head, prompts, options, _shape(request, body, text, options))
        if body.stream:
            streamed = True
            return _Streamed(_events(work, request), held)
        return plain(await _whole(work, request))
    finally:
        if not streamed:
            held.release()


async def _whole(work: _Work, request: Request) -> dict[str, object]:
    choices = [Choice(index, len(prompt.ids)) for index, prompt in enumerate(work.prompts)]
    async with work.turns.after(work.own.completions):
        for choice, prompt in zip(choices, work.prompts):
            async for step in work.run(prompt):
                choice.add(step)
                if await request.is_disconnected():
                    raise ClientDisconnect
    return work.shape.whole(choices)


async def _events(work: _Work, request: Request) -> AsyncIterator[bytes]:
    """Server-sent events: a chunk for each step that brought something."""
    choices = [Choice(index, len(prompt.ids)) for index, prompt in enumerate(work.prompts)]
    try:
        async with work.turns.after(work.own.completions):
            for choice, prompt in zip(choices, work.prompts):
                opening = work.shape.opening(choice.index)
                if opening is not None:
                    yield _event(opening)
                async for step in work.run(prompt):
                    choice.count(step)
                    if step.text or step.scores or step.finish_reason is not None:
                        yield _event(work.shape.chunk(choice.index, step))
    except Exception as error:
        problem = status_of(error)
        if problem is None:
            request_id = request.scope["state"]["request_id"]
            log.exception("request %s failed in its stream", request_id)
            problem = Problem(
                status=500, code="internal", sentence=f"The server failed here. The log has more under {request_id}."
            )
        yield _event(_error_body(problem, error))
        return
    if work.shape.usage:
        yield _event(work.shape.usage_chunk(choices))
    yield b"data: [DONE]\n\n"


class _Streamed(StreamingResponse):
    """Lets go of the decoder when it ends, even where the client left before the first event."""

    def __init__(self, events: AsyncIterator[bytes], held: HeldDecoder) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_NO_STORE)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._held.release()


async def _text_of(held: HeldDecoder, load: Callable[[], TextModel | None]) -> TextModel | None:
    """The decoder's model. It is loaded when it is first asked for, which takes seconds: not in the pool."""

    def work() -> TextModel | None:
        try:
            return load()
        finally:
            held.release()

    held.hold()
    return await asyncio.to_thread(work)


def _shape(request: Request, body: SharedBody, text: TextModel, options: GenerateOptions) -> Shape:
    kind, prefix = (ChatShape, "chatcmpl") if isinstance(body, ChatBody) else (CompletionShape, "cmpl")
    shape: Shape = kind(
        id=f"{prefix}-{request.scope['state']['request_id']}",
        created=int(time.time()),
        model=body.model,
        pieces=text.tokenizer.pieces,
        logprobs=options.top_logprobs is not None,
        token_ids=bool(body.return_tokens_as_token_ids),
        usage=bool(body.stream_options is not None and body.stream_options.include_usage),
    )
    return shape


def _timeout_s(request: Request, own: AppParts) -> float:
    given = request.query_params.get("timeout")
    return own.settings.completion_timeout_s if given is None else number(given, "timeout", low=0, high=TIMEOUT_MAX_S)


def _model(name: str, created_at: float) -> dict[str, object]:
    return {"id": name, "object": "model", "created": int(created_at), "owned_by": _OWNER}


def _unknown(name: str) -> UnknownModelError:
    return UnknownModelError(f"The model {name!r} does not exist. GET /v1/models lists the decoders that have a model.")


def _error_body(problem: Problem, error: Exception) -> dict[str, object]:
    kind = "invalid_request_error" if problem.status < 500 else "server_error"
    param = getattr(error, "param", None)
    return {"error": {"message": problem.sentence, "type": kind, "param": param, "code": problem.code}}


def _event(value: object) -> bytes:
    return b"data: " + encode(value) + b"\n\n"
