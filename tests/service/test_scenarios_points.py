"""S7, S19, S22, S23, S25, S32, S48, S50 for points that were written, over HTTP: over restarts and compactions."""

from __future__ import annotations

import re
import sqlite3
from itertools import chain
from urllib.parse import quote

import numpy as np
import pytest
from restarting import RestartingServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = RestartingServer(tmp_path_factory.mktemp("scenarios") / "data")
    yield running
    running.close()


def ids(points):
    return [point["id"] for point in points]


def test_s07_a_point_of_another_dimension_is_refused(server):
    at = server.create("s07", size=8)
    vectors = np.random.default_rng(7).standard_normal((20, 8))
    server.upsert(at, vectors)
    body = {"points": [{"id": 100, "vector": vectors[0].tolist()}, {"id": 777, "vector": [1.0] * 7}]}
    for wait in ("true", "false"):
        sentence = server.ask("PUT", f"{at}/points?wait={wait}", body, status=400)
        assert "777" in sentence and re.search(r"\b8\b", sentence) and re.search(r"\b7\b", sentence)
    assert server.count(at) == 20
    for row, vector in enumerate(vectors.tolist()):
        assert ids(server.query(at, query=vector, limit=1)) == [row]


def test_s19_limits_around_the_number_of_points(server):
    at = server.create("s19", size=16)
    vectors = np.random.default_rng(19).standard_normal((65, 16))
    assert server.query(at, query=vectors[0].tolist()) == []
    server.upsert(at, vectors)
    for moment in ("written", "compacted"):
        if moment == "compacted":
            server.compact(at)
        for limit in (63, 64, 65, 66, 100):
            for params in ({}, {"exact": True}):
                found = ids(server.query(at, query=vectors[3].tolist(), limit=limit, params=params))
                assert len(found) == len(set(found)) == min(limit, 65) and set(found) <= set(range(65))
        searches = [{"query": vector, "limit": 100} for vector in vectors.tolist()]
        answers = server.ask("POST", f"{at}/points/query/batch", {"searches": searches})
        assert all(sorted(ids(answer["points"])) == list(range(65)) for answer in answers)
    server.ask("POST", f"{at}/points/delete", {"points": list(range(60))})
    for params in ({}, {"exact": True}):
        found = ids(server.query(at, query=vectors[3].tolist(), limit=100, params=params))
        assert sorted(found) == [60, 61, 62, 63, 64]
    assert "limit" in server.ask("POST", f"{at}/points/query", {"query": vectors[0].tolist(), "limit": 0}, status=422)


def test_s22_shorter_lists_are_prefixes(server):
    """1,000 points on a grid of 16 places."""
    at = server.create("s22", size=2, distance="Euclid")
    generator = np.random.default_rng(22)
    vectors = generator.integers(0, 4, (1000, 2)).astype(np.float32)
    server.upsert(at, vectors)
    distances = np.linalg.norm(vectors - np.array([1, 2]), axis=1)
    expected = sorted(range(1000), key=lambda row: (distances[row], row))

    def check(moment):
        whole = server.query(at, query=[1, 2], limit=1000)
        assert ids(whole) == expected, moment
        searches = [{"query": [1, 2], "limit": limit, "params": {"exact": True}} for limit in range(1, 101)]
        answers = server.ask("POST", f"{at}/points/query/batch", {"searches": searches})
        assert all(answer["points"] == whole[: len(answer["points"])] for answer in answers), moment
        assert [len(answer["points"]) for answer in answers] == list(range(1, 101))

    for moment in server.moments(at):
        check(moment)
    order = generator.permutation(1000)
    points = [{"id": int(row), "vector": vectors[row].tolist()} for row in order]
    server.ask("PUT", f"{at}/points", {"points": points[:500]})
    check("half of the points written again")
    server.ask("PUT", f"{at}/points", {"points": points[500:]})
    check("all points written again in another order")


def test_s23_pages_never_repeat(server):
    at = server.create("s23", size=4)
    server.upsert(at, [[(k + 1) * x for x in (0.1, 0.05, 0.0333, 0.025)] for k in range(25)])
    for moment in ("written", "compacted"):
        if moment == "compacted":
            server.compact(at)
        for params in ({}, {"exact": True}):
            pages = [
                ids(server.query(at, query=[0.1, 0.05, 0.0333, 0.025], limit=10, offset=offset, params=params))
                for offset in (0, 10, 20)
            ]
            assert sorted(chain(*pages)) == list(range(25)), moment


def test_s23_long_walks(server):
    at = server.create("s23-walk", size=8)
    vectors = np.random.default_rng(23).standard_normal((10_000, 8)).astype(np.float32)
    server.upsert(at, vectors)
    query = vectors[5].tolist()
    whole = ids(server.query(at, query=query, limit=2000))
    pages = [ids(server.query(at, query=query, limit=100, offset=100 * page)) for page in range(20)]
    assert list(chain(*pages)) == whole and len(set(whole)) == 2000
    server.ask("POST", f"{at}/points/delete", {"points": list(range(1003, 10_000))})
    seen, start, count = [], None, 0
    while True:
        page = server.ask("POST", f"{at}/points/scroll", {"limit": 100, "offset": start, "with_payload": False})
        seen, start, count = seen + ids(page["points"]), page["next_page_offset"], count + 1
        if start is None:
            break
    assert seen == list(range(1003)) and count == 11


@pytest.mark.parametrize(
    ("distance", "score", "order"),
    [
        ("Dot", 11.0, "higher is better"),
        ("Cosine", 0.98387, "higher is better"),
        ("Euclid", 2.828427, "lower is better"),
    ],
)
def test_s25_what_a_score_means(server, distance, score, order):
    at = server.create(f"s25 {distance}", size=2, distance=distance)
    server.upsert(at, [[3, 4]])
    for _ in server.moments(at) if distance == "Euclid" else ["written"]:
        assert server.query(at, query=[1, 2])[0]["score"] == pytest.approx(score, abs=1e-5)
    info = server.ask("GET", at)
    assert info["fullview"]["order"] == order
    assert info["config"]["params"]["vectors"]["distance"] == distance


def test_s25_thresholds(server):
    at = server.create("s25", size=2, distance="Dot")
    server.upsert(at, [[-1, 0], [-2, 0]])
    assert [point["score"] for point in server.query(at, query=[1, 0])] == [-1.0, -2.0]
    assert ids(server.query(at, query=[1, 0], score_threshold=-1.5)) == [0]
    far = server.create("s25-far", size=2, distance="Euclid")
    server.upsert(far, [[-1, 0], [-2, 0]])
    assert ids(server.query(far, query=[1, 0], score_threshold=2.5)) == [0]


def test_s32_the_same_id_twice(server):
    at = server.create("s32", size=32)
    vectors = np.random.default_rng(32).standard_normal((10, 32)).tolist()
    twice = [{"id": id_, "vector": vectors[id_], "payload": {"v": v}} for v in (0, 1) for id_ in range(10)]
    server.ask("PUT", f"{at}/points", {"points": twice})
    once = server.create("s32-once", size=32)
    server.ask("PUT", f"{once}/points", {"points": twice[10:]})

    def check():
        assert server.count(at) == 10
        records = server.ask("POST", f"{at}/points/scroll", {"limit": 100})["points"]
        assert [record["payload"]["v"] for record in records] == [1] * 10
        assert len(set(ids(server.query(at, query=vectors[0], limit=10)))) == 10

    check()
    for _ in range(100):
        server.ask("PUT", f"{at}/points", {"points": twice})
    check()
    for each in (at, once):
        server.compact(each)
    check()
    assert disk_bytes(server, at) < 2 * disk_bytes(server, once)


def disk_bytes(server, at):
    """What the collection's folder takes."""
    folder = server.data_dir / "collections" / collection_id(server, at)
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def collection_id(server, at):
    name = at.removeprefix("/collections/")
    database = sqlite3.connect(server.data_dir / "catalogue.db")
    try:
        return database.execute("SELECT id FROM collections WHERE name = ?", (name,)).fetchone()[0]
    finally:
        database.close()


USER_ERRORS = [
    ("GET", "/collections/none", None, 404),
    ("PUT", "/collections/none/points", {"points": [{"id": 1, "vector": [1.0]}]}, 404),
    ("POST", "/collections/none/points/query", {"query": [1.0]}, 404),
    ("POST", "/collections/none/points/delete", {"points": [1]}, 404),
    ("POST", "/collections/none/facet", {"key": "a"}, 404),
    ("PUT", "/collections/s48", {"vectors": {"size": 10, "distance": "Dot"}}, 409),
    ("PUT", "/collections/s48-new", {"vectors": {"size": 0, "distance": "Dot"}}, 422),
    ("PUT", "/collections/s48-new", {"vectors": {"size": 3, "distance": "dot"}}, 400),
    ("PUT", "/collections/s48-new", {}, 501),
    ("POST", "/collections/s48/points/look", {}, 404),
    ("DELETE", "/collections/s48/points/query", {}, 405),
    ("PUT", "/collections/s48/points", {}, 400),
    ("PUT", "/collections/s48/points", {"points": []}, 400),
    ("PUT", "/collections/s48/points", {"points": [{"vector": [1.0] * 10}]}, 400),
    ("PUT", "/collections/s48/points", {"points": [{"id": 1, "vector": ["x"] * 10}]}, 400),
    ("PUT", "/collections/s48/points", {"points": [{"id": 1, "vector": [1e39] * 10}]}, 400),
    ("PUT", "/collections/s48/points", {"points": [{"id": 1, "vector": [1.0] * 10, "payload": [1]}]}, 400),
    ("PUT", "/collections/s48/points", {"points": [{"id": -1, "vector": [1.0] * 10}]}, 400),
    ("PUT", "/collections/s48/points", {"points": [{"id": True, "vector": [1.0] * 10}]}, 400),
    ("PUT", "/collections/s48/points", {"points": [{"id": 1, "vector": {"title": [1.0]}}]}, 501),
    ("PUT", "/collections/s48/points", {"batch": {"ids": [1, 2], "vectors": [[1.0] * 10]}}, 400),
    ("POST", "/collections/s48/points/delete", {}, 400),
    ("POST", "/collections/s48/points/payload", {"payload": {"a": 1}}, 400),
    ("POST", "/collections/s48/points/payload", {"payload": {"a": 1}, "points": [99]}, 404),
    ("POST", "/collections/s48/points/payload", {"payload": 1, "points": [1]}, 400),
    ("POST", "/collections/s48/points/payload/delete", {"keys": ["a..b"], "points": [1]}, 400),
    ("PUT", "/collections/s48/points/vectors", {"points": [{"id": 99, "vector": [1.0] * 10}]}, 404),
    ("POST", "/collections/s48/points/batch", {"operations": [{"upsert": {}, "delete": {}}]}, 400),
    ("POST", "/collections/s48/points/batch", {"operations": [{"explode": {}}]}, 400),
    ("POST", "/collections/s48/points/query", {"query": [1.0] * 3}, 400),
    ("POST", "/collections/s48/points/query", {"query": 99}, 404),
    ("POST", "/collections/s48/points/scroll", {"order_by": 7}, 400),
    ("PUT", "/collections/s48/index", {"field_name": "a", "field_schema": "number"}, 400),
    (
        "POST",
        "/collections/aliases",
        {"actions": [{"rename_alias": {"old_alias_name": "x", "new_alias_name": "y"}}]},
        404,
    ),
]


@pytest.fixture(scope="module")
def s48(server):
    at = server.create("s48", size=10, distance="Dot")
    server.ask("PUT", f"{at}/points", {"points": [{"id": 1, "vector": [1.0] * 10, "payload": {"kept": True}}]})
    return at


@pytest.mark.parametrize(("method", "path", "body", "status"), USER_ERRORS)
def test_s48_user_errors_are_told(server, s48, method, path, body, status):
    """With a sentence, whatever `wait` says, and nothing changes."""
    for wait in ("", "?wait=false", "?wait=true"):
        assert server.ask(method, path + wait, body, status=status)
    assert server.ask("POST", f"{s48}/points/scroll", {"with_vector": True})["points"] == [
        {"id": 1, "payload": {"kept": True}, "vector": [1.0] * 10}
    ]


@pytest.mark.parametrize("wait", ["true", "false"])
def test_s48_a_wrong_size_is_never_acknowledged(server, s48, wait):
    body = {"points": [{"id": 1, "vector": [1.0, 2.0, 3.0]}]}
    sentence = server.ask("PUT", f"{s48}/points?wait={wait}", body, status=400)
    assert {"1", "3", "10"} <= set(re.findall(r"\d+", sentence))


def test_s48_bodies_that_are_no_json(server, s48):
    client = server.server.client
    answer = client.put(
        f"{s48}/points", content=b'{"points": [\n{"id": }]}', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400 and "line 2, column" in answer.json()["status"]["error"]
    answer = client.put(f"{s48}/points", content=b"points", headers={"content-type": "text/plain"})
    assert answer.status_code == 415


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", "x" * 256, "/etc/passwd"])
def test_s50_names_that_escape(server, s48, name):
    """Nothing is made under them, by any route that takes a name."""
    before = server.ask("GET", "/collections"), server.ask("GET", "/aliases"), tree(server)
    client = server.server.client
    place = f"/collections/{quote(name, safe='').replace('.', '%2E')}"
    vectors = {"vectors": {"size": 2, "distance": "Dot"}}
    answers = [
        client.put(place, json=vectors),
        client.put(f"{place}/points", json={"points": [{"id": 1, "vector": [1, 2]}]}),
    ]
    actions = [{"create_alias": {"collection_name": "s48", "alias_name": name}}]
    answers.append(client.post("/collections/aliases", json={"actions": actions}))
    assert all(answer.status_code in (400, 404, 405) for answer in answers), [answer.text for answer in answers]
    assert (server.ask("GET", "/collections"), server.ask("GET", "/aliases"), tree(server)) == before


def tree(server):
    return sorted(path for path in (server.data_dir / "collections").rglob("*") if path.is_dir())


def test_s50_odd_names_stay(server):
    """With points, over a restart and a compaction."""
    names = ["тест-集合", "a.b", "50%", "con", "%2F", "..."]
    for number, name in enumerate(names):
        at = server.create(quote(name, safe=""), size=2)
        server.upsert(at, [[1, number]])
    server.compact(f"/collections/{quote(names[0])}")
    server.restart()
    listed = {collection["name"] for collection in server.ask("GET", "/collections")["collections"]}
    assert set(names) <= listed
    for name in names:
        at = f"/collections/{quote(name, safe='')}"
        assert server.count(at) == 1
        assert server.ask("DELETE", at)
