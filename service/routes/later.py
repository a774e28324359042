"""Routes of the interface that are not there yet: they answer 501 and name what is missing, so that nobody takes them
for a misspelt path. Each entry goes when its feature comes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.errors import UnsupportedError

_POINTS = "/collections/{collection}/points"
_WRITES = "writing points"

LATER: tuple[tuple[str, str, str], ...] = (
    ("PATCH", "/collections/{collection}", "changing a collection"),
    ("PUT", _POINTS, _WRITES),
    ("POST", f"{_POINTS}/delete", _WRITES),
    ("PUT", f"{_POINTS}/vectors", _WRITES),
    ("POST", f"{_POINTS}/vectors/delete", _WRITES),
    ("POST", f"{_POINTS}/payload", _WRITES),
    ("PUT", f"{_POINTS}/payload", _WRITES),
    ("POST", f"{_POINTS}/payload/delete", _WRITES),
    ("POST", f"{_POINTS}/payload/clear", _WRITES),
    ("POST", f"{_POINTS}/batch", _WRITES),
    ("POST", f"{_POINTS}/query/groups", "groups"),
    ("POST", f"{_POINTS}/search/matrix/pairs", "search matrix"),
    ("POST", f"{_POINTS}/search/matrix/offsets", "search matrix"),
    ("POST", "/collections/{collection}/facet", "facets"),
    ("PUT", "/collections/{collection}/index", "payload indexes"),
    ("DELETE", "/collections/{collection}/index/{field}", "payload indexes"),
    ("GET", "/collections/{collection}/snapshots", "snapshots"),
    ("POST", "/collections/{collection}/snapshots", "snapshots"),
    ("GET", "/collections/{collection}/snapshots/{name}", "snapshots"),
    ("DELETE", "/collections/{collection}/snapshots/{name}", "snapshots"),
    ("PUT", "/collections/{collection}/snapshots/recover", "snapshots"),
    ("POST", "/collections/{collection}/snapshots/upload", "snapshots"),
    ("POST", "/v1/admin/collections/{collection}/compact", "compaction"),
    ("GET", "/v1/admin/memory", "the memory route"),
    ("GET", "/v1/admin/settings", "the settings route"),
)

router = APIRouter()


def _refusal(feature: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise UnsupportedError(feature)

    return refuse


for _method, _path, _feature in LATER:
    router.add_api_route(_path, _refusal(_feature), methods=[_method], name=f"later: {_feature}")
