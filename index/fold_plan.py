"""What a fold starts from: the changes, checked, and where every row and node of the new generation comes from.

Changes    what the caller wants
Given      changes that fit the old generation: dtype, ids, sources
Placing    the new generation's nodes and rows, in disk order
A source is a row of the old generation, or n and on: a new row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import DuplicateIdError, OptionsError, ShapeMismatchError
from index.folder import Generation
from index.ids import canonical_id
from index.passes import rows_by_id
from index.preview import Groups

PAYLOADS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What differs between an old generation of n rows and the new one.

    ids: of the new rows; none of them is a kept row's. payloads: of the new rows, JSON objects as bytes, or None.
    new_payloads: old row -> its payload from now on; of rows that do not stay it means nothing.
    """

    keep: NDArray[np.bool_]
    vectors: NDArray[Any]
    ids: Sequence[int | str]
    payloads: Sequence[bytes | None]
    new_payloads: Mapping[int, bytes | None]


class Given:
    """Changes that fit. vectors: of the new rows, in the new generation's dtype; kept int64: old rows that stay."""

    def __init__(self, old: Generation, changes: Changes) -> None:
        _require_fit(old, changes)
        self.old, self.changes = old, changes
        self.kept = np.flatnonzero(changes.keep).astype(np.int64)
        self.n = len(self.kept) + len(changes.vectors)
        self.vectors = _as_stored(changes.vectors, old.dtype)
        self.dtype = self.vectors.dtype
        new_ids = [canonical_id(i) for i in changes.ids]
        _require_new(old, changes, new_ids)
        self.ids = _all_ids(old, new_ids)
        """Of every source, whether it stays or not."""
        self.has_payload = (
            old.payload is not None
            or any(p is not None for p in changes.payloads)
            or any(p is not None for p in changes.new_payloads.values())
        )

    @property
    def sources(self) -> NDArray[np.int64]:
        """Those of the new generation: kept rows, then new ones."""
        return np.concatenate([self.kept, np.arange(len(self.vectors)) + self.old.n])

    def ids_of(self, sources: NDArray[np.int64]) -> Any:
        """Ids of sources: an array of integers, or a list where strings are."""
        return self.ids[sources] if isinstance(self.ids, np.ndarray) else [self.ids[s] for s in sources.tolist()]

    def payloads_of(self, sources: NDArray[np.int64]) -> list[bytes | None]:
        """Payloads of sources."""
        old, changes = self.old, self.changes
        stored = [s for s in sources.tolist() if s < old.n and s not in changes.new_payloads]
        read = dict(zip(stored, old.payload.get(stored))) if old.payload is not None else {}
        found = []
        for source in sources.tolist():
            if source >= old.n:
                found.append(changes.payloads[source - old.n])
            else:
                found.append(changes.new_payloads[source] if source in changes.new_payloads else read.get(source))
        return found

    def payloads(self, sources: NDArray[np.int64]) -> Iterator[bytes | None]:
        """The same, a thousand at a time."""
        for start in range(0, len(sources), PAYLOADS_AT_ONCE):
            yield from self.payloads_of(sources[start : start + PAYLOADS_AT_ONCE])


def _require_fit(old: Generation, changes: Changes) -> None:
    keep, vectors = np.asarray(changes.keep), np.asarray(changes.vectors)
    if keep.dtype != np.bool_ or keep.shape != (old.n,):
        raise ShapeMismatchError(
            f"keep is {keep.dtype} {keep.shape}, needed one bool for each old row: bool ({old.n},)"
        )
    if vectors.ndim != 2 or vectors.shape[1] != old.dim or vectors.dtype.kind not in "fiu":
        raise ShapeMismatchError(f"new vectors are {vectors.dtype} {vectors.shape}, needed float32 (m, {old.dim})")
    for what, given in (("ids", changes.ids), ("payloads", changes.payloads)):
        if len(given) != len(vectors):
            raise ShapeMismatchError(
                f"{len(given):,} {what} came for {len(vectors):,} new rows; one for each is needed"
            )
    outside = [row for row in changes.new_payloads if not 0 <= row < old.n]
    if outside:
        raise ShapeMismatchError(f"a payload came for row {outside[0]}, the old generation has rows 0 to {old.n - 1}")
    if not keep.any() and not len(vectors):
        raise OptionsError("no row would be left: a generation has at least one. Drop the generation instead.")


def _as_stored(vectors: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The vectors in the old dtype if it holds them exactly, else in float32."""
    wide = np.ascontiguousarray(vectors, np.float32)
    if dtype == np.float32:
        return wide
    with np.errstate(invalid="ignore", over="ignore"):
        narrow = wide.astype(dtype)
    # Compared as float32: a NaN, an overflow or a fraction is not equal.
    return narrow if np.array_equal(narrow.astype(np.float32), wide) else wide


def _require_new(old: Generation, changes: Changes, new_ids: list[int | str]) -> None:
    """Raise DuplicateIdError where a new id is a kept row's."""
    rows = old.ids.rows_of(new_ids)
    taken = np.flatnonzero((rows >= 0) & changes.keep[np.maximum(rows, 0)]) if len(rows) else rows
    if len(taken):
        first = int(taken[0])
        raise DuplicateIdError(id=new_ids[first], rows=(int(rows[first]), old.n + first))


def _all_ids(old: Generation, new_ids: list[int | str]) -> Any:
    """Ids of every source: uint64, or a list where strings are."""
    ids, rows = old.ids.in_order(None, old.n)
    by_row = np.empty(old.n, ids.dtype)
    by_row[rows] = ids
    if by_row.dtype == np.uint64 and not any(isinstance(i, str) for i in new_ids):
        return np.concatenate([by_row, np.array(new_ids, np.uint64)])
    return by_row.tolist() + new_ids


@dataclass(frozen=True, slots=True)
class Placing:
    """old_places int32 (old nodes,): each old node's number among the new nodes, -1 where it goes; new_rows int64 (u,):
    a new row for each node that is new, and new_places int32 (u,): its number; sources int64 (n,): of each new row, in disk
    order; sizes int64 (nodes,): rows of each node."""

    old_places: NDArray[np.int32]
    new_rows: NDArray[np.int64]
    new_places: NDArray[np.int32]
    sources: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def groups(self) -> Groups:
        """Of the new generation."""
        return Groups.of_sizes(self.sizes)


@dataclass(frozen=True, slots=True)
class Matched:
    """Who is equal to whom. old_of int64 (old rows,): each row's node; node_of int64 (m,): of each new row the old node
    that it equals, or old nodes and on: a new one; firsts int64 (u,): the first new row of each new node."""

    old_of: NDArray[np.int64]
    node_of: NDArray[np.int64]
    firsts: NDArray[np.int64]


def match_rows(old: Generation, old_hashes: NDArray[np.uint64], new_hashes: NDArray[np.uint64]) -> Matched:
    """old_hashes: of each old node's vector, new_hashes: of each new row, both as bytes of the new dtype."""
    nodes = old.preview.nodes
    firsts = old.places.groups.first_rows(np.arange(nodes))
    old_of = np.repeat(np.arange(nodes), np.diff(np.append(firsts, old.n)))
    by_hash = np.argsort(old_hashes, kind="stable")
    at = np.minimum(np.searchsorted(old_hashes[by_hash], new_hashes), nodes - 1)
    equal = old_hashes[by_hash[at]] == new_hashes
    _, first, which = np.unique(new_hashes[~equal], return_index=True, return_inverse=True)
    # New nodes in the order of their first rows, not of their hashes.
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    node_of = np.empty(len(new_hashes), np.int64)
    node_of[equal] = by_hash[at[equal]]
    node_of[~equal] = nodes + rank[which.reshape(-1)]
    return Matched(old_of, node_of, np.flatnonzero(~equal)[np.sort(first)])


def place(given: Given, matched: Matched, near: NDArray[np.int64], rank: NDArray[np.int64]) -> Placing:
    """The disk order. near int64 (u,): for each new node the old node that it comes behind; rank int64 (u,): order among
    new nodes behind the same."""
    nodes, fresh = given.old.preview.nodes, len(matched.firsts)
    stays = np.zeros(nodes + fresh, np.bool_)
    stays[matched.old_of[given.kept]] = True
    stays[matched.node_of] = True
    late = np.concatenate([np.zeros(nodes, np.int64), rank + 1])
    order = np.lexsort((late, np.concatenate([np.arange(nodes), near])))
    order = order[stays[order]]
    places = np.full(nodes + fresh, -1, np.int32)
    places[order] = np.arange(len(order))
    sources = given.sources
    node = places[np.concatenate([matched.old_of[given.kept], matched.node_of])]
    by_node = np.lexsort((sources, node))
    sources, node = sources[by_node], node[by_node]
    sizes = np.bincount(node, minlength=len(order)).astype(np.int64)
    ends = np.cumsum(sizes)
    for group in np.flatnonzero(sizes > 1):
        some = slice(int(ends[group] - sizes[group]), int(ends[group]))
        if sources[some.stop - 1] >= given.old.n:  # rows of the old generation alone are in order
            sources[some] = rows_by_id(sources[some], given.ids)
    return Placing(places[:nodes], matched.firsts, places[nodes:], sources, sizes)
