"""Members that bodies do not have: slips are refused and the right name is named, others are ignored."""

from __future__ import annotations

import numpy as np
import pytest

from service.edits import edits, nearest_name

BASE = "/collections/three"


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    for word in words:
        assert word in answer.json()["status"]["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"vector": [0.1], "limit": 2}, ["'vector'", "query"]),
        ({"positive": [1]}, ["'positive'", "query"]),
        ({"negative": [1]}, ["'negative'", "query"]),
        ({"search": [1, 0, 0]}, ["'search'", "query"]),
        ({"query": [1, 0, 0], "top": 2}, ["'top'", "limit"]),
        ({"query": [1, 0, 0], "k": 2}, ["'k'", "limit"]),
        ({"query": [1, 0, 0], "limt": 2}, ["'limt'", "'limit'"]),
        ({"query": [1, 0, 0], "lmiit": 2}, ["'lmiit'", "'limit'"]),
        ({"qurey": [1, 0, 0]}, ["'qurey'", "'query'"]),
        ({"query": [1, 0, 0], "with_vectors": True}, ["'with_vectors'", "with_vector"]),
        ({"query": [1, 0, 0], "exact": True}, ["'exact'", "params.exact"]),
        ({"query": [1, 0, 0], "filters": {}}, ["'filters'", "'filter'"]),
        ({"query": [1, 0, 0], "params": {"ef": 5}}, ["ef", "$.params", "hnsw_ef"]),
        ({"query": [1, 0, 0], "params": {"recal": 0.9}}, ["recal", "$.params", "'recall'"]),
    ],
)
def test_slips_of_queries(fake_client, body, words):
    refused(fake_client.post(f"{BASE}/points/query", json=body), 400, *words)
    placed = [word.replace("$.params", "$.searches[1].params") for word in words]
    refused(fake_client.post(f"{BASE}/points/query/batch", json={"searches": [{}, body]}), 400, *placed)


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("points", {"id": [1]}, ["'id'", "ids"]),
        ("points", {"ids": [1], "with_payloads": False}, ["'with_payloads'", "'with_payload'"]),
        ("points/scroll", {"top": 5}, ["'top'", "limit"]),
        ("points/scroll", {"ofset": 5}, ["'ofset'", "'offset'"]),
        ("points/count", {"fliter": {}}, ["'fliter'", "'filter'"]),
        ("points/recall", {"smple": 5}, ["smple", "'sample'"]),
    ],
)
def test_slips_of_other_bodies(fake_client, route, body, words):
    refused(fake_client.post(f"{BASE}/{route}", json=body), 400, *words)


@pytest.mark.parametrize("name", ["fulview", "vector_config", "memory_budget"])
def test_slips_of_a_create(fake_client, name):
    body = {"vectors": {"size": 2, "distance": "Dot"}, name: {}}
    refused(fake_client.put("/collections/new", json=body), 400, repr(name))
    assert not fake_client.engine.exists("new")


def test_other_unknown_members_are_ignored(fake_client):
    body = {"query": [1, 0, 0], "limit": 1, "comment": "mine", "consistency": 1, "vector": None}
    answer = fake_client.post(f"{BASE}/points/query", json=body)
    assert [point["id"] for point in answer.json()["result"]["points"]] == [1]
    body = {"query": [1, "x", 0], "comment": "mine"}
    refused(fake_client.post(f"{BASE}/points/query", json=body), 400, "$.query[1]")
    body = {"vectors": {"size": 2, "distance": "Dot"}, "comment": "mine"}
    assert fake_client.put("/collections/new", json=body).status_code == 200


def test_options_of_raw_queries(fake_client):
    def raw(**options):
        content = np.array([[1, 0, 0]], "<f4").tobytes()
        headers = {"content-type": "application/octet-stream"}
        return fake_client.post(f"{BASE}/points/query", content=content, headers=headers, params=options)

    refused(raw(limt=2), 400, "'limt'", "'limit'")
    refused(raw(k=2), 400, "'k'", "limit")
    refused(raw(with_payload="true"), 400, "'with_payload'", "score_threshold")
    assert raw(limit=2, timeout=5).status_code == 200


def test_edits():
    counts = [edits(*pair) for pair in (("limit", "limit"), ("limt", "limit"), ("lmiit", "limit"), ("", "abc"))]
    assert counts == [0, 1, 1, 3]
    assert nearest_name("probs", ("probes", "params")) == "probes"
    assert nearest_name("idd", ("ids",)) == "ids"
    assert nearest_name("xyz", ("ids", "limit")) is None
    assert nearest_name("x" * 10_000, ("limit",)) is None


def test_deleting_an_alias_that_is_not_there_is_no_error(fake_client):
    def change(**action):
        return fake_client.post("/collections/aliases", json={"actions": [action]})

    answer = change(delete_alias={"alias_name": "none"})
    assert (answer.status_code, answer.json()["result"]) == (200, True)
    refused(change(rename_alias={"old_alias_name": "none", "new_alias_name": "other"}), 404, "'none'")
