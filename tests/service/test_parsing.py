"""What arrives, without HTTP: names and ids, selections of payloads, filters, build paths."""

from __future__ import annotations

import base64
import inspect
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from index.options import SearchOptions
from service import hits
from service.errors import MalformedError, OutOfRangeError, ServiceError, UnsupportedError, status_of
from service.filters import parse_filter, refuse_filter
from service.import_paths import resolve
from service.names import check_name, path_id, point_id
from service.query import QueryParams, search_options
from service.selection import parse_payload_selection
from service.vectors import vector_from_base64, vector_from_json, vectors_from_bytes


def test_names():
    for name in ("a", "x" * 255, "тест", "a.b", "50%", "con", "...", " "):
        assert check_name(name, "collection") == name
    for name in ("", "x" * 256, ".", "..", "a\ud800", *(f"a{c}b" for c in '<>:"/\\|?*\0\x1f')):
        with pytest.raises(MalformedError, match="collection name"):
            check_name(name, "collection")


@given(st.text(max_size=20))
def test_a_name_is_accepted_or_refused_never_changed(name):
    try:
        assert check_name(name, "alias") == name
    except MalformedError:
        assert not name or name in {".", ".."} or set(name) & set('<>:"/\\|?*\0\x1f')


def test_ids_in_paths():
    assert path_id("12", as_string=False) == 12
    assert path_id("12", as_string=True) == "12"
    assert path_id(str(2**64 - 1), as_string=False) == 2**64 - 1
    assert path_id("١٢", as_string=False) == "١٢"
    for bad in ("-1", str(2**64), "9" * 100):
        with pytest.raises(MalformedError, match=bad[:20]):
            path_id(bad, as_string=False)


@given(
    st.integers(0, 2**64 - 1) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
)
def test_ids_survive(value):
    assert point_id(json.loads(json.dumps(value))) in (value, str(value).lower(), value)


PAYLOAD = {"a": {"b": 1, "c": [{"d": 2, "e": 3}, {"d": 4}, 5]}, "a.b": 6, "k k": 7, "": 8, "цвет": "синий"}


def select(selection):
    chosen = parse_payload_selection(Raw(json.dumps(selection).encode()), path="$", default=False)
    return json.loads(bytes(chosen.of(json.dumps(PAYLOAD).encode())))


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (True, PAYLOAD),
        (["a.b"], {"a": {"b": 1}}),
        (['"a.b"'], {"a.b": 6}),
        (["a.c[].d"], {"a": {"c": [{"d": 2}, {"d": 4}, 5]}}),
        (["a.c[].d", "a.c[].e", "a.b"], {"a": {"c": [{"d": 2, "e": 3}, {"d": 4}, 5], "b": 1}}),
        (["a.c.e"], {"a": {"c": []}}),
        (["a.c[0].e"], {"a": {"c": []}}),
        ({"exclude": ["a.c.e", "a.c[0]"]}, PAYLOAD),
        (["k k", "цвет", '""', "none", "a.b.none"], {"a": {"b": 1}, "k k": 7, "цвет": "синий", "": 8}),
        ({"exclude": ["a", '"a.b"', '""']}, {"k k": 7, "цвет": "синий"}),
        ({"exclude": ["a.c[].d"]}, {**PAYLOAD, "a": {"b": 1, "c": [{"e": 3}, {}, 5]}}),
        ({"exclude": []}, PAYLOAD),
    ],
)
def test_selections(selection, expected):
    assert select(selection) == expected


@pytest.mark.parametrize("selection", [["a."], ["a..b"], [".a"], ["a["], ['"a'], {"include": [], "exclude": []}, 1])
def test_bad_selections(selection):
    with pytest.raises(MalformedError):
        select(selection)


@pytest.mark.parametrize("empty", [None, {}, {"must": []}, {"must": None, "should": []}, {"must_not": []}])
def test_empty_filters_match_everything(empty):
    refuse_filter(Raw(json.dumps(empty).encode()), path="$.filter")


GOOD = [
    {"must": {"key": "a", "match": {"value": 1}}},
    {"should": [{"key": "a.b", "match": {"any": [1]}}, {"is_empty": {"key": "x"}}, {"is_null": {"key": "x"}}]},
    {"must_not": [{"has_id": [1, "a"]}, {"has_vector": ""}]},
    {"must": [{"key": "n", "range": {"gte": 1.0, "lt": None}}, {"key": "n", "values_count": {"gt": 1}}]},
    {"must": [{"nested": {"key": "a", "filter": {"must": [{"key": "b", "match": {"text": "x"}}]}}}]},
    {"must": [{"must": [{"key": "b", "is_null": True}]}]},
    {"min_should": {"conditions": [{"key": "b", "is_empty": False}], "min_count": 1}},
    {"must": [{"key": "g", "geo_radius": {"center": {"lon": 1, "lat": 2}, "radius": 3}}]},
]


@pytest.mark.parametrize("value", GOOD)
def test_filters_that_restrict_are_unsupported(value):
    with pytest.raises(UnsupportedError, match="filters"):
        refuse_filter(Raw(json.dumps(value).encode()), path="$.filter")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], "$.filter"),
        (1, "$.filter"),
        ({"shoud": []}, "'shoud' at $.filter"),
        ({"must": [{"key": "a"}]}, "$.filter.must[0]"),
        ({"must": {"key": "a", "match": {}}}, "$.filter.must.match"),
        ({"must": [{"key": "a", "match": {"valu": 1}}]}, "'valu' at $.filter.must[0].match"),
        ({"must": [{"key": "a", "range": {"gtt": 1}}]}, "'gtt' at $.filter.must[0].range"),
        ({"must": [{"key": "a", "mtch": {"value": 1}}]}, "'mtch' at $.filter.must[0]"),
        ({"must": [{}]}, "$.filter.must[0]"),
        ({"must": [{"is_empty": {"ky": "a"}}]}, "'ky' at $.filter.must[0].is_empty"),
        ({"must": [{"nested": {"key": "a", "filter": {"mst": []}}}]}, "'mst' at $.filter.must[0].nested.filter"),
        ({"must": [{"has_id": [1.5]}]}, "1.5"),
        ({"must": [{"has_id": 1}]}, "$.filter.must[0].has_id"),
        ({"must": [{"key": "a", "is_null": 1}]}, "$.filter.must[0].is_null"),
        ({"min_should": {"conditions": []}}, "$.filter.min_should.min_count"),
    ],
)
def test_malformed_filters_name_the_place(value, path):
    with pytest.raises(MalformedError) as caught:
        parse_filter(Raw(json.dumps(value).encode()), path="$.filter")
    assert path in str(caught.value)


def test_min_count_zero_is_out_of_range():
    with pytest.raises(OutOfRangeError):
        parse_filter(Raw(b'{"min_should": {"conditions": [], "min_count": 0}}'), path="$.filter")


def test_build_paths(tmp_path):
    root = tmp_path / "import"
    (root / "shards").mkdir(parents=True)
    (root / "a.npy").touch()
    (root / "shards" / "b.npy").touch()
    outside = tmp_path / "outside.npy"
    outside.touch()
    for path in ("a.npy", "shards", "*.npy", "shards/*.npy", "./a.npy", "."):
        assert resolve(root, path, member="source.path").startswith(str(root))
    (root / "inner.npy").symlink_to(root / "a.npy")
    resolve(root, "inner.npy", member="source.path")
    (root / "shards" / "out.npy").symlink_to(outside)
    (root / "up").symlink_to(tmp_path)
    for path in ("shards", "shards/*.npy", "shards/out.npy", "up", "up/outside.npy", "up/*.npy"):
        with pytest.raises(MalformedError, match="leads out"):
            resolve(root, path, member="source.path")


def test_a_link_as_import_root_is_no_way_out(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (real / "a.npy").touch()
    (tmp_path / "import").symlink_to(real)
    assert resolve(tmp_path / "import", "a.npy", member="source.path") == str(real / "a.npy")


def test_vectors_keep_their_values():
    numbers = [0.1, 1e-45, 3.4e38, -0.0, 5]
    raw = Raw(json.dumps(numbers).encode())
    as_base64 = base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()
    for vector in (vector_from_json(raw, path="$"), vector_from_base64(as_base64, path="$")):
        assert vector.dtype == np.float32
        assert vector.tobytes() == np.array(numbers, np.float32).tobytes()
    body = np.arange(6, dtype="<f4").tobytes()
    raw_vectors = vectors_from_bytes(body, dim=3)
    assert raw_vectors.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert raw_vectors.base is not None  # over the bytes themselves, not a copy
    for bad, words in ((b"", "0 bytes"), (b"x" * 13, "12")):
        with pytest.raises(MalformedError, match=words):
            vectors_from_bytes(bad, dim=3)


def test_exact_drops_what_makes_no_sense_beside_it():
    assert search_options(QueryParams(exact=True, hnsw_ef=5)) == SearchOptions(exact=True)
    assert search_options(QueryParams(hnsw_ef=5)) == SearchOptions(beam=5)
    assert search_options(QueryParams(hnsw_ef=5, beam=6)) == SearchOptions(beam=6)


def test_a_score_that_is_not_finite_is_an_error_of_ours():
    with pytest.raises(RuntimeError, match="finite"):
        hits.require_finite(np.array([1.0, np.nan]))


def test_every_error_of_the_service_has_a_status():
    def leaves(kind):
        return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]

    for kind in leaves(ServiceError)[1:]:
        own = vars(kind).get("__init__")
        parameters = [] if own is None else list(inspect.signature(own).parameters.values())[1:]
        needed = max(1, sum(one.default is one.empty for one in parameters))
        problem = status_of(kind(*["x"] * needed))
        assert 400 <= problem.status < 600
        assert problem.status != 500
        assert problem.code != "internal"


def test_every_error_of_the_index_has_a_status():
    from index import errors
    from service.errors import STATUS_OF

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.VectorIndexError)
    ]
    covered = tuple(kind for kind, _, _ in STATUS_OF)
    assert [kind for kind in kinds if kind is not errors.VectorIndexError and not issubclass(kind, covered)] == []
    # The first match counts: a base before its leaf would hide it.
    for place, (kind, _, _) in enumerate(STATUS_OF):
        assert not any(issubclass(kind, earlier) for earlier, _, _ in STATUS_OF[:place])


@pytest.mark.parametrize("path", ["a" * 5000, "a" * 256 + "/b.npy", "/".join(["folder"] * 400), "*" * 3000])
def test_paths_longer_than_any_file_system_takes(tmp_path, path):
    with pytest.raises(MalformedError, match="characters"):
        resolve(tmp_path, path, member="source.path")


@pytest.mark.parametrize("selection", [[""], {"include": ["a", ""]}, {"exclude": [""]}])
def test_an_empty_payload_path_is_refused(selection):
    with pytest.raises(MalformedError, match="empty"):
        parse_payload_selection(Raw(json.dumps(selection).encode()), path="$", default=False)
