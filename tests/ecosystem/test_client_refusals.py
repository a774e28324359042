"""What both Qdrant's local mode and a live server of ours refuse, the calls about collections, and where the two differ."""

from __future__ import annotations

from typing import Any

import pytest
from both import Both
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

pytestmark = pytest.mark.filterwarnings(
    "ignore:Local mode performs exact:UserWarning", "ignore:Payload indexes have no effect:UserWarning"
)

DOT = models.Distance.DOT
VECTOR = [1.0, 2.0, 3.0]
UUID = "0d8f1c9e-1f52-4d4c-9a54-3b1f3f0c2a11"
POINTS = [
    models.PointStruct(id=1, vector=VECTOR, payload={"n": 1, "city": "Berlin", "a": {"b": [1, 2]}}),
    models.PointStruct(id=2, vector=[0.0, 1.0, 0.5], payload={"n": 2, "city": "London"}),
    models.PointStruct(id=UUID, vector=[-1.0, 0.0, 0.5], payload={"n": [1, 5], "city": "Berlin"}),
    models.PointStruct(id=7, vector={}, payload=None),
]


@pytest.fixture
def both(server, request):
    client = QdrantClient(url=server.url, check_compatibility=False)
    pair = Both(
        client, request.node.name[:60].replace("/", "_").replace(":", "_").replace('"', "_"), size=3, distance=DOT
    )
    pair.write("upsert", POINTS)
    yield pair
    pair.close()
    client.close()


def point(**members: Any) -> models.PointStruct:
    return models.PointStruct(**({"id": 1, "vector": VECTOR} | members))


REFUSED = [
    ("upsert", [[]], 400),
    ("upsert", [[point(vector=[1.0, 2.0])]], 400),
    ("upsert", [[point(vector=[])]], 400),
    ("upsert", [[point(id=3), point(id=4, vector=[1.0])]], 400),
    ("update_vectors", [[models.PointVectors(id=1, vector=[1.0])]], 400),
    ("update_vectors", [[models.PointVectors(id=99, vector=VECTOR)]], 404),
    ("update_vectors", [[]], 400),
    ("delete_vectors", [[], [1]], 400),
    ("set_payload", [{"a": 1}, [99]], 404),
    ("overwrite_payload", [{"a": 1}, [99]], 404),
    ("delete_payload", [["a"], [99]], 404),
    ("clear_payload", [[99]], 404),
    ("query_points", [[1.0, 2.0]], 400),
    ("query_points", [99], 404),
    ("query_points", [VECTOR, None, None, None, None, 0], 422),
    ("query_points", [7], None),
    ("scroll", [None, 10, models.OrderBy(key="n"), 1], 400),
]


@pytest.mark.parametrize(("call", "arguments", "status"), REFUSED)
def test_both_refuse(both, call, arguments, status):
    found = both.refused(call, *arguments)
    assert status is None or found == status
    both.state()


@pytest.mark.parametrize("call", ["get_collection", "count", "scroll", "upsert", "query_points", "facet", "delete"])
def test_both_refuse_collections_that_are_not_there(both, call):
    arguments = {"upsert": {"points": POINTS}, "query_points": {"query": VECTOR}, "facet": {"key": "n"}}
    arguments["delete"] = {"points_selector": [1]}
    with pytest.raises(ValueError, match="not found"):
        getattr(both.oracle, call)("none", **arguments.get(call, {}))
    with pytest.raises(UnexpectedResponse) as caught:
        getattr(both.ours, call)("none", **arguments.get(call, {}))
    assert caught.value.status_code == 404


def test_calls_about_collections(both):
    params = models.VectorParams(size=4, distance=models.Distance.EUCLID)
    answers = []
    for client in (both.ours, both.oracle):
        seen: list[Any] = [client.collection_exists("fresh one"), client.delete_collection("fresh one")]
        seen.append(client.create_collection("fresh one", vectors_config=params, metadata={"a": 1, "b": 2}))
        with pytest.raises((UnexpectedResponse, ValueError)):
            client.create_collection("fresh one", vectors_config=params)
        seen.append(client.update_collection("fresh one", metadata={"b": None, "c": 3}))
        info = client.get_collection("fresh one")
        seen += [info.config.params.vectors, info.config.metadata, info.points_count, info.status]
        seen.append(client.collection_exists("fresh one"))
        seen.append(both.name in {each.name for each in client.get_collections().collections})
        seen += [client.delete_collection("fresh one"), client.collection_exists("fresh one")]
        answers.append(seen)
    ours, oracle = answers
    assert [ours[0], *ours[2:]] == [oracle[0], *oracle[2:]]
    assert not ours[1]


def test_aliases(both):
    make = models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name=both.name, alias_name="first"))
    rename = models.RenameAliasOperation(
        rename_alias=models.RenameAlias(old_alias_name="first", new_alias_name="second")
    )
    drop = models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="second"))
    for operations, name in (([make], "first"), ([rename], "second"), ([drop, make], "first")):
        for client in (both.ours, both.oracle):
            assert client.update_collection_aliases(operations)
            assert [alias.alias_name for alias in client.get_collection_aliases(both.name).aliases] == [name]
            assert models.AliasDescription(alias_name=name, collection_name=both.name) in client.get_aliases().aliases
            assert client.count(name).count == 4
            assert client.query_points(name, query=VECTOR, limit=1).points[0].id == 1
    both.ours.update_collection_aliases(
        [models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="first"))]
    )


def test_payload_indexes_change_no_answer(both):
    conditions = models.Filter(must=[models.FieldCondition(key="n", match=models.MatchAny(any=[1, 2]))])
    for field, schema in (("n", "integer"), ("city", "keyword"), ("a.b", models.IntegerIndexParams(type="integer"))):
        both.write("create_payload_index", field, schema)
        both.read("count", count_filter=conditions)
        both.read("facet", "city")
    schemas = both.ours.get_collection(both.name).payload_schema
    assert {name: (index.data_type, index.points) for name, index in schemas.items()} == {
        "n": ("integer", 3), "city": ("keyword", 3), "a.b": ("integer", 1)
    }  # fmt: skip
    both.write("delete_payload_index", "n")
    both.read("count", count_filter=conditions)
    assert both.ours.get_collection(both.name).payload_schema.keys() == {"city", "a.b"}


def _both_answers(both, call, *args, **kwargs):
    """(ours, the oracle's), an exception's kind in place of an answer."""

    def answer(client):
        try:
            return getattr(client, call)(both.name, *args, **kwargs)
        except UnexpectedResponse as error:
            return error.status_code
        except (ValueError, KeyError) as error:
            return type(error).__name__

    return answer(both.ours), answer(both.oracle)


def matching(**members: Any) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key="x", **members)])


def _counts(both, payload, wanted):
    both.write("overwrite_payload", payload, [1])
    ours, oracle = _both_answers(both, "count", count_filter=wanted)
    return ours.count, oracle.count


def _after_a_missing_id(both):
    answers = _both_answers(both, "set_payload", {"new": 1}, points=[1, 99])
    assert answers == (404, "KeyError")
    return tuple("new" in client.retrieve(both.name, [1])[0].payload for client in (both.ours, both.oracle))


def _kept_vector(both, name):
    config = models.VectorParams(size=2, distance=models.Distance.COSINE)
    found = []
    for client in (both.ours, both.oracle):
        client.create_collection(name, vectors_config=config)
        client.upsert(name, [models.PointStruct(id=1, vector=[3.0, 4.0])])
        found.append(client.retrieve(name, [1], with_vectors=True)[0].vector)
    both.ours.delete_collection(name)
    return found[0], [round(value, 6) for value in found[1]]


def _ids(answers):
    return tuple(answer if isinstance(answer, int | str) else [found.id for found in answer] for answer in answers)


DIFFERENCES = {
    "cosine vectors come back as they were given; local mode and Qdrant keep unit vectors (API.md 1)": (
        lambda both: _kept_vector(both, "kept"),
        ([3.0, 4.0], [0.6, 0.8]),
    ),
    "score_threshold is inclusive, as Qdrant documents it (API.md 1)": (
        lambda both: _ids(
            found.points for found in _both_answers(both, "query_points", query=VECTOR, score_threshold=14.0)
        ),
        ([1], []),
    ),
    "integers and integral floats are equal in filters (S39)": (
        lambda both: _counts(both, {"x": 42.0}, matching(match=models.MatchValue(value=42))),
        (1, 0),
    ),
    "integral floats are integers in facets and groups, as in filters": (
        lambda both: (
            both.write("overwrite_payload", {"x": 42.0}, [1])
            or tuple([(hit.value, hit.count) for hit in answer.hits] for answer in _both_answers(both, "facet", "x"))
        ),
        ([(42, 1)], []),
    ),
    "words are case-folded, not lower-cased (API.md 2)": (
        lambda both: _counts(both, {"x": "STRASSE"}, matching(match=models.MatchText(text="straße"))),
        (1, 0),
    ),
    "a request is all or nothing: an id that is not there leaves the others as they were": (
        _after_a_missing_id,
        (False, True),
    ),
    "an id that comes twice is retrieved once": (
        lambda both: _ids(_both_answers(both, "retrieve", [1, 1, 2])),
        ([1, 2], [1, 1, 2]),
    ),
    "ids may be any string (API.md 1)": (
        lambda both: (
            _ids(_both_answers(both, "retrieve", ["doc/1"])) + _both_answers(both, "upsert", [point(id="doc/1")])[1:]
        ),
        ([], [], "ValueError"),
    ),
    "strings in facets come back as they were stored; local mode spells UUIDs with hyphens": (
        lambda both: (
            both.write("overwrite_payload", {"u": UUID.replace("-", "")}, [1])
            or tuple(answer.hits[0].value for answer in _both_answers(both, "facet", "u"))
        ),
        (UUID.replace("-", ""), UUID),
    ),
    "an empty filter as a condition is refused: a condition says what it asks (S42)": (
        lambda both: tuple(
            getattr(answer, "count", answer)
            for answer in _both_answers(both, "count", count_filter=models.Filter(must=[models.Filter()]))
        ),
        (400, 4),
    ),
    "named vectors, mmr with groups, with_lookup: 501": (
        lambda both: tuple(
            _both_answers(both, "query_points_groups", group_by="n", **options)[0]
            for options in (
                {"query": VECTOR, "using": "title"},
                {"query": models.NearestQuery(nearest=VECTOR, mmr=models.Mmr(diversity=0.5))},
                {"query": VECTOR, "with_lookup": models.WithLookup(collection="other")},
            )
        ),
        (501, 501, 501),
    ),
}


@pytest.mark.parametrize("reason", DIFFERENCES)
def test_decided_differences(both, reason):
    """(ours, the oracle's) of each: it shows when either of them changes."""
    found, expected = DIFFERENCES[reason]
    assert found(both) == expected


def test_ids_that_are_not_uuids_stay_in_ours(both):
    both.ours.upsert(both.name, [point(id="doc/1"), point(id="é")])
    assert [found.id for found in both.ours.retrieve(both.name, ["é", "doc/1"])] == ["é", "doc/1"]
    assert [found.id for found in both.ours.scroll(both.name)[0]] == [1, 2, 7, UUID, "doc/1", "é"]
