"""Random points, filters and calls for the comparison with Qdrant's local mode; all from one seed.

Caller   makes calls that change or ask, and all that they are made of

Values are chosen so that the decided differences (test_client_oracle.py has the table) do not occur by themselves: no
integral floats, no words with capital letters that fold to others, no equal vectors.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from both import EXACT, Both, same
from qdrant_client import models

WORDS = ("red", "green", "blue", "dark red", "light-green", "Синий", "")
TIMES = (
    "2023-01-01T00:00:00Z",
    "2023-06-01T12:30:00+02:00",
    "2024-02-29",
    "1969-07-20 20:17:40",
    "2023-01-01T00:00:00.5",
)
KEYS = ("n", "x", "color", "tags", "flag", "when", "a.b", "items[].k", "items[].tag", "none", '"k.k"', "mixed")
CONDITIONS = (
    *("value", "any", "except", "range", "time", "count", "empty", "null", "text"),
    *("id", "vector", "nested", "filter"),
)
WRITES = (
    *("upsert", "upsert", "vectors", "no vectors", "delete", "batch"),
    *("set", "set", "overwrite", "remove", "clear"),
)
READS = (
    *("query", "query", "by id", "no query", "mmr", "batch", "groups", "groups"),
    *("retrieve", "scroll", "order", "count", "facet"),
)
GROUP_KEYS = ("n", "color", "tags", "a.b", "items[].tag", "mixed", "flag")
ORDER_KEYS = ("n", "x", "when", "a.b", "items[].k", "mixed", "color")
IDS: tuple[Any, ...] = (
    *range(1, 25),
    2**53 + 1,
    2**64 - 1,
    *(str(uuid.UUID(int=at * 0x1111_2222_3333_4444_5555_6666_7777)) for at in range(1, 9)),
)


def by_value_and_id(records: list[Any], *, falling: bool = False) -> list[Any]:
    """In the order of values, among equals of ids."""
    sign = -1 if falling else 1
    return sorted(records, key=lambda record: (sign * record.order_value, isinstance(record.id, str), record.id))


class Caller:
    """Calls on a pair of clients. random: every choice comes from it."""

    def __init__(self, both: Both, seed: int) -> None:
        self.both, self.random = both, random.Random(seed)

    # --- what calls are made of ----------------------------------------------

    def vector(self) -> list[float]:
        return [round(self.random.gauss(0, 1), 4) for _ in range(self.both.size)]

    def some_ids(self) -> list[Any]:
        return self.random.sample(IDS, self.random.randint(1, 6))

    def stored_ids(self) -> list[Any]:
        """Ids that are there, at most six, perhaps none."""
        there = [record.id for record in self.both.oracle.scroll(self.both.name, limit=1000, with_payload=False)[0]]
        return self.random.sample(there, min(len(there), self.random.randint(1, 6)))

    def scalar(self) -> Any:
        pick = self.random.choice
        return pick(
            [self.random.randint(-3, 5), pick(WORDS), pick([True, False]), None, 0.25 + self.random.randint(0, 4)]
        )

    def payload(self) -> dict[str, Any]:
        pick, number = self.random.choice, self.random.randint
        members: dict[str, Any] = {
            "n": lambda: pick([number(-3, 5), [number(0, 3), number(0, 3)], None, 2**60 + number(0, 3)]),
            "x": lambda: pick([number(0, 5) + 0.25, -0.5, [0.25, 7.75]]),
            "color": lambda: pick(WORDS),
            "tags": lambda: self.random.sample(WORDS, number(0, 3)),
            "flag": lambda: pick([True, False]),
            "when": lambda: pick([pick(TIMES), [pick(TIMES), pick(TIMES)], "no time"]),
            "a": lambda: pick([{"b": number(0, 3)}, {"b": {"c": 1}}, {"b": [1, 2]}, {}, 3]),
            "items": lambda: [{"k": number(0, 4), "tag": pick(WORDS)} for _ in range(number(0, 3))],
            "k.k": lambda: number(0, 2),
            "mixed": lambda: [self.scalar() for _ in range(number(0, 3))],
        }
        return {name: members[name]() for name in self.random.sample(sorted(members), number(0, len(members)))}

    def point(self, id_: Any) -> models.PointStruct:
        vector: Any = self.vector() if self.random.random() < 0.85 else {}
        payload = self.payload() if self.random.random() < 0.9 else None
        return models.PointStruct(id=id_, vector=vector, payload=payload)

    def condition(self, depth: int = 0) -> Any:
        pick, number = self.random.choice, self.random.randint
        key = pick(KEYS)
        kind = pick(
            (
                "value",
                "any",
                "except",
                "range",
                "time",
                "count",
                "empty",
                "null",
                "id",
                "vector",
                "nested",
                "text",
                "filter",
            )
        )
        if kind == "value":
            match: Any = models.MatchValue(value=pick([number(-1, 4), pick(WORDS), True, False]))
            return models.FieldCondition(key=key, match=match)
        if kind == "any":
            values = pick([[0, 1, 2], ["red", "blue"], []])
            return models.FieldCondition(key=key, match=models.MatchAny(any=values))
        if kind == "except":
            values = pick([[0, 1], ["red", "green"]])
            return models.FieldCondition(key=key, match=models.MatchExcept(**{"except": values}))
        if kind == "range":
            low = number(-2, 4) + pick([0, 0.25])
            return models.FieldCondition(key=key, range=models.Range(gte=low, lt=pick([None, low + 2])))
        if kind == "time":
            return models.FieldCondition(
                key="when", range=models.DatetimeRange(gt="2023-01-01T00:00:00", lte=pick([None, TIMES[2]]))
            )
        if kind == "count":
            return models.FieldCondition(
                key=key, values_count=models.ValuesCount(gte=number(0, 2), lte=pick([None, 2]))
            )
        if kind == "empty":
            return models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
        if kind == "null":
            return models.IsNullCondition(is_null=models.PayloadField(key=key))
        if kind == "id":
            return models.HasIdCondition(has_id=self.some_ids())
        if kind == "vector":
            return models.HasVectorCondition(has_vector="")
        if kind == "text":
            words = models.MatchText(text=pick(("red", "dark", "light green")))
            return models.FieldCondition(key=pick(("color", "tags")), match=words)
        if kind == "nested":
            inner = models.Filter(
                must=[
                    models.FieldCondition(key="k", range=models.Range(gte=number(0, 3))),
                    models.FieldCondition(key="tag", match=models.MatchAny(any=["red", "green", "blue"])),
                ]
            )
            return models.NestedCondition(nested=models.Nested(key="items", filter=inner))
        inside = self.filter(depth + 1) if depth < 2 else None
        # An empty filter as a condition is refused here; see the table of differences.
        return inside if inside is not None and inside != models.Filter() else models.HasVectorCondition(has_vector="")

    def filter(self, depth: int = 0) -> models.Filter:
        def conditions(most: int) -> Any:
            return [self.condition(depth) for _ in range(self.random.randint(0, most))] or None

        min_should, pick = None, self.random.choice
        if self.random.random() < 0.15:
            min_should = models.MinShould(conditions=[self.condition(depth) for _ in range(3)], min_count=pick((1, 2)))
        return models.Filter(must=conditions(1), should=conditions(3), must_not=conditions(1), min_should=min_should)

    def maybe_filter(self) -> models.Filter | None:
        return self.filter() if self.random.random() < 0.6 else None

    def with_payload(self) -> Any:
        return self.random.choice(
            [
                True,
                False,
                ["n", "a.b"],
                ["items[].k", '"k.k"', "color"],
                models.PayloadSelectorInclude(include=["a", "tags[]"]),
                models.PayloadSelectorExclude(exclude=["a.b", "items[].tag", "n"]),
            ]
        )

    # --- calls ----------------------------------------------------------------

    def write(self) -> None:
        """One random change."""
        both, pick = self.both, self.random.choice
        kind = pick(
            (
                "upsert",
                "upsert",
                "vectors",
                "no vectors",
                "delete",
                "set",
                "set",
                "overwrite",
                "remove",
                "clear",
                "batch",
            )
        )
        if kind == "upsert":
            both.write("upsert", self._points())
            return
        ids = self.stored_ids()
        if not ids:
            return
        selector: Any = ids if self.random.random() < 0.6 else models.FilterSelector(filter=self.filter())
        if kind == "vectors":
            both.write("update_vectors", [models.PointVectors(id=id_, vector=self.vector()) for id_ in ids])
        elif kind == "no vectors":
            both.write("delete_vectors", vectors=[""], points=selector)
        elif kind == "delete":
            both.write(
                "delete", pick([self.some_ids(), models.FilterSelector(filter=models.Filter(must=[self.condition()]))])
            )
        elif kind == "set":
            key = pick([None, None, "a", "a.b", "items[]", "items[0].k", "new.deep", '"k.k"'])
            both.write("set_payload", payload=self.payload(), points=selector, key=key)
        elif kind == "overwrite":
            both.write("overwrite_payload", payload=self.payload(), points=selector)
        elif kind == "remove":
            keys = self.random.sample(
                ("n", "a.b", "items[].k", "items[0]", "items[0].tag", "tags[]", '"k.k"', "no.such"), 2
            )
            both.write("delete_payload", keys=keys, points=selector)
        elif kind == "clear":
            both.write("clear_payload", points_selector=selector)
        else:
            both.write("batch_update_points", update_operations=self._operations(ids))

    def read(self) -> None:
        """One random question."""
        kind = self.random.choice(
            ("query", "query", "query", "by id", "mmr", "no query", "batch", "retrieve", "scroll", "count")
        )
        kind = self.random.choice((kind, kind, kind, "groups", "facet", "order"))
        both, number = self.both, self.random.randint
        if kind == "retrieve":
            both.read(
                "retrieve",
                self._spelt(self.some_ids()),
                with_payload=self.with_payload(),
                with_vectors=self.flag(),
            )
        elif kind == "scroll":
            start = self.random.choice([None, *self.some_ids()])
            options = {
                "limit": number(1, 12),
                "offset": start,
                "with_payload": self.with_payload(),
                "with_vectors": self.flag(),
            }
            both.read("scroll", scroll_filter=self.maybe_filter(), **options)
        elif kind == "count":
            both.read("count", count_filter=self.filter())
        elif kind == "groups":
            options = {
                "query_filter": self.maybe_filter(),
                "score_threshold": self._threshold(),
                "with_vectors": self.flag(),
            }
            options |= {"limit": number(1, 6), "group_size": number(1, 4), "with_payload": self.with_payload()}
            query: Any = self.random.choice([None, self.vector(), self.vector(), *self._ids_with_vectors()[:1]])
            if query is None:
                options["score_threshold"] = None
            both.read("query_points_groups", group_by=self.random.choice(GROUP_KEYS), query=query, **options)
        elif kind == "facet":
            both.read("facet", key=self.random.choice(KEYS), facet_filter=self.maybe_filter(), limit=number(1, 12))
        elif kind == "order":
            self.ordered()
        elif kind == "batch":
            both.read("query_batch_points", requests=[self._request() for _ in range(number(1, 4))])
        elif kind == "no query":
            both.read("query_points", query_filter=self.maybe_filter(), limit=number(1, 10), offset=number(0, 3))
        elif kind == "by id":
            ids = self._ids_with_vectors()
            if ids:
                both.read("query_points", query=self.random.choice(ids), **self._options())
        elif kind == "mmr":
            mmr = models.Mmr(
                diversity=self.random.choice([None, 0.0, 0.3, 0.9]), candidates_limit=self.random.choice([None, 15])
            )
            options = self._options() | {"score_threshold": None}
            both.read("query_points", query=models.NearestQuery(nearest=self.vector(), mmr=mmr), **options)
        else:
            both.read("query_points", query=self.vector(), score_threshold=self._threshold(), **self._options())

    def ordered(self) -> None:
        """A scroll by values; ties come by id, in local mode by age, so all that are equal are asked for."""
        key, direction = self.random.choice(ORDER_KEYS), self.random.choice([None, *models.Direction])
        start = self.random.choice([None, None, -1, 1.25, 2, "2023-06-01T00:00:00"])
        order = models.OrderBy(key=key, direction=direction, start_from=start)
        options = {"order_by": self.random.choice([order, order, key]), "scroll_filter": self.maybe_filter()}
        options |= {"with_payload": self.with_payload(), "with_vectors": self.flag()}
        expected = self.both.oracle.scroll(self.both.name, limit=1000, **options)[0]
        whole = self.both.ours.scroll(self.both.name, limit=1000, **options)
        assert whole[1] is None
        same(by_value_and_id(whole[0]), by_value_and_id(expected), f"scroll {options}", unit=self.both.unit)
        first = self.both.ours.scroll(self.both.name, limit=self.random.randint(1, 9), **options)[0]
        assert first == whole[0][: len(first)]
        falling = getattr(options["order_by"], "direction", None) == models.Direction.DESC
        assert whole[0] == by_value_and_id(whole[0], falling=falling), f"ties of {options}"

    def flag(self) -> bool:
        return self.random.random() < 0.5

    # --- inside ---------------------------------------------------------------

    def _spelt(self, ids: list[Any]) -> list[Any]:
        """UUIDs in any spelling."""
        spellings = (str, str.upper, lambda id_: id_.replace("-", ""), lambda id_: f"urn:uuid:{id_}")
        return [self.random.choice(spellings)(id_) if isinstance(id_, str) else id_ for id_ in ids]

    def _points(self) -> Any:
        ids = self._spelt(self.some_ids())
        if self.random.random() < 0.3:
            ids.append(ids[0])
        points = [self.point(id_) for id_ in ids]
        if self.random.random() < 0.6 or any(point.vector == {} for point in points):
            return points
        vectors, payloads = [point.vector for point in points], [point.payload or {} for point in points]
        return models.Batch(ids=ids, vectors=vectors, payloads=payloads)

    def _operations(self, ids: list[Any]) -> list[Any]:
        fresh = self.random.choice(IDS)
        return [
            models.UpsertOperation(upsert=models.PointsList(points=[self.point(fresh)])),
            models.SetPayloadOperation(set_payload=models.SetPayload(payload=self.payload(), points=[*ids, fresh])),
            models.UpdateVectorsOperation(
                update_vectors=models.UpdateVectors(points=[models.PointVectors(id=fresh, vector=self.vector())])
            ),
            models.DeletePayloadOperation(delete_payload=models.DeletePayload(keys=["n", "a.b"], points=ids)),
            models.DeleteOperation(delete=models.FilterSelector(filter=models.Filter(must=[self.condition()]))),
            models.UpsertOperation(upsert=models.PointsList(points=[self.point(fresh)])),
        ]

    def _ids_with_vectors(self) -> list[Any]:
        there = self.both.oracle.scroll(self.both.name, limit=1000, with_payload=False, with_vectors=True)[0]
        return [record.id for record in there if record.vector]

    def _threshold(self) -> float | None:
        return self.random.choice([None, None, 0.1234567, 1.2345678])

    def _options(self) -> dict[str, Any]:
        number = self.random.randint
        return {
            "query_filter": self.maybe_filter(),
            "limit": number(1, 12),
            "offset": self.random.choice([None, None, number(0, 4)]),
            "with_payload": self.with_payload(),
            "with_vectors": self.flag(),
            "search_params": self.random.choice([None, EXACT]),
        }

    def _request(self) -> models.QueryRequest:
        options = self._options()
        return models.QueryRequest(
            query=self.vector(),
            filter=options["query_filter"],
            limit=options["limit"],
            offset=options["offset"],
            with_payload=options["with_payload"],
            with_vector=options["with_vectors"],
            params=options["search_params"],
        )
