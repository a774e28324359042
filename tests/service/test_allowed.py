"""A wrong word in a body is answered with those that are allowed there."""

from __future__ import annotations

import msgspec
import pytest

from service.allowed import hint


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    for word in words:
        assert word in answer.json()["status"]["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"metric": "cosin"}, ["'cosin'", "$.metric", "'cosine', 'dot', 'l2'"]),
        ({"preview": "hnsw"}, ["'hnsw'", "'auto'", "'flat'", "'graph'", "'ivf'"]),
        ({"mode": "overwrite"}, ["'append', 'create', 'replace'"]),
        ({"on_bad_rows": "drop"}, ["'fail', 'skip'"]),
        ({"source": {"path": "a.npy", "payload": "all"}}, ["$.source.payload", "'*', a list"]),
        ({"metrc": "dot"}, ["metrc", "'metric'"]),
        ({"source": {"path": "a.npy", "column": "v"}}, ["column", "$.source", "path, upload, vector, id, payload"]),
    ],
)
def test_wrong_words_in_admin_bodies_name_what_is_allowed(fake_client, body, words):
    body = {"collection": "new", "source": {"path": "a.npy"}} | body
    refused(fake_client.post("/v1/admin/builds", json=body), 400, *words)


def test_wrong_words_in_a_create_name_what_is_allowed(fake_client):
    body = {"vectors": {"size": 2, "distance": "Dot"}, "fullview": {"preview": "hnsw"}}
    refused(fake_client.put("/collections/new", json=body), 400, "$.fullview.preview", "'graph'")
    body = {"actions": [{"make_alias": {}}]}
    refused(fake_client.post("/collections/aliases", json=body), 400, "make_alias", "create_alias")


def test_other_mistakes_get_no_hint():
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b'["x"]', type=list[int])
    assert hint(caught.value, list[int]) == ""
