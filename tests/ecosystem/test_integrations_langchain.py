"""LangChain's own suite over our vector store, and what the suite does not ask."""

from __future__ import annotations

import uuid

import pytest

tests_of = pytest.importorskip(
    "langchain_tests.integration_tests.vectorstores", reason="the extra ecosystem is not installed"
)

from asynchronous import mark_coroutines  # noqa: E402
from langchain_core.embeddings import DeterministicFakeEmbedding  # noqa: E402

from service.integrations.connection import Connection, RequestFailedError  # noqa: E402
from service.integrations.langchain import FullviewVectorStore  # noqa: E402

mark_coroutines(tests_of.VectorStoreIntegrationTests)


@pytest.fixture
def store(server):
    name = f"langchain {uuid.uuid4()}"
    yield FullviewVectorStore(DeterministicFakeEmbedding(size=6), url=server.url, collection=name)
    Connection(server.url).request("DELETE", "collections", name)


class TestFullviewVectorStore(tests_of.VectorStoreIntegrationTests):
    """Sync and async."""

    @pytest.fixture
    def vectorstore(self, store):
        return store


def test_filters_thresholds_and_offsets(store):
    texts = [f"text {number}" for number in range(20)]
    ids = store.add_texts(texts, [{"n": number} for number in range(20)])
    assert len(set(ids)) == 20
    found = store.similarity_search_with_score("text 7", k=3)
    assert found[0][0].page_content == "text 7"
    assert found[0][0].id == ids[7]
    assert found[0][1] == pytest.approx(1.0)
    low = {"must": [{"key": "metadata.n", "range": {"lt": 5}}]}
    assert {doc.metadata["n"] for doc in store.similarity_search("text 7", k=10, filter=low)} == {0, 1, 2, 3, 4}
    assert [doc.page_content for doc in store.similarity_search("text 7", score_threshold=0.9999)] == ["text 7"]
    assert store.similarity_search("text 7", k=2, offset=1) == [doc for doc, _ in found[1:]]
    vector = store.embeddings.embed_query("text 7")
    assert store.similarity_search_by_vector(vector, k=3) == [doc for doc, _ in found]
    assert store.similarity_search_with_relevance_scores("text 7", k=1)[0][1] == pytest.approx(1.0)


def test_max_marginal_relevance(store):
    store.add_texts([f"text {number}" for number in range(20)])
    near = store.max_marginal_relevance_search("text 7", k=4, fetch_k=10, lambda_mult=1.0)
    assert near == store.similarity_search("text 7", k=4)
    apart = store.max_marginal_relevance_search("text 7", k=4, fetch_k=20, lambda_mult=0.0)
    assert apart[0] == near[0]
    assert apart != near


def test_from_texts_and_delete_all(server):
    name = f"langchain {uuid.uuid4()}"
    embedding = DeterministicFakeEmbedding(size=6)
    ids = ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "doc/1"]
    options = {"url": server.url, "collection": name, "distance": "Euclid"}
    store = FullviewVectorStore.from_texts(["one", "two"], embedding, ids=ids, **options)
    assert [doc.id for doc in store.get_by_ids(ids)] == ids
    assert store.similarity_search_with_relevance_scores("one", k=1)[0][1] == pytest.approx(1.0)
    assert store.delete()
    assert store.similarity_search("one") == []
    Connection(server.url).request("DELETE", "collections", name)


def test_what_the_server_refuses(store):
    store.add_texts(["one"])
    with pytest.raises(RequestFailedError, match=r"shoud.*HTTP 400") as caught:
        store.similarity_search("one", filter={"shoud": []})
    assert caught.value.status == 400
    with pytest.raises(ValueError, match="http://"):
        Connection("localhost:6333")
