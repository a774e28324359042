"""What goes over the wire: bodies in, answers and errors out, all by msgspec.

read_json()       body of a request -> a msgspec type, with errors that name line and column or the member
ok()              {"result": ..., "status": "ok", "time": ...}
plain()           a body without envelope (ours: /v1/...)
failure()         the two shapes of errors; OpenAI's for its routes, by speaks_openai()

Invariant: NaN never leaves as null: scores are checked where they are read from the index (hits.py).
"""

from __future__ import annotations

import time
from typing import Any, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from service.allowed import hint
from service.errors import MalformedError, MediaTypeError, Problem

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

DONE = True
"""The result of a change that has no other."""

_OURS_BELOW_V1 = frozenset({"admin", "decoders", "collections"})
"""There are no collections below /v1, but who asks for some there is no client of OpenAI's."""


async def read_json(request: Request, kind: type[T]) -> T:
    """The body as `kind`. Raises MediaTypeError (415) or MalformedError (400)."""
    return decode(await read_body(request), kind)


async def read_body(request: Request) -> bytes:
    """The bytes of a JSON body. Raises MediaTypeError."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise MediaTypeError(
            f"content-type is {content_type!r}, this route reads application/json. Send that header with a JSON body."
        )
    require_no_encoding(request)
    return await request.body()


def require_no_encoding(request: Request) -> None:
    """Raises MediaTypeError for a compressed body."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise MediaTypeError(f"content-encoding is {encoding!r}; bodies are read as they are. Send it uncompressed.")


def decode(body: bytes | msgspec.Raw, kind: type[T], *, path: str = "$") -> T:
    """JSON bytes as `kind`; `path` is where they stood in the body. Raises MalformedError."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    try:
        value: T = decoder.decode(body)
    except msgspec.ValidationError as error:
        what = str(error) if "`$" in str(error) else f"{error} - at `$`"
        raise MalformedError(f"Wrong JSON body: {what.replace('`$', f'`{path}')}.{hint(error, kind)}") from None
    except msgspec.DecodeError as error:
        raise MalformedError(f"The body is no valid JSON: {error}{_line_and_column(body, str(error))}.") from None
    except RecursionError:
        raise MalformedError("The JSON body is nested too deeply. Send it flat.") from None
    except UnicodeDecodeError as error:
        raise MalformedError(f"The body is no valid UTF-8: {error.reason} at byte {error.start}.") from None
    return value


def decode_any(body: bytes | msgspec.Raw, *, path: str = "$") -> Any:
    """JSON bytes as Python's own types. Raises MalformedError."""
    return decode(body, cast("type[Any]", Any), path=path)


def encode(value: Any) -> bytes:
    """Any msgspec value as JSON."""
    return _encoder.encode(value)


def ok(result: Any, started: float) -> Response:
    """A collection route's success; started: time.perf_counter() when the request came."""
    return ok_encoded(_encoder.encode(result), started)


def ok_encoded(result: bytes, started: float) -> Response:
    """The same around a result that is JSON already."""
    took = b"%.9f" % (time.perf_counter() - started)
    body = b'{"result":' + result + b',"status":"ok","time":' + took + b"}"
    return Response(body, media_type="application/json")


def plain(value: Any, *, status: int = 200) -> Response:
    """A body without envelope."""
    return Response(_encoder.encode(value), status_code=status, media_type="application/json")


def speaks_openai(path: str) -> bool:
    """True where clients of OpenAI's interface ask, on routes that are not there as well."""
    parts = path.split("/")
    return parts[1:2] == ["v1"] and len(parts) > 2 and parts[2] not in _OURS_BELOW_V1


def failure(problem: Problem, *, path: str, request_id: str, started: float) -> Response:
    """An error's answer, in the shape that clients of `path` read."""
    body: dict[str, Any]
    if speaks_openai(path):
        kind = "invalid_request_error" if problem.status < 500 else "server_error"
        body = {"error": {"message": problem.sentence, "type": kind, "param": None, "code": problem.code}}
    else:
        body = {
            "status": {"error": problem.sentence},
            "time": time.perf_counter() - started,
            "code": problem.code,
            "request_id": request_id,
        }
    return Response(
        _encoder.encode(body), status_code=problem.status, headers=problem.headers, media_type="application/json"
    )


def _line_and_column(body: bytes | msgspec.Raw, message: str) -> str:
    raw = bytes(body)
    _, found, rest = message.rpartition("(byte ")
    at = int(rest.rstrip(")")) if found else len(raw)
    line = raw.count(b"\n", 0, at) + 1
    column = at - raw.rfind(b"\n", 0, at)
    return f", line {line}, column {column}"
