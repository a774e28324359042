"""A server of ours from the outside: JSON requests over HTTP, with the standard library alone.

Connection     request() sends one and returns its result
pieces()       points in as many pieces as bodies of a size take
RequestFailedError   what the server refused, with its sentence
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any


class RequestFailedError(RuntimeError):
    """status: of the answer; the text is the server's sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        super().__init__(f"{sentence} (HTTP {status})")


BODY_BYTES = 16_000_000
"""Of a request that writes points: half of what a server takes by default."""


def pieces(points: Iterable[dict[str, Any]], *, body_bytes: int = BODY_BYTES) -> Iterator[list[dict[str, Any]]]:
    """Points in their order, split so that each piece is about body_bytes of JSON at most; a larger point is a piece."""
    piece: list[dict[str, Any]] = []
    size = 0
    for point in points:
        own = len(json.dumps(point)) + 2
        if piece and size + own > body_bytes:
            yield piece
            piece, size = [], 0
        piece.append(point)
        size += own
    if piece:
        yield piece


class Connection:
    """Threads: any; each request has a connection of its own."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 60.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url is {url!r}; it must begin with http:// or https://.")
        self._url, self._timeout_s = url.rstrip("/"), timeout_s
        self._headers = {"content-type": "application/json"} | ({} if api_key is None else {"api-key": api_key})

    def request(self, method: str, *path: str, body: Any = None) -> Any:
        """`result` of the answer. path: its parts, not yet quoted. Raises RequestFailedError, or OSError where none came."""
        url = "/".join([self._url, *(urllib.parse.quote(part, safe="") for part in path)])
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                return json.load(answer)["result"]
        except urllib.error.HTTPError as error:
            with error:
                raise RequestFailedError(error.code, _sentence(error.read())) from None


def _sentence(body: bytes) -> str:
    try:
        sentence = json.loads(body)["status"]["error"]
    except (ValueError, TypeError, KeyError):
        return body.decode("utf-8", "replace")[:500]
    return str(sentence)
