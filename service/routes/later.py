"""Routes of the interface that are not there: they answer 501 and name what is missing, so that nobody takes them for a
misspelt path.

LATER   not there yet; an entry goes when its feature comes
OLDER   gone from Qdrant since points/query does their work; they say how to ask there
below points/ what no route takes is answered here too, so that no word is taken for a point's id
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from service.edits import nearest_name
from service.errors import NotFoundError, UnsupportedError

_POINTS = "/collections/{collection}/points"

LATER: tuple[tuple[str, str, str], ...] = (
    ("POST", f"{_POINTS}/search/matrix/pairs", "search matrix"),
    ("POST", f"{_POINTS}/search/matrix/offsets", "search matrix"),
    ("GET", "/v1/admin/memory", "the memory route"),
    ("GET", "/v1/admin/settings", "the settings route"),
)

_ONE = 'Send POST points/query with {"query": vector or id, "limit": ...}.'
_BATCH = 'Send POST points/query/batch with {"searches": [{"query": vector or id}, ...]}.'
_LIKE = 'POST points/query with {"query": id} finds what is like one point; several examples are not there.'
_PAIRS = "Nothing stands for it; POST points/query takes a vector or an id."
_GROUPS = 'Send POST points/query/groups with {"query": vector or id, "group_by": ...}.'

OLDER: tuple[tuple[str, str, str], ...] = (
    ("POST", f"{_POINTS}/search", _ONE),
    ("POST", f"{_POINTS}/search/batch", _BATCH),
    ("POST", f"{_POINTS}/search/groups", _GROUPS),
    ("POST", f"{_POINTS}/recommend", _LIKE),
    ("POST", f"{_POINTS}/recommend/batch", _LIKE),
    ("POST", f"{_POINTS}/recommend/groups", _GROUPS),
    ("POST", f"{_POINTS}/discover", _PAIRS),
    ("POST", f"{_POINTS}/discover/batch", _PAIRS),
)

router = APIRouter()


def _refusal(feature: str, advice: str = "") -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise UnsupportedError(feature, advice)

    return refuse


for _method, _path, _feature in LATER:
    router.add_api_route(_path, _refusal(_feature), methods=[_method], name=f"later: {_feature}")
for _method, _path, _advice in OLDER:
    _word = _path.removeprefix(f"{_POINTS}/")
    router.add_api_route(_path, _refusal(f"points/{_word}", _advice), methods=[_method], name=f"older: {_word}")


@router.api_route(f"{_POINTS}/{{rest:path}}", methods=["POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def nothing_there(request: Request) -> Response:
    """No other route took it: 405 where the path is one of ours or a point's, else 404."""
    rest: str = request.path_params["rest"]
    takes = _methods_of_points(request)
    if rest in takes or _is_id(rest):
        raise HTTPException(405, headers={"allow": ", ".join(sorted(takes.get(rest, {"GET"})))})
    near = nearest_name(rest, takes)
    advice = f"Did you mean points/{near}?" if near is not None else "Queries go to POST points/query."
    raise NotFoundError(f"There is no route {request.method} {request.url.path!r}. {advice} docs/http.md lists all.")


def _methods_of_points(request: Request) -> dict[str, set[str]]:
    """What stands below points/, and the methods that it takes."""
    return {
        path.removeprefix(f"{_POINTS}/"): {method.upper() for method in operations}
        for path, operations in request.app.openapi()["paths"].items()
        if path.startswith(f"{_POINTS}/") and "{" not in path.removeprefix(f"{_POINTS}/")
    }


def _is_id(word: str) -> bool:
    """True for what is rather an id than a misspelt route: digits or a UUID."""
    try:
        return word.isdigit() or bool(uuid.UUID(word))
    except ValueError:
        return False
