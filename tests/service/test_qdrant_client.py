"""The official Qdrant client, unmodified, against a live server: what it sends is read, what it requires is there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from live import live_server
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from index import open_index

DIM = 16
ROWS = 600


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("qdrant") / "data"
    (data_dir / "import").mkdir(parents=True)
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    table = pa.table(
        {
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM),
            "id": pa.array(range(1000, 1000 + ROWS), pa.uint64()),
            "title": [f"title {row}" for row in range(ROWS)],
            "year": list(range(ROWS)),
        }
    )
    pq.write_table(table, data_dir / "import" / "docs.parquet")
    with live_server(data_dir) as running:
        source = {"path": "docs.parquet", "vector": "vector", "id": "id", "payload": ["title", "year"]}
        assert running.build(collection="docs", source=source)["state"] == "done"
        running.vectors = vectors
        yield running


@pytest.fixture(scope="module")
def client(server):
    connected = QdrantClient(url=server.url)
    yield connected
    connected.close()


def same(point, id_, row):
    assert point.id == id_
    assert point.payload == {"title": f"title {row}", "year": row}


def test_query_points_equal_the_library(server, client):
    (folder,) = (server.data_dir / "collections").glob("*/*")
    queries = server.vectors[:20] + 0.1
    with open_index(folder) as index:
        expected = index.search(queries, k=10)
    for place, query in enumerate(queries):
        found = client.query_points("docs", query=query.tolist(), limit=10).points
        assert [point.id for point in found] == expected.ids[place].tolist()
        assert [point.score for point in found] == expected.scores[place].tolist()
        same(found[0], found[0].id, found[0].id - 1000)


def test_query_forms(server, client):
    query = server.vectors[3]
    found = client.query_points("docs", query=query, limit=3, offset=1, with_payload=["year"], with_vectors=True)
    assert found.points[0].payload.keys() == {"year"}
    assert found.points[0].vector == pytest.approx(server.vectors[found.points[0].id - 1000].tolist())
    by_id = client.query_points("docs", query=1003, limit=3).points
    assert [p.id for p in by_id] == [p.id for p in client.query_points("docs", query=query, limit=4).points[1:]]
    exact = client.query_points("docs", query=query, search_params=models.SearchParams(exact=True, hnsw_ef=64)).points
    assert exact[0].id == 1003
    assert exact[0].score == 1.0
    near = client.query_points("docs", query=query, score_threshold=1.0).points
    assert [p.id for p in near] == [1003]
    assert [p.id for p in client.query_points("docs", limit=3).points] == [1000, 1001, 1002]


def test_query_batch_points(server, client):
    requests = [models.QueryRequest(query=vector.tolist(), limit=2, with_payload=True) for vector in server.vectors[:5]]
    answers = client.query_batch_points("docs", requests=requests)
    assert [answer.points[0].id for answer in answers] == [1000, 1001, 1002, 1003, 1004]


def test_scroll_retrieve_count(server, client):
    seen, offset = [], None
    while True:
        points, offset = client.scroll("docs", limit=250, offset=offset, with_vectors=True)
        seen += points
        if offset is None:
            break
    assert [point.id for point in seen] == list(range(1000, 1000 + ROWS))
    same(seen[7], 1007, 7)
    assert np.array_equal(np.array([point.vector for point in seen], np.float32), server.vectors)
    records = client.retrieve("docs", ids=[1002, 5, 1001])
    assert [record.id for record in records] == [1002, 1001]
    assert client.count("docs").count == ROWS


def test_collections(client):
    assert {c.name for c in client.get_collections().collections} >= {"docs"}
    assert client.collection_exists("docs")
    assert not client.collection_exists("none")
    info = client.get_collection("docs")
    assert info.status == models.CollectionStatus.GREEN
    assert info.points_count == ROWS
    assert info.config.params.vectors == models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    made = client.create_collection(
        "new",
        vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT, on_disk=True),
        hnsw_config=models.HnswConfigDiff(m=8),
        optimizers_config=models.OptimizersConfigDiff(default_segment_number=2),
        quantization_config=models.ScalarQuantization(
            scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8)
        ),
        on_disk_payload=True,
        metadata={"purpose": "test"},
    )
    assert made
    info = client.get_collection("new")
    assert info.config.params.vectors.on_disk
    assert info.config.hnsw_config.m == 8
    assert info.config.optimizer_config.default_segment_number == 2
    assert info.config.quantization_config.scalar.type == models.ScalarType.INT8
    assert info.config.metadata == {"purpose": "test"}
    assert client.query_points("new", query=[1.0, 2.0, 3.0, 4.0]).points == []
    with pytest.raises(UnexpectedResponse) as caught:
        client.create_collection("new", vectors_config=models.VectorParams(size=4, distance=models.Distance.DOT))
    assert caught.value.status_code == 409
    assert client.delete_collection("new")
    assert not client.delete_collection("new")
    with pytest.raises(UnexpectedResponse) as caught:
        client.get_collection("new")
    assert caught.value.status_code == 404


def test_the_empty_vector_name(server, client):
    """What LangChain sends."""
    assert client.create_collection(
        "lang",
        vectors_config={"": models.VectorParams(size=6, distance=models.Distance.COSINE)},
        sparse_vectors_config={},
    )
    assert client.get_collection("lang").config.params.vectors.size == 6
    client.delete_collection("lang")
    found = client.query_points("docs", query=server.vectors[0].tolist(), using="", limit=1).points
    assert found[0].id == 1000


def test_aliases(client):
    def change(*operations):
        assert client.update_collection_aliases(change_aliases_operations=list(operations))

    change(models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name="docs", alias_name="live")))
    assert client.get_collection("live").points_count == ROWS
    assert client.query_points("live", query=1000, limit=1).points
    assert [a.alias_name for a in client.get_collection_aliases("docs").aliases] == ["live"]
    change(
        models.RenameAliasOperation(rename_alias=models.RenameAlias(old_alias_name="live", new_alias_name="now")),
        models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="none")),
    )
    assert [(a.alias_name, a.collection_name) for a in client.get_aliases().aliases] == [("now", "docs")]
    change(models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="now")))
    assert client.get_aliases().aliases == []


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda c: c.upsert("docs", [models.PointStruct(id=1, vector=[0.0] * (DIM + 1))]), 400),
        (lambda c: c.upsert("docs", [models.PointStruct(id=1, vector={"title": [0.0] * DIM})]), 501),
        (lambda c: c.set_payload("docs", {"a": 1}, [10**9]), 404),
        (lambda c: c.query_points_groups("docs", query=[0.1] * DIM, group_by="a", with_lookup="other"), 501),
        (lambda c: c.query_points("docs", query=[1.0]), 400),
        (lambda c: c.query_points("none", query=[1.0]), 404),
        (lambda c: c.query_points("docs", query=5), 404),
        (lambda c: c.query_points("docs", query=[0.1] * DIM, limit=0), 422),
        (lambda c: c.query_points("docs", query=models.FusionQuery(fusion="rrf"), prefetch=[]), 501),
    ],
)
def test_refusals_are_the_clients_own_exceptions(client, call, status):
    with pytest.raises(UnexpectedResponse) as caught:
        call(client)
    assert caught.value.status_code == status
    assert b'"status":{"error":' in caught.value.content


def test_filters(client):
    condition = models.FieldCondition(key="year", match=models.MatchValue(value=1))
    assert client.count("docs", count_filter=models.Filter(must=[condition])).count == 1
    assert client.count("docs", count_filter=models.Filter(must=[])).count == ROWS


def test_a_key(tmp_path):
    with live_server(tmp_path / "data", environment={"FULLVIEW_API_KEY": "sesame"}) as server:
        with pytest.warns(UserWarning, match="insecure connection"):
            with_key = QdrantClient(url=server.url, api_key="sesame", check_compatibility=False)
        assert with_key.get_collections().collections == []
        with_key.close()
        without = QdrantClient(url=server.url, check_compatibility=False)
        with pytest.raises(UnexpectedResponse) as caught:
            without.get_collections()
        assert caught.value.status_code == 401
        without.close()
