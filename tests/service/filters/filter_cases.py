"""Random payloads and filters from a seed, and a target that holds points in lists.

Not by Hypothesis's own strategies: drawing a filter from those takes longer than evaluating a hundred.
"""

from __future__ import annotations

import json

import msgspec
import numpy as np
from msgspec import Raw

from service.filters import mask_of, matches, parse_filter

BIG = 1768907725507217522
TEXTS = [
    "", "a", "b", "red", "Red fox", "red_fox jumps", "fox red", "42", "ΣΑΣ", "σας", "é", "2023-01-01", "2023-01-01T00:00:00Z",
    "2023-01-01T01:00:00+01:00", "2022-12-31 23:59:59.5", "2023-13-01",
]  # fmt: skip
INTEGERS = [-(2**63), -BIG, -2, -1, 0, 1, 2, 41, 42, 127, 128, 300, BIG - 1, BIG, BIG + 1, 2**63 - 1]
BEYOND = [2**63, 2**64 - 1, 10**25, -(2**63) - 1]
FLOATS = [-1.5, -0.0, 0.0, 0.5, 1.0, 42.0, 42.5, 1e18, float(BIG), 2.0**63, 1e300]
KEYS = ["a", "b", "n", "a.b", "k k"]
PATHS = [
    "a", "a", "b", "n", '"a.b"', "a.b", "a.n", "a.b.n", "a.b.n.a.b", '"k k"', "a[]", "a[].b", "a[0]", "a[1].n", "none",
]  # fmt: skip
DATES = ["2023-01-01", "2023-01-01T00:00:00Z", "2022-12-31T19:00:00-05:00", "2024-06-01T10:00:00.25"]
IDS = [7, 2**64 - 1, "550e8400-e29b-41d4-a716-446655440000", 9, 10, 11, 12, 13]
BOX = {"top_left": {"lat": 60, "lon": -1}, "bottom_right": {"lat": 0.5, "lon": 5}}
ACROSS = {"top_left": {"lat": 60, "lon": 10}, "bottom_right": {"lat": 0.5, "lon": 5}}
CIRCLES = [
    {"center": {"lat": lat, "lon": lon}, "radius": radius}
    for lat, lon, radius in [
        (0, 0, 300_000.0),
        (52, 13, 100_000.0),
        (89, 0, 300_000.0),
        (0, 179.5, 300_000.0),
        (0, 0, 2e7),
        (52, 13, 0.0),
    ]
]
CORNERS = [{"lat": lat, "lon": lon} for lat, lon in [(-1, -1), (-1, 5), (5, 5), (5, -1), (-1, -1)]]
HOLE = [{"lat": lat, "lon": lon} for lat, lon in [(1, 1), (1, 3), (3, 3), (3, 1), (1, 1)]]
POLYGON = {"exterior": {"points": CORNERS}, "interiors": [{"points": HOLE}]}


class Cases:
    """Draws from a random.Random. plain: without what Qdrant's local mode decides differently."""

    def __init__(self, random, *, plain=False):
        self.random = random
        self.plain = plain

    def scalar(self):
        pick = self.random.choice
        kind = self.random.randrange(8)
        if kind == 0:
            return None
        if kind == 1:
            return pick([True, False])
        if kind == 2 and not self.plain:
            return pick(BEYOND)
        return pick([INTEGERS, INTEGERS, FLOATS, TEXTS][kind % 4])

    def value(self, depth=0):
        kind = self.random.randrange(10)
        if depth < 4 and kind in (0, 1):
            return {self.random.choice(KEYS): self.value(depth + 1) for _ in range(self.random.randrange(4))}
        if depth < 4 and kind == 2:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if kind in (3, 4):
            return [self.scalar() for _ in range(self.random.randrange(4))]
        if kind in (5, 6):
            return {
                "lat": self.random.choice([0, 1.5, 2, 52.5, 89.5]),
                "lon": self.random.choice([0, 2, 13.4, True, -179.9, 360]),
            }
        return self.scalar()

    def payload(self):
        kind = self.random.randrange(12)
        if kind == 0:
            return None if not self.plain else {}
        if kind < 3:  # a row of the same shape as others: columns of one kind occur too
            return {"a": self.random.choice(INTEGERS), "b": self.random.choice(TEXTS)}
        return {key: self.value() for key in KEYS if self.random.random() < 0.6}

    def bounds(self, of):
        names = self.random.sample(["gt", "gte", "lt", "lte"], self.random.choice([1, 1, 2]))
        return {name: self.random.choice(of) for name in names}

    def some(self, of):
        return self.random.choices(of, k=self.random.randrange(5))

    def predicate(self):
        pick = self.random.choice
        texts = ["text", "text_any", "phrase", "prefix", "substring"]
        return pick(
            [
                lambda: {"match": {"value": pick([True, False, *INTEGERS, *TEXTS])}},
                lambda: {"match": {"any": self.some(pick([INTEGERS, TEXTS]))}},
                lambda: {"match": {"except": self.some(pick([INTEGERS, TEXTS]))}},
                lambda: {"match": {pick(texts): pick(TEXTS)}},
                lambda: {"range": self.bounds([0, 1, 42, 0.5, 42.5] if self.plain else [*INTEGERS, *FLOATS])},
                lambda: {"range": self.bounds(DATES)},
                lambda: {"values_count": self.bounds([-1, 0, 1, 2, 3])},
                lambda: {pick(["is_empty", "is_null"]): pick([True, False])},
                lambda: pick(
                    [{"geo_bounding_box": pick([BOX, ACROSS])}, {"geo_radius": pick(CIRCLES)}, {"geo_polygon": POLYGON}]
                ),
            ]
        )()

    def field(self):
        return {"key": self.random.choice(PATHS), **self.predicate()}

    def condition(self, depth=0):
        kind = self.random.randrange(14)
        if kind < 8 or depth > 2:
            return self.field()
        if kind == 8:
            return {"has_id": self.some([*IDS, 1])}
        if kind == 9:
            return {"has_vector": self.random.choice(["", "", "other"])}
        if kind == 10:
            return {self.random.choice(["is_empty", "is_null"]): {"key": self.random.choice(PATHS)}}
        if kind == 11:
            total = self.random.randrange(1, 4)
            return {"slice": {"total": total, "index": self.random.randrange(total)}}
        if kind == 12:
            inner = self.filter(depth + 1)
            return inner or self.field()
        return {"nested": {"key": self.random.choice(PATHS), "filter": self.filter(depth + 1)}}

    def filter(self, depth=0):
        def conditions():
            return [self.condition(depth + 1) for _ in range(self.random.choice([0, 1, 1, 2, 3]))]

        clauses = {name: conditions() for name in ("must", "should", "must_not") if self.random.random() < 0.4}
        if self.random.random() < 0.15:
            clauses["min_should"] = {"conditions": conditions(), "min_count": self.random.randrange(1, 3)}
        return clauses


def parsed(given):
    """A filter from decoded JSON."""
    return parse_filter(Raw(msgspec.json.encode(given)), path="$.filter")


class ListTarget:
    """Points in lists. columns: of their payloads, or None. read: payloads that were asked for."""

    def __init__(self, payloads, columns, ids=None, vectors=None):
        self.n = len(payloads)
        self.given = payloads
        self.columns = columns
        self.ids = list(range(self.n)) if ids is None else ids
        self.vectors = vectors
        self.read = 0

    def positions_of(self, ids):
        places = {id: at for at, id in enumerate(self.ids)}
        return np.array([places.get(id, -1) for id in ids], np.int64)

    def vector_mask(self):
        return self.vectors

    def payloads(self, positions):
        self.read += len(positions)
        return [None if self.given[at] is None else json.dumps(self.given[at]).encode() for at in positions]

    def ids_of(self, positions):
        return [self.ids[at] for at in positions]


def plainly(tree, target):
    """Every point by the plain evaluation."""
    vectors = target.vectors
    return [
        matches(tree, payload, id=id, has_vector=vectors is None or bool(vectors[at]))
        for at, (payload, id) in enumerate(zip(target.given, target.ids))
    ]


def by_columns(tree, target):
    """Every point by mask_of."""
    mask = mask_of(tree, target)
    assert mask.dtype == np.bool_ and mask.shape == (target.n,)
    return mask.tolist()
