"""The first searches of an index that has just been opened, so that no user's query is the first.

warm()         one search of each kind that queries make: one as JSON, some as JSON, one and some as raw vectors
warm_delta()   the same of what was written, which no index has to be opened for

What it costs is paid before the index serves: loading (or, once on a machine, compiling) the kernels, and the memory
that searches keep for the next ones. Invariant: the way is that of real queries, from their bytes to an answer's.
"""

from __future__ import annotations

import contextlib

import numpy as np

from index.allowed import AllowedRows
from index.options import SearchOptions
from service.answers import encode
from service.errors import UnsupportedError
from service.generation import SearchableIndex
from service.hits import answer_queries, answer_raw, encode_raw, ids_in_order
from service.points.delta import Delta
from service.points.entries import Entry, EntryKind
from service.points.view import PointsView
from service.query import parse_query
from service.settings import Settings
from service.vectors import vectors_from_bytes

_LIMIT = 10
# More than one group of pages that a search asks for together, and than one query a thread.
_SOME = 20


def warm_delta() -> None:
    """The kernels that search what was written, before the first write: else the first query after it loads them."""
    for metric in ("cosine", "dot", "l2"):
        delta = Delta(dim=8, metric=metric, n=0, rows_of=lambda ids: np.full(len(ids), -1, np.int64))
        vectors = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
        delta.add([Entry(i, EntryKind.WHOLE, vector, b'{"n":1}') for i, vector in enumerate(vectors)])
        view = PointsView(None, delta.view, dim=8, metric=metric)
        view.search(vectors[:2], _LIMIT, SearchOptions())


def _warm_allowed(index: SearchableIndex, vectors: np.ndarray) -> None:
    """Searches among nearly all rows, some, few and none: what filters and hidden rows make of a search."""
    for share in (0.99, 0.5, 0.02, 0.0):
        allowed = AllowedRows(np.arange(index.n) < max(share * index.n, share > 0))
        for options in (SearchOptions(), SearchOptions(exact=True)):
            index.search(vectors[:2], k=min(_LIMIT, index.n), options=options, allowed=allowed)


def warm(index: SearchableIndex, settings: Settings) -> None:
    """Raises what searches of a damaged index raise."""
    vectors = np.random.default_rng(0).standard_normal((_SOME, index.dim)).astype("<f4")
    limit = min(_LIMIT, settings.query_limit_max)
    view = PointsView(index, None, dim=index.dim, metric=str(index.metric.value))
    ids, _ = ids_in_order(view, None, 1)
    bodies = [
        {"query": vectors[0].tolist(), "limit": limit, "with_payload": True, "with_vector": True},
        *({"query": vector.tolist(), "limit": limit} for vector in vectors),
    ]
    # By id only where the stored vector can be a query: under cosine a zero vector has no direction.
    first = index.vectors(index.ids.rows_of(ids))
    if first.any():
        bodies.append({"query": ids[0], "limit": limit})
    queries = [parse_query(encode(body), settings) for body in bodies]
    encode(answer_queries(view, queries[:1]).points)
    encode(answer_queries(view, queries).points)
    _warm_allowed(index, vectors)
    with contextlib.suppress(UnsupportedError):  # there is no raw form for string ids
        for count in (1, _SOME):
            some = vectors_from_bytes(vectors[:count].tobytes(), dim=index.dim)
            encode_raw([answer_raw(view, some, k=limit, offset=0, options=SearchOptions())])
