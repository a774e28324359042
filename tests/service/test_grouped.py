"""Groups, facets and scrolls by value: against plain Python over a built index and writes on top of it."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest
from msgspec import Raw
from real_index import put_index
from starlette.testclient import TestClient

from service import facets, grouped, ordered
from service.app import create_app
from service.field_values import ValuesReader, also
from service.filters.grammar import DEPTH_MAX, parse_filter
from service.settings import Settings

ROWS, DIM, CITIES = 3000, 8, 40


@pytest.fixture(scope="module")
def data():
    """Vectors and payloads: `city` is skewed, a few points have two; `rare` is there for a few; `when` is a date-time."""
    generator, chance = np.random.default_rng(11), random.Random(11)
    vectors = generator.standard_normal((ROWS + 200, DIM)).astype(np.float32)
    payloads = []
    for row in range(len(vectors)):
        city = int(min(CITIES - 1, chance.expovariate(0.2)))
        payload = {"city": f"city {city}" if row % 7 else [f"city {city}", "capital"], "n": row % 50}
        if row % 400 == 0:
            payload["rare"] = row
        if row % 3 == 0:
            payload["when"] = f"2024-01-{1 + row % 28:02d}T00:00:00Z"
        payloads.append(payload)
    return vectors, payloads


@pytest.fixture(scope="module")
def client(data, tmp_path_factory):
    vectors, payloads = data
    settings = Settings(data_dir=tmp_path_factory.mktemp("grouped") / "data")
    with TestClient(create_app(settings)) as running:
        engine = running.app.state.parts.engine
        put_index(engine, "places", vectors[:ROWS], ids=list(range(ROWS)), payload=payloads[:ROWS], metric="l2")
        points = [
            {"id": row, "vector": vectors[row].tolist(), "payload": payloads[row]} for row in range(ROWS, len(vectors))
        ]
        ok(running.put("/collections/places/points", json={"points": points}))
        yield running


def ok(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def groups_of(client, **body):
    return ok(client.post("/collections/places/points/query/groups", json=body))["groups"]


def expected_groups(data, query, key, *, limit, size, keep=lambda payload: True):
    vectors, payloads = data
    distances = np.linalg.norm(vectors - query, axis=1)
    found = {}
    for row in np.argsort(distances, kind="stable").tolist():
        values = payloads[row].get(key) if keep(payloads[row]) else None
        for value in values if isinstance(values, list) else [] if values is None else [values]:
            found.setdefault(value, [])
            if len(found[value]) < size:
                found[value].append(row)
    return list(found.items())[:limit]


@pytest.mark.parametrize(("limit", "size"), [(1, 1), (5, 3), (10, 50), (60, 2), (60, 20)])
@pytest.mark.parametrize("key", ["city", "n", "rare", "none"])
def test_groups_are_complete(client, data, key, limit, size):
    """Skewed groups, more groups asked for than there are, larger than they are."""
    query = data[0][17] + 0.01
    params = {"exact": True}
    found = groups_of(client, query=query.tolist(), group_by=key, limit=limit, group_size=size, params=params)
    assert [(group["id"], [hit["id"] for hit in group["hits"]]) for group in found] == expected_groups(
        data, query, key, limit=limit, size=size
    )


def test_groups_with_a_filter_a_threshold_and_parts(client, data):
    query = data[0][5]
    body = {"query": query.tolist(), "group_by": "city", "limit": 4, "group_size": 2, "params": {"exact": True}}
    few = {"must": [{"key": "n", "range": {"lt": 5}}]}
    found = groups_of(client, **body, filter=few, with_payload=["n"], with_vector=True)
    expected = expected_groups(data, query, "city", limit=4, size=2, keep=lambda payload: payload["n"] < 5)
    assert [(group["id"], [hit["id"] for hit in group["hits"]]) for group in found] == expected
    hit = found[0]["hits"][0]
    assert hit["payload"] == {"n": 5 % 50} or hit["payload"].keys() == {"n"}
    assert hit["vector"] == pytest.approx(data[0][hit["id"]].tolist())
    near = groups_of(client, **body, score_threshold=1.0)
    assert near and all(hit["score"] <= 1.0 for group in near for hit in group["hits"])
    by_id = groups_of(client, **(body | {"query": 5}))
    assert 5 not in [hit["id"] for group in by_id for hit in group["hits"]]


def test_groups_without_exact_keep_the_form(client, data):
    """The promised recall may miss a point, never a group's place for more hits."""
    found = groups_of(client, query=data[0][3].tolist(), group_by="city", limit=8, group_size=5)
    counts = Counter(city for payload in data[1] for city in cities(payload))
    assert len(found) == 8
    for group in found:
        assert len(group["hits"]) == min(5, counts[group["id"]])
        assert [hit["score"] for hit in group["hits"]] == sorted(hit["score"] for hit in group["hits"])


def test_groups_in_id_order(client, data):
    found = groups_of(client, group_by="city", limit=3, group_size=2)
    assert [len(group["hits"]) for group in found] == [2, 2, 2]
    assert found[0]["hits"][0] == {"id": 0, "version": 0, "score": 1.0}


def cities(payload):
    return payload["city"] if isinstance(payload["city"], list) else [payload["city"]]


@pytest.mark.parametrize("wanted", [None, {"must": [{"key": "n", "match": {"value": 7}}]}])
def test_facets(client, data, wanted):
    body = {"key": "city", "limit": 12, "filter": wanted}
    hits = ok(client.post("/collections/places/facet", json=body))["hits"]
    counts = Counter(city for payload in data[1] if not wanted or payload["n"] == 7 for city in set(cities(payload)))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:12]
    assert [(hit["value"], hit["count"]) for hit in hits] == ranked


def test_scrolls_by_value(client, data):
    def scrolled(**body):
        return ok(client.post("/collections/places/points/scroll", json=body))["points"]

    rows = [row for row, payload in enumerate(data[1]) if "when" in payload]
    found = scrolled(order_by="when", limit=2000)
    assert sorted(point["id"] for point in found) == rows
    assert [(p["order_value"], p["id"]) for p in found] == sorted((p["order_value"], p["id"]) for p in found)
    assert found[0]["order_value"] == 1_704_067_200_000_000
    late = scrolled(order_by={"key": "when", "direction": "desc", "start_from": "2024-01-02"}, limit=3)
    assert {point["order_value"] for point in late} == {1_704_153_600_000_000}
    assert [point["id"] for point in late] == sorted(point["id"] for point in late)


@pytest.mark.parametrize(
    ("route", "body", "status", "word"),
    [
        ("points/query/groups", {"query": [0.0] * DIM}, 400, "group_by"),
        ("points/query/groups", {"query": [0.0] * DIM, "group_by": "a..b"}, 400, "group_by"),
        ("points/query/groups", {"query": [0.0] * DIM, "group_by": "a", "group_size": 0}, 422, "group_size"),
        ("points/query/groups", {"query": [0.0] * DIM, "group_by": "a", "limit": 0}, 422, "limit"),
        ("points/query/groups", {"query": [0.0] * DIM, "group_by": "a", "limit": 10**6}, 422, "limit"),
        ("points/query/groups", {"query": [0.0] * DIM, "group_by": "a", "offset": 3}, 400, "offset"),
        ("points/query/groups", {"query": [0.0], "group_by": "a"}, 400, "dimension"),
        ("points/query/groups", {"query": 10**6, "group_by": "a"}, 404, "1000000"),
        ("points/query/groups", {"query": [0.0] * DIM, "group_by": "a", "with_lookup": "other"}, 501, "with_lookup"),
        ("facet", {}, 400, "key"),
        ("facet", {"key": "city", "limit": 0}, 422, "limit"),
        ("facet", {"key": "city", "filter": {"shoud": []}}, 400, "shoud"),
        ("points/scroll", {"order_by": {"key": "n", "direction": "up"}}, 400, "direction"),
        ("points/scroll", {"order_by": {"key": "n", "start_from": "soon"}}, 400, "start_from"),
        ("points/scroll", {"order_by": {"keys": "n"}}, 400, "key"),
        ("points/scroll", {"order_by": "n", "offset": 1}, 400, "offset"),
    ],
)
def test_refusals(client, route, body, status, word):
    answer = client.post(f"/collections/places/{route}", json=body)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["status"]["error"]


def test_values_of_a_payload():
    payload = b'{"a": {"b": [1, [2]]}, "a.b": 3, "l": [{"k": 1}, {"k": [2, 3]}, 4], "n": null}'
    expected = {"a.b": [1, [2]], '"a.b"': [3], "l[].k": [1, 2, 3], "l[2]": [4], "n": [None], "none": [], "a.b.c": []}
    assert {key: ValuesReader(key, path="$").of(payload) for key in expected} == expected
    assert ValuesReader("a", path="$").of(None) == []


def test_what_a_value_is_ordered_by():
    values = [1, 2.5, True, None, "2024-01-01", "x"]
    assert [ordered.order_value(value) for value in values] == [1, 2.5, None, None, 1_704_067_200_000_000, None]
    assert ordered.parse_order(Raw(b'"n"'), path="$.order_by").start_from is None


def test_one_condition_more_around_the_deepest_filter():
    """What is added must not be refused for a depth that the request was allowed."""
    deep = {"is_empty": {"key": "a"}}
    for _ in range(DEPTH_MAX):
        deep = {"must": [deep]}
    wanted = parse_filter(Raw(json.dumps({"must": [deep]}).encode()), path="$.filter")
    assert also(wanted, {"is_empty": {"key": "b"}}).restricts


def test_limits_of_groups_and_facets():
    settings = Settings()
    assert grouped.parse_grouped(b'{"group_by": "a"}', settings).size == 3
    assert facets.parse_facet(b'{"key": "a", "exact": true}', settings).limit == 10


@pytest.mark.parametrize("key", ["a\\b", '"q"', "t\t", "n\0", "é", " "])
def test_members_of_any_name_are_read(key):
    """Names that no struct can have are read all the same."""
    path = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    reader = ValuesReader(path, path="$.key")
    assert reader.of(json.dumps({key: [1, 2], "other": 3}).encode()) == [1, 2]
    assert reader.of(json.dumps({"other": 3}).encode()) == [] and reader.of(None) == []
