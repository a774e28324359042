"""Members that a body does not have: refused where they stand for one that it has, ignored otherwise.

Qdrant ignores members that it does not know, and so do we. But a query whose `vector` or `limt` is ignored answers
something else than was asked, and nobody notices.

decode_known()   bytes -> a msgspec type that forbids unknown members; harmless ones are dropped, slips refused
refuse_slip()    one name that is not known

Invariant: a body without unknown members is read once; only one that has some is looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw

from service.answers import decode, encode
from service.edits import nearest_name
from service.errors import MalformedError

T = TypeVar("T", bound=msgspec.Struct)

_QUERY = "query: a vector, or the id of a point"
_LIMIT = "limit: how many points"
_FILTER = "filter"
_PAYLOAD_AND_VECTOR = {
    "with_vectors": "with_vector",
    "include_vector": "with_vector",
    "include_payload": "with_payload",
    "payload": "with_payload",
}

OF_QUERIES: Mapping[str, str] = {
    **dict.fromkeys(("vector", "vectors", "query_vector", "embedding", "search", "nearest"), _QUERY),
    **dict.fromkeys(("positive", "negative", "target", "context"), _QUERY),
    **dict.fromkeys(("top", "top_k", "k", "n", "size"), _LIMIT),
    **dict.fromkeys(("where", "query_filter"), _FILTER),
    **_PAYLOAD_AND_VECTOR,
    "skip": "offset",
    "threshold": "score_threshold",
    "search_params": "params",
    **{name: f"params.{name}" for name in ("hnsw_ef", "exact", "recall", "beam", "probes", "rerank")},
    "ef": "params.beam",
    "nprobe": "params.probes",
}
"""What older Qdrant, other products and common slips call our members of a query."""

OF_LISTS: Mapping[str, str] = {
    **dict.fromkeys(("top", "top_k", "k", "n", "size"), _LIMIT),
    **dict.fromkeys(("where", "scroll_filter", "count_filter"), _FILTER),
    **_PAYLOAD_AND_VECTOR,
    "next_page_offset": "offset",
    "id": "ids",
    "points": "ids",
}
"""The same for scroll, count and retrieve; each takes those whose right name it has."""


def decode_known(body: bytes | Raw, kind: type[T], instead: Mapping[str, str], *, path: str = "$") -> T:
    """`body` as `kind`, a struct that forbids unknown members. Raises MalformedError, also for a slip."""
    try:
        return decode(body, kind, path=path)
    except MalformedError:
        members = decode(body, dict[str, Raw], path=path)
        known = tuple(field.encode_name for field in msgspec.structs.fields(kind))
        unknown = [name for name in members if name not in known]
        if not unknown:
            raise
        for name in unknown:
            if bytes(members[name]) != b"null":
                refuse_slip(name, known, instead, path=path)
        return decode(encode({name: members[name] for name in known if name in members}), kind, path=path)


def refuse_slip(name: str, known: Collection[str], instead: Mapping[str, str], *, path: str) -> None:
    """Raises MalformedError where the unknown `name` stands for a known one; `instead`: foreign name -> what is right."""
    right = instead.get(name)
    if right is not None and right.partition(":")[0].partition(".")[0] in known:
        raise MalformedError(f"Unknown member {name!r} at {path}. Its name here is {right}.")
    near = nearest_name(name, known)
    if near is not None:
        raise MalformedError(f"Unknown member {name!r} at {path}. Did you mean {near!r}?")
