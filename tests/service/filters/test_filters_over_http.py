"""S38 to S43 over HTTP: the same answers with and without payload indexes, before and after restarts and compactions."""

from __future__ import annotations

import random
from urllib.parse import quote

import msgspec
import pytest
from filter_cases import Cases, parsed
from restarting import RestartingServer

from service.filters import matches

VECTOR = [1.0, 2.0]


NUMBER, MOST, LEAST = 1768907725507217522, 9223372036854775807, -9223372036854775808
COMPOSED, DECOMPOSED = "\u00e9", "e\u0301"
KEYS = {"a.b": 1, "a": {"b": 2}, "rdfs:type": "x", "tag/1": True, "цвет": "синий", "k k": 5, "": 6}
KEY_CASES = [
    ("a.b", 2), ('"a.b"', 1), ("rdfs:type", "x"), ('"rdfs:type"', "x"), ("tag/1", True), ('"tag/1"', True),
    ("цвет", "синий"), ('"цвет"', "синий"), ("k k", 5), ('"k k"', 5), ('""', 6),
]  # fmt: skip
_SCHEMAS = {int: "integer", bool: "bool", str: "keyword"}
NULLS = [{"n": 1}, {"n": 5}, {"n": None}, {"n": [1, None]}, {}, {"n": []}]

DATA = {
    "s38": (NULLS, {"n": "integer"}),
    "s38-keyword": (NULLS, {"n": "keyword"}),
    "s39": ([{"age": 42.0}, {"age": "42"}, {"age": True}], {"age": "integer"}),
    "s40": ([{"ts": NUMBER}, {"big": MOST}, {"big": LEAST}, {"big": 0}], {"ts": "integer", "big": "integer"}),
    "s41": ([{"d": "2023-01-01T00:00:00"}, {"d": "no time"}, {}], {"d": "datetime"}),
    "s43": (
        [KEYS, {"v": "ES009453/19"}, {"v": COMPOSED}, {"v": DECOMPOSED}],
        {key: _SCHEMAS[type(value)] for key, value in KEY_CASES},
    ),
}
"""Collection -> payloads under ids from 1, and the payload indexes that it gets."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = RestartingServer(tmp_path_factory.mktemp("filters") / "data")
    yield running
    running.close()


@pytest.fixture(
    scope="module", params=["written", "with indexes", "restarted", "compacted", "restarted again", "without indexes"]
)
def moment(server, request):
    """What happened to all collections of DATA; pytest runs all tests of one moment before those of the next."""
    if request.param.startswith("restarted"):
        server.restart()
    for name, (payloads, indexes) in DATA.items():
        at = f"/collections/{name}"
        if request.param == "written":
            put(server, server.create(name, size=2), payloads)
        elif request.param == "compacted":
            server.compact(at)
        for field, schema in indexes.items() if request.param == "with indexes" else ():
            server.ask("PUT", f"{at}/index", {"field_name": field, "field_schema": schema})
        for field in indexes if request.param == "without indexes" else ():
            server.ask("DELETE", f"{at}/index/{quote(field, safe='')}")
        schemas = server.ask("GET", at)["payload_schema"]
        assert set(schemas) == (set() if request.param in ("written", "without indexes") else set(indexes))
    return request.param


def put(server, at, payloads):
    """Payloads under ids from 1."""
    points = [{"id": id_, "vector": VECTOR, "payload": payload} for id_, payload in enumerate(payloads, 1)]
    server.ask("PUT", f"{at}/points", {"points": points})


def passing(server, at, wanted):
    """Ids that pass, the same from a scroll, a count and a query."""
    limit = 10_000
    found = server.ask("POST", f"{at}/points/scroll", {"filter": wanted, "limit": limit, "with_payload": False})[
        "points"
    ]
    ids = [point["id"] for point in found]
    assert server.count(at, wanted) == len(ids)
    assert [point["id"] for point in server.query(at, query=VECTOR, filter=wanted, limit=limit)] == ids
    return ids


def must(key, **predicate):
    return {"must": [{"key": key, **predicate}]}


NULL_CASES = [
    (must("n", match={"value": 1}), [1, 4]),
    (must("n", match={"except": [1]}), [2]),
    ({"must": [{"is_null": {"key": "n"}}]}, [3, 4]),
    ({"must": [{"is_empty": {"key": "n"}}]}, [3, 5, 6]),
    ({"must_not": [{"key": "n", "match": {"value": 1}}]}, [2, 3, 5, 6]),
    (must("n", values_count={"lte": 0}), [3, 5, 6]),
]


@pytest.mark.parametrize("collection", ["s38", "s38-keyword"])
def test_s38_null_missing_and_empty(server, moment, collection):
    for wanted, expected in NULL_CASES:
        assert passing(server, f"/collections/{collection}", wanted) == expected, wanted


@pytest.mark.parametrize(
    ("points", "filters"), [(500, 150), pytest.param(2000, 1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_s38_random_filters_agree_with_a_plain_evaluation(server, points, filters):
    at = server.create(f"s38-{points}", size=2)
    cases = Cases(random.Random(38))
    payloads = [cases.payload() for _ in range(points)]
    put(server, at, payloads)
    wanted = [cases.filter() for _ in range(filters)]
    stored = [msgspec.json.decode(msgspec.json.encode(payload)) if payload else {} for payload in payloads]
    expected = []
    for asked in wanted:
        tree = parsed(asked)
        ids = range(1, points + 1)
        passed = ids if tree is None else [i for i in ids if matches(tree, stored[i - 1], id=i, has_vector=True)]
        expected.append(list(passed))
    for moment in ("written", "compacted"):
        if moment == "compacted":
            server.compact(at)
        for asked, ids in zip(wanted, expected, strict=True):
            body = {"filter": asked, "limit": 10_000, "with_payload": False}
            found = server.ask("POST", f"{at}/points/scroll", body)["points"]
            assert [point["id"] for point in found] == ids, (moment, asked)


def test_s39_42_is_42_0(server, moment):
    at = "/collections/s39"
    for predicate in (
        {"match": {"value": 42}},
        {"match": {"any": [41, 42]}},
        {"range": {"gte": 42, "lte": 42}},
    ):
        assert passing(server, at, must("age", **predicate)) == [1], predicate
    assert passing(server, at, must("age", match={"value": 1})) == []
    assert '"age":42.0' in server.server.client.post(f"{at}/points", json={"ids": [1]}).text


def test_s40_integers_keep_all_digits(server, moment):
    at = "/collections/s40"
    for bounds, expected in (
        ({"gt": NUMBER}, []), ({"gte": NUMBER}, [1]), ({"gt": NUMBER - 1}, [1]), ({"lte": NUMBER - 1}, []),
    ):  # fmt: skip
        assert passing(server, at, must("ts", range=bounds)) == expected, bounds
    assert passing(server, at, must("big", match={"value": MOST})) == [2]
    assert passing(server, at, must("big", range={"lt": LEAST + 1})) == [3]
    text = server.server.client.post(f"{at}/points/scroll", json={"order_by": "big"}).text
    assert text.index(f'"order_value":{LEAST}') < text.index('"order_value":0') < text.index(f'"order_value":{MOST}')
    assert f'"big":{MOST}' in text and f'"big":{LEAST}' in text


def test_s41_date_times(server, moment):
    at = "/collections/s41"
    for bounds, expected in (
        ({"gte": "2023-12-13T00:00:00"}, []),
        ({"gte": "2023-01-01T01:00:00+01:00", "lte": "2022-12-31T19:00:00-05:00"}, [1]),
        ({"gte": "2023-01-01", "lt": "2023-01-01T00:00:00.000001"}, [1]),
        ({"gte": "2023-01-01", "lte": None, "gt": None}, [1]),
    ):
        assert passing(server, at, must("d", range=bounds)) == expected, bounds
    sentence = server.ask("POST", f"{at}/points/count", {"filter": must("d", range={"gte": "2023-13-01"})}, status=400)
    assert "2023-13-01" in sentence and "range.gte" in sentence


MALFORMED = [
    ({"must": [{"key": "a"}]}, "must[0]"),
    ({"shoud": [must("a", match={"value": 1})]}, "shoud"),
    ({"must": {"key": "a", "match": {}}}, "must.match"),
    ({"must": [{"key": "a", "range": {"gtt": 1}}]}, "must[0].range"),
    ([], "filter"),
]


@pytest.mark.parametrize("route", ["query", "scroll", "count", "delete", "query/groups"])
@pytest.mark.parametrize(("wanted", "place"), MALFORMED)
def test_s42_a_malformed_filter_is_refused(server, route, wanted, place):
    at = "/collections/s42"
    if not server.ask("GET", f"{at}/exists")["exists"]:
        server.create("s42", size=2)
        put(server, at, [{"a": 1}, {"a": 2}])
    body = {"filter": wanted} | ({"query": VECTOR} if route.startswith("query") else {})
    sentence = server.ask(
        "POST", f"{at}/points/{route}", body | ({"group_by": "a"} if "/" in route else {}), status=400
    )
    assert place in sentence
    assert server.count(at) == 2


def test_s42_filters_that_restrict_nothing(server):
    at = server.create("s42-empty", size=2)
    put(server, at, [{"a": 1}, {"a": 2}])
    for wanted in ({}, {"must": []}, {"should": []}, {"must_not": []}, None):
        assert passing(server, at, wanted) == [1, 2]
    assert server.ask("POST", f"{at}/points/delete", {}, status=400)
    assert server.count(at) == 2
    server.ask("POST", f"{at}/points/delete", {"filter": {"must": []}})
    assert server.count(at) == 0


def test_s43_keys_of_any_letters(server, moment):
    at = "/collections/s43"
    for key, value in KEY_CASES:
        assert passing(server, at, must(key, match={"value": value})) == [1], key
        assert server.ask("POST", f"{at}/facet", {"key": key})["hits"] == [{"value": value, "count": 1}], key
    for id_, value in ((2, "ES009453/19"), (3, COMPOSED), (4, DECOMPOSED)):
        assert passing(server, at, must("v", match={"value": value})) == [id_]
    stored = server.ask("POST", f"{at}/points", {"ids": [1, 3, 4]})
    assert [point["payload"] for point in stored] == [KEYS, {"v": COMPOSED}, {"v": DECOMPOSED}]
