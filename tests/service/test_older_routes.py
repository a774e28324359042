"""Routes of older Qdrant and misspelt ones: each answer says where to ask."""

from __future__ import annotations

import pytest

from service.routes.later import OLDER

BASE = "/collections/three/points"


@pytest.mark.parametrize(("method", "path", "advice"), OLDER)
def test_older_routes_are_501_and_name_points_query(fake_client, method, path, advice):
    answer = fake_client.request(method, path.replace("{collection}", "three"), json={"vector": [1, 0, 0]})
    assert answer.status_code == 501
    assert answer.json()["code"] == "unsupported"
    assert advice in answer.json()["status"]["error"]
    assert "points/query" in answer.json()["status"]["error"]


@pytest.mark.parametrize("word", ["search/matrix/pairs", "search/matrix/offsets"])
def test_search_matrix(fake_client, word):
    assert fake_client.post(f"{BASE}/{word}", json={}).status_code == 501


@pytest.mark.parametrize(
    ("method", "word", "near"),
    [
        ("POST", "qurey", "points/query"),
        ("POST", "scrol", "points/scroll"),
        ("POST", "lookup/by/magic", "points/query"),
        ("PUT", "upsert", "points/query"),
        ("DELETE", "a/b", "points/query"),
    ],
)
def test_no_word_is_taken_for_an_id(fake_client, method, word, near):
    answer = fake_client.request(method, f"{BASE}/{word}", json={})
    assert answer.status_code == 404, answer.text
    assert near in answer.json()["status"]["error"]


@pytest.mark.parametrize(
    ("method", "word", "allowed"),
    [
        ("DELETE", "query", "POST"),
        ("PATCH", "payload", "POST, PUT"),
        ("DELETE", "7", "GET"),
        ("POST", "0d8f1c9e-1f52-4d4c-9a54-3b1f3f0c2a11", "GET"),
    ],
)
def test_methods_that_a_route_does_not_take(fake_client, method, word, allowed):
    answer = fake_client.request(method, f"{BASE}/{word}", json={})
    assert answer.status_code == 405, answer.text
    assert answer.headers["allow"] == allowed
    assert "does not take" in answer.json()["status"]["error"]
