"""Haystack's QdrantDocumentStore, unmodified, with a server of ours in Qdrant's place: Haystack's own suites for stores.

NOT_FOR_QDRANT: what cannot pass on any server; the adapter's own tests change or skip the same ones.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

suites = pytest.importorskip("haystack.testing.document_store", reason="the extra ecosystem is not installed")
pytest.importorskip("haystack_integrations.document_stores.qdrant", reason="the extra ecosystem is not installed")

import haystack.testing.document_store_async as async_suites  # noqa: E402
from asynchronous import mark_coroutines  # noqa: E402
from haystack import Document  # noqa: E402
from haystack.document_stores.types import DuplicatePolicy  # noqa: E402
from haystack_integrations.components.retrievers.qdrant import QdrantEmbeddingRetriever  # noqa: E402
from haystack_integrations.document_stores.qdrant import QdrantDocumentStore  # noqa: E402

_NO_NULL = "the adapter refuses None in comparisons (FilterError)"
NOT_FOR_QDRANT = {
    "test_write_documents": "it has no default policy for duplicates",
    **dict.fromkeys(
        [
            f"test_comparison_{name}_with_none"
            for name in ("equal", "not_equal", "greater_than", "greater_than_equal", "less_than", "less_than_equal")
        ],
        _NO_NULL,
    ),
    "test_not_operator": "the adapter makes NOT of several conditions a must_not of each, which is NOR",
    "test_missing_top_level_operator_key": "the adapter raises ValueError in place of FilterError",
}


@pytest.fixture
def make_store(server):
    """Makes empty stores; their collections go afterwards."""
    made = []

    def make(dim=768, **options):
        made.append(f"haystack {uuid.uuid4()}")
        settings = {"recreate_index": True, "return_embedding": True, "wait_result_from_api": True}
        return QdrantDocumentStore(url=server.url, index=made[-1], embedding_dim=dim, **(settings | options))

    yield make
    for name in made:
        server.client.delete(f"/collections/{name}")


class OfQdrant:
    """The order is that of ids, which the adapter makes itself."""

    @pytest.fixture
    def document_store(self, make_store):
        return make_store()

    @staticmethod
    def assert_documents_are_equal(received, expected):
        def by_id(documents):
            return sorted(documents, key=lambda document: document.id)

        received, expected = by_id(received), by_id(expected)
        for found, wanted in zip(received, expected, strict=True):
            # As float32 holds them. Of a point without a vector comes {}, which the adapter takes for one of length 0.
            assert (found.embedding or []) == pytest.approx(wanted.embedding or [], rel=1e-6)
        assert [replace(found, embedding=None) for found in received] == [
            replace(each, embedding=None) for each in expected
        ]


def _without_impossible(cls):
    def skipping(reason):
        def skipped(self):
            pytest.skip(reason)

        return skipped

    for name, reason in NOT_FOR_QDRANT.items():
        for each in (name, f"{name}_async"):
            if hasattr(cls, each):
                setattr(cls, each, skipping(reason))
    return cls


@_without_impossible
class TestSynchronously(
    OfQdrant,
    suites.DocumentStoreBaseExtendedTests,
    suites.CountDocumentsByFilterTest,
    suites.CountUniqueMetadataByFilterTest,
    suites.GetMetadataFieldsInfoTest,
    suites.GetMetadataFieldMinMaxTest,
    suites.GetMetadataFieldUniqueValuesTest,
):
    """Everything that Haystack asks of a store that can do it."""


ASYNC = [suite for name, suite in sorted(vars(async_suites).items()) if name.endswith("AsyncTest")]
mark_coroutines(*ASYNC)
TestAsynchronously = _without_impossible(type("TestAsynchronously", (OfQdrant, *ASYNC), {}))


DOCUMENTS = [
    Document(
        id=f"doc {number}",
        content=f"text {number}",
        meta={"n": number, "kind": "ab"[number % 2]},
        embedding=[0.1] * number + [1.0] + [0.1] * (11 - number),
    )
    for number in range(12)
]
"""Each along an axis of its own, nearly."""


def test_retrieving_by_embedding(make_store):
    store = make_store(dim=12, similarity="cosine")
    assert store.write_documents(DOCUMENTS, policy=DuplicatePolicy.OVERWRITE) == 12
    assert store.write_documents(DOCUMENTS[:2], policy=DuplicatePolicy.SKIP) == 0
    retriever = QdrantEmbeddingRetriever(document_store=store, top_k=3, return_embedding=True)
    found = retriever.run(query_embedding=DOCUMENTS[4].embedding)["documents"]
    assert found[0].id == "doc 4" and len(found) == 3
    assert found[0].embedding == pytest.approx(DOCUMENTS[4].embedding)
    even = {"field": "meta.kind", "operator": "==", "value": "a"}
    found = retriever.run(query_embedding=DOCUMENTS[5].embedding, top_k=20, filters=even)["documents"]
    assert {document.meta["kind"] for document in found} == {"a"} and len(found) == 6
    near = retriever.run(query_embedding=DOCUMENTS[5].embedding, score_threshold=0.99)["documents"]
    assert [document.id for document in near] == ["doc 5"]


def test_retrieving_groups(make_store):
    store = make_store(dim=12)
    store.write_documents(DOCUMENTS, policy=DuplicatePolicy.OVERWRITE)
    retriever = QdrantEmbeddingRetriever(document_store=store, group_by="meta.kind", group_size=2, top_k=5)
    found = retriever.run(query_embedding=DOCUMENTS[5].embedding)["documents"]
    assert sorted(document.meta["kind"] for document in found) == ["a", "a", "b", "b"]
    assert found[0].id == "doc 5"


def test_documents_without_embeddings_and_by_id(make_store):
    store = make_store(dim=12)
    store.write_documents([Document(id="plain", content="no embedding", meta={"n": 99})])
    store.write_documents(DOCUMENTS)
    assert store.count_documents() == 13
    assert [document.id for document in store.get_documents_by_id(["plain", "doc 3"])] in (
        ["plain", "doc 3"],
        ["doc 3", "plain"],
    )
    retriever = QdrantEmbeddingRetriever(document_store=store, top_k=50)
    assert len(retriever.run(query_embedding=DOCUMENTS[0].embedding)["documents"]) == 12
    store.delete_documents(["plain"])
    assert store.count_documents() == 12


def test_a_store_that_is_there_already(make_store, server):
    store = make_store(dim=12, payload_fields_to_index=[{"field_name": "meta.n", "field_schema": "integer"}])
    store.write_documents(DOCUMENTS)
    again = QdrantDocumentStore(url=server.url, index=store.index, embedding_dim=12)
    assert again.count_documents() == 12
    assert again.get_metadata_field_min_max("n") == {"min": 0, "max": 11}
    with pytest.raises(ValueError, match="vector size"):
        QdrantDocumentStore(url=server.url, index=store.index, embedding_dim=13).count_documents()
