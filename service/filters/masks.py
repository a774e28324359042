"""A filter over all rows at once: columns say yes, no, or nothing; the plain evaluation decides what is left.

mask_of()   filter, target -> bool (n,), equal to matches() on every row

Each condition is two masks: rows that hold for certain, and rows that its columns cannot decide (arrays of objects, paths
into arrays, places, keys without a column). Clauses combine both, so that a row is read as JSON only where the outcome of
the whole filter depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from index.columns import PayloadColumns
from service.filters.column_masks import field_masks, nested_doubt
from service.filters.matching import PointId, matches
from service.filters.slices import slice_of, slices_of
from service.filters.tree import Condition, Field, Filter, HasId, HasVector, Nested, Slice

Mask = NDArray[np.bool_]
ROWS_AT_ONCE = 4096
"""Payloads that are decoded together."""


class FilterTarget(Protocol):
    """Points by position, 0 to n - 1. columns: of their payloads, where there are some."""

    @property
    def n(self) -> int:
        """Points."""

    @property
    def columns(self) -> PayloadColumns | None:
        """None: all is decided from the JSON."""

    def positions_of(self, ids: Iterable[PointId]) -> NDArray[np.int64]:
        """(m,): -1 for an id that is not there."""

    def vector_mask(self) -> Mask | None:
        """(n,): points with a vector; None: all have one."""

    def payloads(self, positions: NDArray[np.int64]) -> list[bytes | None]:
        """The JSON of each."""

    def ids_of(self, positions: NDArray[np.int64]) -> list[PointId]:
        """The id of each."""


@dataclass(frozen=True, slots=True)
class Ternary:
    """yes (n,): holds; open (n,): not decided, where yes is False; None: all is decided."""

    yes: Mask
    open: Mask | None = None

    def __invert__(self) -> Ternary:
        return Ternary(~self.yes if self.open is None else ~(self.yes | self.open), self.open)

    def __and__(self, other: Ternary) -> Ternary:
        yes = self.yes & other.yes
        if self.open is None and other.open is None:
            return Ternary(yes)
        return Ternary(yes, self.may() & other.may() & ~yes)

    def __or__(self, other: Ternary) -> Ternary:
        yes = self.yes | other.yes
        if self.open is None and other.open is None:
            return Ternary(yes)
        return Ternary(yes, (self.may() | other.may()) & ~yes)

    def may(self) -> Mask:
        """Rows that hold or may hold."""
        return self.yes if self.open is None else self.yes | self.open


def mask_of(filter: Filter, target: FilterTarget) -> Mask:
    """(n,): the rows of a target that pass. The array is the caller's."""
    found = _filter(filter, target)
    if found.open is None or not found.open.any():
        return found.yes
    mask = found.yes
    open_rows = np.flatnonzero(found.open)
    asks = _Asks.of(filter)
    vectors = target.vector_mask() if asks.vectors else None
    for start in range(0, len(open_rows), ROWS_AT_ONCE):
        rows = open_rows[start : start + ROWS_AT_ONCE]
        ids = target.ids_of(rows) if asks.ids else [None] * len(rows)
        for row, id, raw in zip(rows.tolist(), ids, target.payloads(rows)):
            payload = None if raw is None else msgspec.json.decode(raw)
            has_vector = vectors is None or bool(vectors[row])
            mask[row] = matches(filter, payload, id=id, has_vector=has_vector)
    return mask


# --- inside -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asks:
    """Whether a filter asks of ids, of vectors."""

    ids: bool
    vectors: bool

    @classmethod
    def of(cls, filter: Filter) -> _Asks:
        parts = [*filter.must, *filter.should, *filter.must_not, *(filter.min_should or ())]
        inner = [cls.of(part) for part in parts if isinstance(part, Filter)]
        return cls(
            any(isinstance(part, HasId | Slice) for part in parts) or any(each.ids for each in inner),
            any(isinstance(part, HasVector) for part in parts) or any(each.vectors for each in inner),
        )


def _filter(filter: Filter, target: FilterTarget) -> Ternary:
    clauses = [_condition(condition, target) for condition in filter.must]
    clauses += [~_condition(condition, target) for condition in filter.must_not]
    if filter.should:
        clauses.append(reduce(Ternary.__or__, (_condition(condition, target) for condition in filter.should)))
    if filter.min_should is not None:
        clauses.append(_at_least([_condition(each, target) for each in filter.min_should], filter.min_count, target.n))
    if not clauses:
        return Ternary(np.ones(target.n, np.bool_))
    return reduce(Ternary.__and__, clauses)


def _at_least(parts: list[Ternary], count: int, n: int) -> Ternary:
    if len(parts) < count:
        return Ternary(np.zeros(n, np.bool_))
    sure, possible = np.zeros(n, np.int32), np.zeros(n, np.int32)
    for part in parts:
        sure += part.yes
        possible += part.may()
    yes = sure >= count
    return Ternary(yes, (possible >= count) & ~yes)


def _condition(condition: Condition, target: FilterTarget) -> Ternary:
    n, columns = target.n, target.columns
    if isinstance(condition, Filter):
        return _filter(condition, target)
    if isinstance(condition, Field):
        if columns is None:
            return Ternary(np.zeros(n, np.bool_), np.ones(n, np.bool_))
        return Ternary(*field_masks(condition, columns))
    if isinstance(condition, Nested):
        doubt = np.ones(n, np.bool_) if columns is None else nested_doubt(condition.path, columns)
        return Ternary(np.zeros(n, np.bool_), doubt)
    if isinstance(condition, HasId):
        yes = np.zeros(n, np.bool_)
        positions = target.positions_of(condition.ids)
        yes[positions[positions >= 0]] = True
        return Ternary(yes)
    if isinstance(condition, HasVector):
        vectors = target.vector_mask()
        if condition.name or vectors is None:
            return Ternary(np.full(n, not condition.name))
        return Ternary(vectors.copy())
    return Ternary(_slice(condition, target))


def _slice(condition: Slice, target: FilterTarget) -> Mask:
    yes = np.zeros(target.n, np.bool_)
    for start in range(0, target.n, 1 << 16):
        ids = target.ids_of(np.arange(start, min(start + (1 << 16), target.n)))
        if all(isinstance(id, int) for id in ids):
            found = slices_of(np.array(ids, np.uint64), condition.total) == condition.index
        else:
            found = np.array([slice_of(id, condition.total) == condition.index for id in ids], np.bool_)
        yes[start : start + len(ids)] = found
    return yes
