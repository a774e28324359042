"""LangChain's QdrantVectorStore, unmodified, with a server of ours in Qdrant's place."""

from __future__ import annotations

import uuid

import pytest

langchain_qdrant = pytest.importorskip("langchain_qdrant", reason="the extra ecosystem is not installed")

from asynchronous import mark_coroutines  # noqa: E402
from langchain_core.documents import Document  # noqa: E402
from langchain_core.embeddings import DeterministicFakeEmbedding  # noqa: E402
from qdrant_client import QdrantClient, models  # noqa: E402

QdrantVectorStore = langchain_qdrant.QdrantVectorStore
SIZE = 12
TEXTS = [f"text {number}" for number in range(30)]
METADATAS = [{"number": number, "kind": "even" if number % 2 == 0 else "odd"} for number in range(30)]
IDS = [str(uuid.UUID(int=number + 1)) for number in range(29)] + [7]


@pytest.fixture
def name(server):
    made = f"langchain {uuid.uuid4()}"
    yield made
    server.client.delete(f"/collections/{made}")


@pytest.fixture(params=[models.Distance.COSINE, models.Distance.DOT, models.Distance.EUCLID])
def filled(server, name, request):
    """(store, ids, distance)"""
    store = QdrantVectorStore.from_texts(
        TEXTS,
        DeterministicFakeEmbedding(size=SIZE),
        METADATAS,
        ids=IDS,
        url=server.url,
        collection_name=name,
        distance=request.param,
        batch_size=8,
        check_compatibility=False,
    )
    yield store, IDS, request.param
    store.client.close()


@pytest.fixture
def twin(filled):
    """The same documents in local mode."""
    store = QdrantVectorStore.from_texts(
        TEXTS, DeterministicFakeEmbedding(size=SIZE), METADATAS, ids=IDS, location=":memory:", distance=filled[2]
    )
    yield store
    store.client.close()


def even() -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key="metadata.kind", match=models.MatchValue(value="even"))])


def plain(documents):
    """(text, metadata without the name of the collection, score or 0) of each."""
    found = []
    for each in documents:
        document, score = each if isinstance(each, tuple) else (each, 0.0)
        metadata = {key: value for key, value in document.metadata.items() if key != "_collection_name"}
        found.append((document.page_content, metadata, score))
    return found


CALLS = {
    "search": lambda store, vector: store.similarity_search("text 3", k=5),
    "with scores": lambda store, vector: store.similarity_search_with_score("text 3", k=30),
    "by vector": lambda store, vector: store.similarity_search_by_vector(vector, k=5),
    "by vector with scores": lambda store, vector: store.similarity_search_with_score_by_vector(vector, k=5),
    "filter": lambda store, vector: store.similarity_search_with_score("text 3", k=30, filter=even()),
    "offset": lambda store, vector: store.similarity_search("text 3", k=5, offset=3),
    "threshold": lambda store, vector: store.similarity_search_with_score("text 3", k=30, score_threshold=0.1234),
    "mmr": lambda store, vector: store.max_marginal_relevance_search("text 3", k=6, fetch_k=20, lambda_mult=0.4),
    "mmr with a filter": lambda store, vector: store.max_marginal_relevance_search_by_vector(
        vector, k=6, fetch_k=12, lambda_mult=0.1, filter=even()
    ),
    "mmr with scores": lambda store, vector: store.max_marginal_relevance_search_with_score_by_vector(vector, k=4),
    "relevance": lambda store, vector: store.similarity_search_with_relevance_scores("text 3", k=1),
    "get by ids": lambda store, vector: store.get_by_ids([7, IDS[3]]),
}


@pytest.mark.filterwarnings("ignore:Relevance scores must be between:UserWarning")
@pytest.mark.parametrize("call", CALLS)
def test_answers_are_those_of_local_mode(filled, twin, call):
    store, _, _ = filled
    vector = [value + 0.05 for value in store.embeddings.embed_query("text 9")]
    found, expected = plain(CALLS[call](store, vector)), plain(CALLS[call](twin, vector))
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert [each[2] for each in found] == pytest.approx([each[2] for each in expected], abs=1e-5)


def test_documents_change_and_go(filled):
    store, ids, _ = filled
    added = store.add_texts(["new one", "new two"], [{"number": 100}, {"number": 101}])
    assert {doc.page_content for doc in store.get_by_ids(added)} == {"new one", "new two"}
    again = store.add_documents([Document(page_content="newer", metadata={"number": 100})], ids=added[:1])
    assert again == added[:1]
    assert [doc.page_content for doc in store.get_by_ids(added[:1])] == ["newer"]
    assert store.delete(added)
    assert store.get_by_ids(added) == []
    assert store.client.count(store.collection_name).count == len(TEXTS)
    assert store.delete(ids[:5])
    assert len(store.similarity_search("text 3", k=100)) == len(TEXTS) - 5


def test_an_existing_collection(server, filled):
    store, _, distance = filled
    embedding = DeterministicFakeEmbedding(size=SIZE)
    options = {"url": server.url, "collection_name": store.collection_name, "check_compatibility": False}
    found = QdrantVectorStore.from_existing_collection(embedding=embedding, distance=distance, **options)
    assert plain(found.similarity_search("text 3", k=3)) == plain(store.similarity_search("text 3", k=3))
    found.client.close()
    wrong = DeterministicFakeEmbedding(size=SIZE + 1)
    with pytest.raises(langchain_qdrant.qdrant.QdrantVectorStoreError, match="dimension"):
        QdrantVectorStore.from_existing_collection(embedding=wrong, distance=distance, **options)


def test_a_client_of_ones_own_and_recreated_collections(server, name):
    client = QdrantClient(url=server.url, check_compatibility=False)
    client.create_collection(name, vectors_config=models.VectorParams(size=SIZE, distance=models.Distance.COSINE))
    store = QdrantVectorStore(client=client, collection_name=name, embedding=DeterministicFakeEmbedding(size=SIZE))
    assert store.similarity_search("anything") == []
    store.add_texts(["one"])
    client.close()
    again = QdrantVectorStore.from_texts(
        ["two"],
        DeterministicFakeEmbedding(size=SIZE),
        url=server.url,
        collection_name=name,
        force_recreate=True,
        check_compatibility=False,
    )
    assert [doc.page_content for doc in again.similarity_search("one", k=5)] == ["two"]
    again.client.close()


class TestAsynchronously:
    """LangChain's async forms."""

    async def test_all_of_them(self, server, name):
        embedding = DeterministicFakeEmbedding(size=SIZE)
        store = await QdrantVectorStore.afrom_texts(
            TEXTS, embedding, METADATAS, ids=IDS, url=server.url, collection_name=name, check_compatibility=False
        )
        vector = embedding.embed_query("text 9")
        assert await store.asimilarity_search("text 3", k=5) == store.similarity_search("text 3", k=5)
        assert await store.asimilarity_search_with_score("text 3") == store.similarity_search_with_score("text 3")
        assert await store.asimilarity_search_by_vector(vector) == store.similarity_search_by_vector(vector)
        assert len(await store.amax_marginal_relevance_search("text 3", k=4, fetch_k=8)) == 4
        added = await store.aadd_texts(["more"])
        assert [doc.page_content for doc in await store.aget_by_ids(added)] == ["more"]
        assert await store.adelete(added)
        assert await store.aget_by_ids(added) == []
        store.client.close()


mark_coroutines(TestAsynchronously)
