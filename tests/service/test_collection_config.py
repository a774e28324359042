"""PATCH and payload indexes: what is kept of a collection's configuration."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from service.collection_config import changed_config, parse_schema, with_index, without_index
from service.errors import MalformedError

KEPT = json.dumps({"vector": {"on_disk": True}, "metadata": {"a": 1, "b": 2}, "hnsw_config": {"m": 8}}).encode()


def changed(**given):
    return json.loads(changed_config(KEPT, given))


def test_a_patch_is_merged_and_null_takes_metadata_out():
    assert changed(metadata={"a": None, "c": 3})["metadata"] == {"b": 2, "c": 3}
    assert changed(hnsw_config={"ef_construct": 5})["hnsw_config"] == {"m": 8, "ef_construct": 5}
    assert changed(vectors={"": {"on_disk": False}})["vector"] == {"on_disk": False}
    assert changed(params={"on_disk_payload": True})["on_disk_payload"] is True
    assert changed(fullview={"recall": 0.9})["fullview"] == {"recall": 0.9}


def test_payload_indexes_come_and_go():
    config = with_index(KEPT, "a.b", parse_schema(Raw(b'{"type":"text","tokenizer":"word"}'), path="$"))
    assert json.loads(config)["payload_schema"] == {
        "a.b": {"data_type": "text", "params": {"type": "text", "tokenizer": "word"}}
    }
    assert json.loads(without_index(config, "a.b"))["payload_schema"] == {}
    assert json.loads(without_index(KEPT, "none")) == json.loads(KEPT)
    assert parse_schema(Raw(b'"integer"'), path="$") == {"data_type": "integer"}
    with pytest.raises(MalformedError, match=r"\$\.x is 'number'"):
        parse_schema(Raw(b'"number"'), path="$.x")
