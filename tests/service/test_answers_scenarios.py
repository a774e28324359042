"""What answers over HTTP promise, with real indexes: batches, prefixes, paging, scores and their order."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from real_index import put_index
from starlette.testclient import TestClient

from service.app import create_app


def ask(client, name, query, **body):
    answer = client.post(f"/collections/{name}/points/query", json={"query": query, **body})
    assert answer.status_code == 200, answer.text
    return [(point["id"], point["score"]) for point in answer.json()["result"]["points"]]


def ask_batch(client, name, queries, **body):
    searches = [{"query": query, **body} for query in queries]
    answer = client.post(f"/collections/{name}/points/query/batch", json={"searches": searches})
    assert answer.status_code == 200, answer.text
    return [[(point["id"], point["score"]) for point in one["points"]] for one in answer.json()["result"]]


@pytest.mark.parametrize(("rows", "dim", "kind"), [(2000, 24, "normal"), (300, 5000, "zeros and ones")])
def test_s21_one_by_one_and_in_batches(client, engine, rows, dim, kind):
    rng = np.random.default_rng(21)
    vectors = rng.standard_normal((rows, dim)) if kind == "normal" else rng.integers(0, 2, (rows, dim))
    vectors = vectors.astype(np.float32)
    put_index(engine, "c", vectors, metric="dot")
    queries = vectors[:64].tolist()
    single = [ask(client, "c", query) for query in queries]
    assert ask_batch(client, "c", queries) == single
    sevens = [answer for start in range(0, 64, 7) for answer in ask_batch(client, "c", queries[start : start + 7])]
    assert sevens == single
    assert ask_batch(client, "c", queries[::-1])[::-1] == single


def test_s22_shorter_lists_are_prefixes(client, engine):
    rng = np.random.default_rng(22)
    vectors = rng.integers(1, 5, (1000, 4)).astype(np.float32)
    put_index(engine, "grid", vectors, metric="l2")
    query = [2.0, 2.0, 3.0, 1.0]
    whole = ask(client, "grid", query, limit=1000, params={"exact": True})
    assert whole == sorted(whole, key=lambda hit: (hit[1], hit[0]))
    for limit in range(1, 101):
        assert ask(client, "grid", query, limit=limit, params={"exact": True}) == whole[:limit]


def test_s23_pages_never_repeat(client, engine):
    put_index(
        engine, "line", np.array([[(k + 1) * x for x in (0.1, 0.05, 0.0333, 0.025)] for k in range(25)], np.float32)
    )
    pages = [ask(client, "line", [0.1, 0.05, 0.0333, 0.025], limit=10, offset=offset) for offset in (0, 10, 20)]
    assert sorted(id_ for page in pages for id_, _ in page) == list(range(25))
    vectors = np.random.default_rng(23).standard_normal((3000, 16)).astype(np.float32)
    put_index(engine, "many", vectors)
    query, exact = vectors[5].tolist(), {"exact": True}
    walk = [hit for page in range(20) for hit in ask(client, "many", query, limit=100, offset=100 * page, params=exact)]
    assert len({id_ for id_, _ in walk}) == 2000
    assert walk == ask(client, "many", query, limit=2000, params=exact)


def test_s24_cosine_stays_within_1(client, engine):
    vectors = np.random.default_rng(24).standard_normal((1000, 128)).astype(np.float32)
    put_index(engine, "c", vectors)
    answers = ask_batch(client, "c", vectors.tolist(), limit=5, score_threshold=1.0)
    assert [answer[0] for answer in answers] == [(row, 1.0) for row in range(1000)]
    answers = ask_batch(client, "c", vectors.tolist(), limit=5)
    assert all(-1.0 <= score <= 1.0 for answer in answers for _, score in answer)


def test_s25_what_a_score_means(client, engine):
    for metric, score in (("dot", 11.0), ("cosine", 0.98387), ("l2", 2.828427)):
        put_index(engine, metric, [[3.0, 4.0]], metric=metric)
        assert ask(client, metric, [1.0, 2.0]) == [(0, pytest.approx(score, abs=1e-5))]
        info = client.get(f"/collections/{metric}").json()["result"]["fullview"]
        assert info["metric"] == metric
        assert info["order"] == ("lower is better" if metric == "l2" else "higher is better")
    put_index(engine, "signs", [[-1.0, 0.0], [-2.0, 0.0]], metric="dot", ids=[1, 2])
    assert ask(client, "signs", [1.0, 0.0]) == [(1, -1.0), (2, -2.0)]
    assert ask(client, "signs", [1.0, 0.0], score_threshold=-1.5) == [(1, -1.0)]
    put_index(engine, "far", [[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]], metric="l2")
    assert ask(client, "far", [0.0, 0.0], score_threshold=5.0) == [(0, 0.0), (1, 5.0)]


def test_s02_zero_vectors(client, engine):
    put_index(engine, "c", [[1, 0, 0], [0, 0, 0], [0.9, 0.1, 0]], ids=[1, 2, 3])
    assert ask(client, "c", [1, 0, 0]) == [(1, 1.0), (3, pytest.approx(0.993884, abs=1e-6)), (2, 0.0)]
    answer = client.post("/collections/c/points/query", json={"query": [0, 0, 0]})
    assert answer.status_code == 400
    assert "zero" in answer.json()["status"]["error"]


def test_s16_the_same_bytes_after_a_restart(settings):
    vectors = np.random.default_rng(16).standard_normal((500, 16)).astype(np.float32)
    body = {"query": vectors[3].tolist(), "with_vector": True}
    with TestClient(create_app(settings)) as first:
        put_index(first.app.state.parts.engine, "c", vectors)
        before = first.post("/collections/c/points/query", json=body).content.partition(b',"status"')[0]
    with TestClient(create_app(settings)) as again:
        again.app.state.parts.engine._loader.join()
        after = again.post("/collections/c/points/query", json=body).content.partition(b',"status"')[0]
    assert before == after


def test_s30_a_flipped_byte_is_named(client, engine, settings):
    vectors = np.random.default_rng(30).standard_normal((300, 16)).astype(np.float32)
    index = put_index(engine, "flipped", vectors)
    put_index(engine, "good", vectors)
    file = index.path / "vectors.bin"
    content = bytearray(file.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 + 5] ^= 1
    file.write_bytes(content)
    body = {"query": vectors[0].tolist(), "params": {"exact": True}}
    answer = client.post("/collections/flipped/points/query", json=body)
    assert answer.status_code == 503
    assert "vectors.bin" in answer.json()["status"]["error"]
    info = client.get("/collections/flipped").json()["result"]
    assert info["status"] == "red"
    assert "vectors.bin" in info["fullview"]["reason"]
    assert client.post("/collections/good/points/query", json=body).status_code == 200
    assert client.delete("/collections/flipped").json()["result"] is True


def test_s35_a_newer_format_is_refused_untouched(settings):
    with TestClient(create_app(settings)) as first:
        vectors = np.random.default_rng(35).standard_normal((50, 4)).astype(np.float32)
        index = put_index(first.app.state.parts.engine, "c", vectors)
    manifest = index.path / "manifest.json"
    content = json.loads(manifest.read_text())
    content["format_version"] += 1
    manifest.write_text(json.dumps(content))

    def sums():
        return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in index.path.rglob("*") if p.is_file()}

    before = sums()
    with TestClient(create_app(settings)) as again:
        again.app.state.parts.engine._loader.join()
        answer = again.post("/collections/c/points/query", json={"query": [1, 0, 0, 0]})
        assert answer.status_code == 503
        assert str(content["format_version"]) in answer.json()["status"]["error"]
        assert str(content["format_version"] - 1) in answer.json()["status"]["error"]
    assert sums() == before
