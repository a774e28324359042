"""The gate: keys, limits of bodies, request ids, and one shape for every error of every route."""

from __future__ import annotations

import logging

import pytest
from fake_index import PAYLOAD, VECTORS, open_fake, put_fake
from starlette.testclient import TestClient

from service.answers import speaks_openai
from service.app import create_app
from service.gate import OPEN_PATHS
from service.settings import Settings

JSON = {"content-type": "application/json"}


def every_route(app):
    """(method, path with its parameters filled in) of all routes of the application."""
    found = []
    for path, operations in app.openapi()["paths"].items():
        filled = path
        for name in ("collection", "job", "upload", "field", "name", "point", "model"):
            filled = filled.replace(f"{{{name}}}", "x")
        found += [(method.upper(), filled) for method in operations]
    return [*found, ("GET", "/openapi.json"), ("GET", "/nowhere"), ("GET", "/docs")]


ROUTES = every_route(create_app(Settings()))


def check_error(answer, status=None):
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if status is not None:
        assert answer.status_code == status, answer.text
    if speaks_openai(answer.url.path):
        assert body["error"].keys() == {"message", "type", "param", "code"} and body["error"]["message"]
        return body
    assert body.keys() == {"status", "time", "code", "request_id"}
    assert body["status"].keys() == {"error"}
    assert body["status"]["error"]
    assert answer.headers["x-request-id"] == body["request_id"]
    return body


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """An application with a key."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("locked") / "data", api_key="sesame")
    with TestClient(create_app(settings, opener=open_fake)) as running:
        yield running


@pytest.fixture(scope="module")
def open_client(tmp_path_factory):
    """An application without a key."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("open") / "data", body_limit_mb=0.1)
    with TestClient(create_app(settings, opener=open_fake)) as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """An application with the collection `three`."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("served") / "data")
    with TestClient(create_app(settings, opener=open_fake)) as running:
        put_fake(running.app.state.parts.engine, "three", VECTORS, ids=[1, 2, 3], payload=PAYLOAD)
        yield running


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_s49_every_route_needs_the_key(locked, method, path):
    tries = (
        locked.request(method, path),
        locked.request(method, path, headers={"api-key": "wrong"}),
        locked.request(method, path, headers={"authorization": "Bearer wrong"}),
        locked.request(method, path, params={"api-key": "sesame", "api_key": "sesame"}),
    )
    if path in OPEN_PATHS:
        assert all(answer.status_code == 200 for answer in tries)
        return
    for answer in tries:
        check_error(answer, 401)
        assert "sesame" not in answer.text + str(answer.headers)
    assert locked.request(method, path, headers={"api-key": "sesame"}).status_code != 401
    assert locked.request(method, path, headers={"authorization": "Bearer sesame"}).status_code != 401


def test_s49_metrics_are_open_only_where_asked_for(tmp_path):
    settings = Settings(data_dir=tmp_path / "data", api_key="sesame", metrics_open=True)
    with TestClient(create_app(settings, opener=open_fake)) as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/collections").status_code == 401
        assert "sesame" not in client.get("/metrics").text


def test_keys_beyond_ascii_are_compared_not_crashed_on(locked):
    check_error(locked.get("/collections", headers={"api-key": "sésame".encode("latin-1")}), 401)
    check_error(locked.get("/collections", headers={"api-key": "sésame".encode()}), 401)


def test_a_key_beyond_ascii_opens(tmp_path):
    settings = Settings(data_dir=tmp_path / "data", api_key="sésame")
    with TestClient(create_app(settings, opener=open_fake)) as client:
        assert client.get("/collections", headers={"api-key": "sésame".encode()}).status_code == 200


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[0] in {"POST", "PUT"}])
def test_every_route_fails_in_one_shape(open_client, method, path):
    if path.endswith(("/cancel", "/restart")) or path == "/v1/admin/uploads":
        expected = {400, 404}
    else:
        expected = {400, 404, 501}
    answer = open_client.request(method, path, content=b"{", headers=JSON)
    assert answer.status_code in expected
    check_error(answer)


def test_s48_bad_json_names_line_and_column(open_client):
    body = check_error(
        open_client.post("/collections/x/points/query", content=b'{"limit": 1,\n "query": }', headers=JSON), 400
    )
    assert "line 2, column 11" in body["status"]["error"]
    body = check_error(open_client.post("/collections/x/points/query", content=b'{"limit"', headers=JSON), 400)
    assert "line 1, column 9" in body["status"]["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/collections/x", 404),
        ("GET", "/collections/", 404),
        ("POST", "/collections/x/points/nowhere", 404),
        ("DELETE", "/collections", 405),
        ("PUT", "/collections/x/points/query", 405),
        ("PATCH", "/collections/x", 415),
        ("PUT", "/collections/x/points", 415),
        ("POST", "/collections/x/facet", 415),
        ("GET", "/collections/x/snapshots", 404),
        ("GET", "/v1/admin/memory", 501),
        ("GET", "/v1/admin/builds/x", 404),
        ("POST", "/v1/admin/builds/x/cancel", 404),
        ("POST", "/v1/admin/builds/x/restart", 404),
        ("DELETE", "/v1/admin/builds/x", 404),
        ("DELETE", "/v1/admin/uploads/x", 404),
        ("DELETE", "/v1/admin/uploads/..", 404),
    ],
)
def test_s48_statuses(open_client, method, path, status):
    check_error(open_client.request(method, path), status)


def test_openai_routes_fail_in_their_own_shape(open_client):
    body = check_error(open_client.post("/v1/chat/completions", json={}), 400)
    assert body["error"]["param"] == "model"
    check_error(open_client.post("/v1/completions", json={"model": "x", "prompt": "a"}), 404)
    check_error(open_client.get("/v1/models/x/y"), 404)
    check_error(open_client.delete("/v1/models"), 405)
    for route in ("/v1/embeddings", "/v1/images/generations", "/v1/chat", "/v1/decodersx"):
        body = check_error(open_client.post(route, json={}), 404)
        assert route in body["error"]["message"] and body["error"]["code"] == "not_found"
    for route in ("/v1/admin/nothing", "/v1/decoders/x/nothing", "/v1/collections/x", "/v1"):
        assert route in check_error(open_client.get(route), 404)["status"]["error"]
    check_error(open_client.post("/v1/completions", content=b"x" * 200_000, headers=JSON), 413)
    check_error(open_client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}), 415)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_s48_wrong_content_type(open_client, content_type):
    answer = open_client.post("/collections/x/points/count", content=b"{}", headers={"content-type": content_type})
    assert "application/json" in check_error(answer, 415)["status"]["error"]


def test_content_type_parameters_and_case(open_client):
    answer = open_client.post(
        "/collections/x/points/count", content=b"{}", headers={"content-type": "Application/JSON; charset=utf-8"}
    )
    check_error(answer, 404)


def test_compressed_bodies_are_refused(open_client):
    headers = JSON | {"content-encoding": "gzip"}
    check_error(open_client.post("/collections/x/points/count", content=b"\x1f\x8b", headers=headers), 415)
    headers = {"content-type": "application/octet-stream", "content-encoding": "gzip"}
    check_error(open_client.post("/v1/admin/uploads?name=a.npy", content=b"\x1f\x8b", headers=headers), 415)


def test_request_ids_are_taken_over_or_made(open_client):
    assert open_client.get("/livez", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {open_client.get("/livez").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in ("a b", "x" * 200, "a\tb"):
        assert open_client.get("/livez", headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_s45_bodies_over_the_limit(open_client):
    for content in (b" " * 150_000, (b" " * 50_000 for _ in range(3))):
        body = check_error(open_client.post("/collections/x/points/count", content=content, headers=JSON), 413)
        assert "150,000" in body["status"]["error"]
        assert "100,000" in body["status"]["error"]
        assert "batch" in body["status"]["error"]
    check_error(open_client.post("/collections/x/points/count", content=b"{}".ljust(100_000), headers=JSON), 404)


def test_a_failure_of_ours_is_500_with_a_log_line_that_has_the_id(fake_client, caplog):
    def fail(*_, **__):
        raise ZeroDivisionError("nobody foresaw this")

    fake_client.three.search = fail
    with caplog.at_level(logging.ERROR):
        answer = fake_client.post("/collections/three/points/query", json={"query": [1, 0, 0]})
    body = check_error(answer, 500)
    assert body["request_id"] in caplog.text
    assert "nobody foresaw this" in caplog.text
    assert "nobody foresaw this" not in answer.text


MALFORMED = [
    b"",
    b"null",
    b"[]",
    b"{",
    b'"x"',
    b"\xff\xfe",
    b'{"query": "\xff"}',
    b'{"query": "\\ud800"}',
    b"[" * 10_000,
    b'{"query":' * 5000,
    b'{"query": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"query": [NaN, 1, 2]}',
    b'{"query": [1e999, 1, 2]}',
    b'{"query": [1e39, 1, 2]}',
    b'{"query": [Infinity, 1, 2]}',
    b'{"query": [null, 1, 2]}',
    b'{"query": [[1], 1, 2]}',
    b'{"query": {"nearest": {"nearest": {"nearest": [1]}}}}',
    b'{"query": {"nearest": true}}',
    b'{"query": {"base64": "!"}}',
    b'{"query": {"base64": "AAA="}}',
    b'{"query": {"base64": 1}}',
    b'{"query": -1}',
    b'{"query": 18446744073709551616}',
    b'{"query": 1' + b"0" * 5000 + b"}",
    b'{"query": [1, 0, 0], "limit": 0}',
    b'{"query": [1, 0, 0], "limit": -1}',
    b'{"query": [1, 0, 0], "limit": 1e18}',
    b'{"query": [1, 0, 0], "limit": 0.01}',
    b'{"query": [1, 0, 0], "limit": "5"}',
    b'{"query": [1, 0, 0], "limit": true}',
    b'{"query": [1, 0, 0], "offset": 99999999999999999999}',
    b'{"query": [1, 0, 0], "params": []}',
    b'{"query": [1, 0, 0], "params": {"exact": "yes"}}',
    b'{"query": [1, 0, 0], "params": {"beam": 99999999999}}',
    b'{"query": [1, 0, 0], "params": {"recall": -1}}',
    b'{"query": [1, 0, 0], "score_threshold": "x"}',
    b'{"query": [1, 0, 0], "with_payload": 7}',
    b'{"query": [1, 0, 0], "with_payload": [1]}',
    b'{"query": [1, 0, 0], "with_payload": ["a..b"]}',
    b'{"query": [1, 0, 0], "with_vector": {}}',
    b'{"query": [1, 0, 0], "filter": {"must": {"key": 1, "match": {}}}}',
    b'{"query": [1, 0, 0], "filter": {"must": [[]]}}',
    b'{"query": [1, 0, 0], "filter": {"min_should": {"conditions": [], "min_count": -1}}}',
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
@pytest.mark.parametrize("route", ["query", "query/batch"])
def test_s47_malformed_bodies_never_fail_the_server(served, body, route):
    if route == "query/batch":
        body = b'{"searches": [' + (body or b"{") + b"]}"
    answer = served.post(f"/collections/three/points/{route}", content=body, headers=JSON)
    assert answer.status_code in {400, 422, 501}, answer.text
    check_error(answer)
    good = served.post("/collections/three/points/query", json={"query": [1, 0, 0]})
    assert [point["id"] for point in good.json()["result"]["points"]] == [1, 3, 2]


@pytest.mark.parametrize(
    ("vectors", "status", "words"),
    [
        ({"size": 0, "distance": "Dot"}, 422, ["size", "0", "65536"]),
        ({"size": -1, "distance": "Dot"}, 422, ["-1"]),
        ({"size": 65537, "distance": "Dot"}, 422, ["65537"]),
        ({"size": 1.5, "distance": "Dot"}, 400, ["size"]),
        ({"size": "3", "distance": "Dot"}, 400, ["size"]),
        ({"size": 3}, 400, ["distance"]),
        ({"size": 3, "distance": "dot"}, 400, ["dot", "Cosine"]),
        ({"size": 3, "distance": "Manhattan"}, 501, ["Manhattan"]),
        ({"title": {"size": 3, "distance": "Dot"}}, 501, ["title"]),
        ({"size": 3, "distance": "Dot", "multivector_config": {"comparator": "max_sim"}}, 501, ["multi"]),
        ({}, 501, ["without vectors"]),
        (3, 400, ["vectors"]),
    ],
)
def test_s47_bad_collections(open_client, vectors, status, words):
    body = check_error(open_client.put("/collections/bad", json={"vectors": vectors}), status)
    for word in words:
        assert word in body["status"]["error"]
    assert open_client.get("/collections/bad").status_code == 404


def test_readiness_that_is_not_there_yet_is_no_warning(fake_client, caplog):
    caplog.set_level(logging.DEBUG, logger="fullview.http")
    fake_client.app.state.parts.draining = True
    assert fake_client.get("/readyz").status_code == 503
    fake_client.app.state.parts.draining = False
    assert fake_client.get("/v1/admin/memory").status_code == 501
    levels = {r.args[2]: r.levelname for r in caplog.records if r.name == "fullview.http"}
    assert levels == {"/readyz": "DEBUG", "/v1/admin/memory": "WARNING"}
