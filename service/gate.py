"""The gate: one ASGI layer around every route.

Request ids, the key, the limit on bodies, errors in our shapes, metrics and the log line of a request. It is plain ASGI
and not a Starlette middleware class, because those cost a task and a queue for each request.

Invariant: nothing leaves that FastAPI or Starlette made up themselves, and no 500 without a log line that carries the
id which the client got.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.answers import failure
from service.errors import BodyTooLargeError, NotAuthorizedError, Problem, status_of
from service.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("fullview.http")

OPEN_PATHS = frozenset({"/", "/healthz", "/livez", "/readyz"})
UPLOAD_PATH = "/v1/admin/uploads"
SNAPSHOT_UPLOAD_END = "/snapshots/upload"

# A body over the limit is read on and dropped, up to this many times the limit: a client that is still writing when the
# answer comes sees a broken pipe instead of the 413.
_DRAIN_FACTOR = 8
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """Wraps the application. One for each; keeps no state of requests."""

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self._key = settings.api_key.get_secret_value().encode() if settings.api_key is not None else None
        self._open = OPEN_PATHS | ({"/metrics"} if settings.metrics_open else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope["state"] = {**scope.get("state", {}), "started": started, "request_id": request_id}
        answer = _Answer(send, request_id)
        body = _Body(receive, headers, limit_bytes=self._limit_bytes(scope))
        try:
            self._require_key(scope, headers)
            await body.require_declared_length(headers)
            await self.app(scope, body, answer)
        except ClientDisconnect:
            log.debug("request %s: the client left", request_id)
        except Exception as error:
            problem = status_of(error)
            if problem is None:
                log.exception("request %s failed: %s %s", request_id, scope["method"], scope["path"])
                problem = Problem(status=500, code="internal", sentence=_internal(request_id))
            if answer.status:
                raise  # the answer is under way; the server cuts the connection
            await failure(problem, path=scope["path"], request_id=request_id, started=started)(scope, body, answer)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            seconds = time.perf_counter() - started
            self.metrics.request_done(scope["method"], route, answer.status, seconds)
            # Readiness is asked again and again while collections load; that it is not there yet is no news.
            level = logging.WARNING if answer.status >= 500 and scope["path"] != "/readyz" else logging.DEBUG
            if log.isEnabledFor(level):
                shown = (request_id, scope["method"], scope["path"], answer.status, seconds * 1e3)
                log.log(level, "request %s: %s %s -> %d in %.1f ms", *shown)

    def _limit_bytes(self, scope: Scope) -> int:
        upload = scope["path"] == UPLOAD_PATH or scope["path"].endswith(SNAPSHOT_UPLOAD_END)
        return self.settings.upload_limit_bytes if upload else self.settings.body_limit_bytes

    def _require_key(self, scope: Scope, headers: Headers) -> None:
        if self._key is None or scope["path"] in self._open:
            return
        given = headers.get("api-key")
        if given is None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            given = token.strip() if scheme.lower() == "bearer" else None
        if given is None:
            raise NotAuthorizedError("No API key came. Send it as header api-key, or as Authorization: Bearer.")
        # Headers were decoded as Latin-1, whatever the client meant: back to the bytes that came.
        if not hmac.compare_digest(given.encode("latin-1"), self._key):
            self.metrics.refused("wrong_key")
            raise NotAuthorizedError("The API key is wrong. Send the one that the server was started with.")


class _Answer:
    """send(), which adds the request's id and remembers the status (0: nothing sent yet)."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._request_id = send, request_id
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._request_id.encode())]
        await self._send(message)


class _Body:
    """receive(), which counts bytes and refuses more than the limit after reading on for a while."""

    def __init__(self, receive: Receive, headers: Headers, *, limit_bytes: int) -> None:
        self._receive, self._limit_bytes = receive, limit_bytes
        self._read_bytes = 0
        self._expects_go_ahead = headers.get("expect", "").lower() == "100-continue"

    async def __call__(self) -> Message:
        message = await self._receive()
        self._read_bytes += len(message.get("body", b""))
        if self._read_bytes > self._limit_bytes:
            await self._refuse(message, None)
        return message

    async def require_declared_length(self, headers: Headers) -> None:
        declared = headers.get("content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._limit_bytes:
            # Who asks before sending gets the answer at once; others are writing already.
            await self._refuse(None if self._expects_go_ahead else await self._receive(), int(declared))

    async def _refuse(self, message: Message | None, declared: int | None) -> None:
        while message is not None and message["type"] == "http.request" and message.get("more_body"):
            if self._read_bytes > _DRAIN_FACTOR * self._limit_bytes:
                break
            message = await self._receive()
            self._read_bytes += len(message.get("body", b""))
        came = declared if declared is not None else self._read_bytes
        raise BodyTooLargeError(
            f"The body has {came:,} bytes, the limit is {self._limit_bytes:,}. "
            "Send a smaller batch, or raise body_limit_mb."
        )


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id")
    return given if given is not None and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _internal(request_id: str) -> str:
    return f"The server failed at this request; nothing is wrong with it. The log has more under {request_id}."
