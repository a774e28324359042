"""/v1/decoders: top tokens and sampled tokens of hidden states; /v1/admin/decoders: jobs that build decoders."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from msgspec import Raw
from starlette.responses import Response

from service.answers import plain, read_body, read_json, require_no_encoding
from service.decoder_answers import DecoderAnswer, answer
from service.decoder_info import decoder_info, decoder_row
from service.decoder_requests import DecoderQuery, parse_next, parse_raw_next, parse_raw_topk, parse_topk
from service.errors import NotFoundError
from service.jobs.decoder_request import DecoderBody
from service.jobs.store import Job
from service.routes.builds import shown
from service.routes.context import parts, timeout_s

OCTET_STREAM = "application/octet-stream"

router = APIRouter()


@router.post("/v1/decoders/{name}/topk")
async def topk(request: Request) -> Response:
    """The best tokens of each hidden state, as JSON or as arrays."""
    own = parts(request)
    if _is_raw(request):
        return await _answer(request, parse_raw_topk(await _raw(request), request.query_params, own.settings), raw=True)
    return await _answer(request, parse_topk(await read_body(request), own.settings), raw=False)


@router.post("/v1/decoders/{name}/next")
async def following(request: Request) -> Response:
    """One sampled token of each hidden state, as JSON or as arrays."""
    own = parts(request)
    if _is_raw(request):
        return await _answer(request, parse_raw_next(await _raw(request), request.query_params, own.settings), raw=True)
    return await _answer(request, parse_next(await read_body(request), own.settings), raw=False)


@router.get("/v1/decoders")
async def decoders(request: Request) -> Response:
    """All decoders, by name."""
    return plain({"decoders": [decoder_row(state) for state in parts(request).decoders.all()]})


@router.get("/v1/decoders/{name}")
async def info(request: Request, name: str) -> Response:
    """What a decoder is: layer, recall promised and measured, bytes, what repeats exactly."""
    state = parts(request).decoders.find(name)
    return plain(await asyncio.to_thread(decoder_info, state))


@router.post("/v1/admin/decoders")
async def submit(request: Request) -> Response:
    """Queue a build after checking what can be checked at once; /v1/admin/builds/{job} follows it."""
    own = parts(request)
    body = await read_json(request, DecoderBody)
    raw = Raw(await request.body())

    def queue() -> Job:
        foresight = own.runner.foresee("decoder", raw)
        return own.runner.submit("decoder", body.name, mode=body.mode, request=raw, foresight=foresight)

    return plain(shown(own, await asyncio.to_thread(queue)), status=202)


@router.delete("/v1/admin/decoders/{name}")
async def delete(request: Request, name: str) -> Response:
    """Remove a decoder when its last user is done. A build for it is cancelled."""
    own = parts(request)
    job = await asyncio.to_thread(own.runner.cancel_builds_of, name, builds="decoder")
    deleted = await asyncio.to_thread(own.decoders.delete, name)
    if not deleted and job is None:
        raise NotFoundError(f"Decoder {name!r} does not exist. GET /v1/decoders lists those that do.")
    own.metrics.forget_decoder(name)
    return plain({"deleted": deleted})


def _is_raw(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == OCTET_STREAM


async def _raw(request: Request) -> bytes:
    require_no_encoding(request)
    return await request.body()


async def _answer(request: Request, query: DecoderQuery, *, raw: bool) -> Response:
    own = parts(request)
    # Taken from the path here: as a parameter it would be validated by pydantic for each request.
    name: str = request.path_params["name"]
    threads = own.settings.search_threads
    found: DecoderAnswer = await own.decoders.read(
        name, lambda lease: answer(lease, query, raw=raw, threads=threads), timeout_s=timeout_s(request)
    )
    own.metrics.decoder_done(name, found.mode, tokens=found.states, seconds=found.seconds)
    return Response(found.body, media_type=OCTET_STREAM if raw else "application/json")
