"""A filter as a tree of frozen objects, as grammar.py makes it of JSON.

Filter        clauses over conditions; equal and hashed by `key`, its canonical JSON, so that it can name a cached mask
Condition     Filter, Field, HasId, HasVector, Nested or Slice
Predicate     what a Field asks of the values at its path

Nothing here is evaluated: matching.py is the plain evaluation, masks.py the fast one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from index.columns.kinds import Scalar
from service.payload_paths import Path


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """All clauses that are there must hold. should: at least one; min_should: at least min_count of its conditions."""

    key: bytes
    must: tuple[Condition, ...] = ()
    should: tuple[Condition, ...] = ()
    must_not: tuple[Condition, ...] = ()
    min_should: tuple[Condition, ...] | None = None
    min_count: int = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def restricts(self) -> bool:
        """False where every point passes because nothing is asked."""
        return bool(self.must or self.should or self.must_not or self.min_should is not None)


@dataclass(frozen=True, slots=True)
class Match:
    """The value is one of these: a bool, an integer (or the same as a float), a string."""

    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Except:
    """There is a value, not null, that is none of these."""

    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """Case-folded words that a text has: all of them, or any."""

    words: frozenset[str]
    any: bool = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Phrase:
    """Case-folded words that a text has one after the other."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prefix:
    """How a text begins, case and all."""

    text: str


@dataclass(frozen=True, slots=True)
class Substring:
    """What a text contains, case and all."""

    text: str


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of numbers, compared exactly; None: no bound."""

    gt: int | float | None = None
    gte: int | float | None = None
    lt: int | float | None = None
    lte: int | float | None = None


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Bounds of date-times in microseconds since 1970; None: no bound."""

    gt: int | None = None
    gte: int | None = None
    lt: int | None = None
    lte: int | None = None


@dataclass(frozen=True, slots=True)
class ValuesCount:
    """Bounds of how many values there are: an array has its length, null and nothing 0, anything else 1."""

    bounds: Range


@dataclass(frozen=True, slots=True)
class IsEmpty:
    """Missing, null, or an array without elements; wanted False: not so."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """Null, or an array that holds null; wanted False: not so."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class GeoBox:
    """Strictly inside; left of which right lies crosses the antimeridian."""

    top: float
    left: float
    bottom: float
    right: float


@dataclass(frozen=True, slots=True)
class GeoRadius:
    """Nearer to the centre than `radius` metres, along the sphere."""

    lat: float
    lon: float
    radius: float


Ring = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class GeoPolygon:
    """Inside the exterior ring and in none of the interior ones; points are (lat, lon)."""

    exterior: Ring
    interiors: tuple[Ring, ...]


Geo = GeoBox | GeoRadius | GeoPolygon
TextMatch = Words | Phrase | Prefix | Substring
Predicate = Match | Except | TextMatch | Range | TimeRange | ValuesCount | IsEmpty | IsNull | Geo


@dataclass(frozen=True, slots=True)
class Field:
    """A predicate on the values at a path of the payload."""

    path: Path
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class HasId:
    """The point is one of these."""

    ids: frozenset[int | str]


@dataclass(frozen=True, slots=True)
class HasVector:
    """The point has the vector of that name; only the empty name is one."""

    name: str


@dataclass(frozen=True, slots=True)
class Nested:
    """One object of the array at the path passes the whole filter."""

    path: Path
    filter: Filter


@dataclass(frozen=True, slots=True)
class Slice:
    """The ids whose hash modulo `total` is `index`."""

    total: int
    index: int


Condition = Filter | Field | HasId | HasVector | Nested | Slice
