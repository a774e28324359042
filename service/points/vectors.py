"""Vectors of points as they are written: what a point may carry, and which numbers an index can hold.

point_vector()     the JSON of one point's vector -> float32, None for a point without
require_usable()   refuses what no index could search: not finite, or lengths whose squares float32 does not hold
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from service.answers import decode
from service.errors import MalformedError, UnsupportedError
from service.names import PointId
from service.vectors import vector_from_json

_SQUARE_MAX, _SQUARE_MIN = 1e36, 1e-32


def point_vector(raw: Raw, id_: PointId, *, dim: int) -> NDArray[np.float32] | None:
    """Float32 (dim,) or None. Raises MalformedError naming the point, UnsupportedError for named, sparse, multi vectors."""
    body = bytes(raw)
    if body == b"null":
        return None
    path = f"the vector of point {id_!r}"
    if body[:1] == b"{":
        members = decode(raw, dict[str, Raw], path=path)
        if not members:
            return None
        if set(members) != {"base64"}:
            for name in members:
                if name in {"indices", "values"}:
                    raise UnsupportedError("sparse vectors")
                if name in {"text", "image", "model", "object"}:
                    raise UnsupportedError("inference", "Send the vector itself.")
                if name:
                    raise UnsupportedError(f"named vectors ({name!r})", 'A point has one vector; its name is "".')
            return point_vector(members[""], id_, dim=dim)
    vector = vector_from_json(raw, path=path)
    if len(vector) != dim:
        raise MalformedError(
            f"Vector dimension error: expected dim: {dim}, got {len(vector)} (point {id_!r}). Nothing was written; was the "
            "vector made by another encoder?"
        )
    return vector


def require_usable(vectors: NDArray[np.float32], ids: Sequence[PointId], *, metric: str) -> None:
    """Raises MalformedError naming the first point whose vector no search could score. vectors float32 (m, dim)."""
    finite = np.isfinite(vectors)
    if not finite.all():
        at, column = (int(x) for x in np.argwhere(~finite)[0])
        raise MalformedError(
            f"The vector of point {ids[at]!r} is not finite in float32 at component {column}. Nothing was written; scale "
            "the vectors, or leave the point out."
        )
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    wrong = squares > _SQUARE_MAX
    if metric == "cosine":
        wrong |= (squares > 0) & (squares < _SQUARE_MIN)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise MalformedError(
            f"The vector of point {ids[at]!r} has length {np.sqrt(squares[at]):.3g}, whose square float32 does not hold. "
            "Nothing was written; scale the vectors."
        )
