"""What went wrong elsewhere (S38 to S43), decided here: the same answers by columns, by a file of them, and from the JSON."""

from __future__ import annotations

import json

import pytest
from filter_cases import ListTarget, by_columns, parsed, plainly

from index.columns import ColumnBuilder, ColumnsFile, ColumnsWriter
from service.errors import MalformedError, OutOfRangeError


@pytest.fixture
def passing(tmp_path):
    """(payloads, filter) -> numbers, from 1, of the payloads that pass; every way of evaluating agrees."""

    def ways(rows):
        yield None
        builder = ColumnBuilder()
        builder.append(rows)
        yield builder.view()
        (tmp_path / "payload").mkdir(exist_ok=True)
        for text_bytes in (10**6, 0):
            with ColumnsWriter(tmp_path, text_bytes=text_bytes) as writer:
                writer.append([json.dumps(row).encode() for row in rows])
            yield ColumnsFile.open(tmp_path)

    def passing(rows, asked):
        tree = parsed(asked)
        if tree is None:
            return list(range(1, len(rows) + 1))
        found = None
        for columns in ways(rows):
            target = ListTarget(rows, columns, ids=list(range(1, len(rows) + 1)))
            expected = plainly(tree, target)
            assert by_columns(tree, target) == expected and found in (None, expected)
            found = expected
        return [at for at, passes in enumerate(found, 1) if passes]

    return passing


def must(key, **predicate):
    return {"must": [{"key": key, **predicate}]}


NULLS = [{"n": 1}, {"n": 5}, {"n": None}, {"n": [1, None]}, {}, {"n": []}]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (must("n", match={"value": 1}), [1, 4]),
        (must("n", match={"except": [1]}), [2]),
        ({"must": [{"is_null": {"key": "n"}}]}, [3, 4]),
        (must("n", is_null=True), [3, 4]),
        (must("n", is_null=False), [1, 2, 5, 6]),
        ({"must": [{"is_empty": {"key": "n"}}]}, [3, 5, 6]),
        (must("n", is_empty=False), [1, 2, 4]),
        ({"must_not": [{"key": "n", "match": {"value": 1}}]}, [2, 3, 5, 6]),
        (must("n", values_count={"lte": 0}), [3, 5, 6]),
        (must("n", values_count={"gte": 2}), [4]),
    ],
)
def test_s38_null_missing_and_empty(passing, asked, expected):
    assert passing(NULLS, asked) == expected


def test_s39_42_is_42_0(passing):
    rows = [{"age": 42.0}, {"age": 42}, {"age": "42"}, {"age": True}, {"age": 42.5}]
    assert passing(rows, must("age", match={"value": 42})) == [1, 2]
    assert passing(rows, must("age", match={"any": [41, 42]})) == [1, 2]
    assert passing(rows, must("age", range={"gte": 42, "lte": 42})) == [1, 2]
    assert passing(rows, must("age", match={"value": 1})) == []
    assert passing(rows, must("age", match={"value": "42"})) == [3]
    assert passing(rows, must("age", match={"value": True})) == [4]


def test_s40_ranges_keep_all_digits(passing):
    rows = [{"ts": 1768907725507217522}, {"ts": 9223372036854775807}, {"ts": -9223372036854775808}]
    assert passing(rows[:1], must("ts", range={"gt": 1768907725507217522})) == []
    assert passing(rows[:1], must("ts", range={"gte": 1768907725507217522})) == [1]
    assert passing(rows[:1], must("ts", range={"gt": 1768907725507217521})) == [1]
    assert passing(rows[:1], must("ts", range={"lte": 1768907725507217521})) == []
    assert passing(rows, must("ts", range={"gte": 9223372036854775807})) == [2]
    assert passing(rows, must("ts", range={"lt": -9223372036854775807})) == [3]
    assert passing(rows, must("ts", range={"gt": 1.5, "lt": 2e18})) == [1]
    beyond = [{"ts": 2**64}, {"ts": 2.0**53}, {"ts": 2**53 + 1}]
    assert passing(beyond, must("ts", range={"gt": 2**64 - 1})) == [1]
    assert passing(beyond, must("ts", range={"gt": 2**53, "lt": 2**60})) == [3]
    assert passing(beyond, must("ts", range={"gte": 2**53, "lt": 2**53 + 1})) == [2]


def test_s41_date_times(passing):
    rows = [{"d": "2023-01-01T00:00:00"}, {"d": "no date"}, {"d": 5}]
    assert passing(rows, must("d", range={"gte": "2023-12-13T00:00:00"})) == []
    both = {"gte": "2023-01-01T01:00:00+01:00", "lte": "2022-12-31T19:00:00-05:00"}
    assert passing(rows, must("d", range=both)) == [1]
    assert passing(rows, must("d", range={"gte": "2023-01-01", "lt": "2023-01-01T00:00:00.000001", "gt": None})) == [1]
    assert passing(rows, must("d", range={"gte": None, "lte": None})) == [3]
    with pytest.raises(MalformedError, match=r"\$\.filter\.must\[0\]\.range\.gte is '2023-13-01'"):
        parsed(must("d", range={"gte": "2023-13-01"}))
    with pytest.raises(MalformedError, match="beside a date-time"):
        parsed(must("d", range={"gte": "2023-12-01", "lt": 5}))


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"must": [{"key": "a"}]}, r"\$\.filter\.must\[0\] has a key and no predicate"),
        ({"shoud": [{"key": "a", "match": {"value": 1}}]}, r"'shoud' at \$\.filter"),
        ({"must": {"key": "a", "match": {}}}, r"\$\.filter\.must\.match"),
        ({"must": [{"key": "a", "range": {"gtt": 1}}]}, r"'gtt' at \$\.filter\.must\[0\]\.range"),
        ([], r"\$\.filter is list"),
        ({"must": [{"key": "a", "range": {"gt": "tomorrow"}}]}, r"range\.gt is 'tomorrow'"),
        ({"must": [{"key": "a", "range": {"gt": True}}]}, r"range\.gt is True"),
        ({"must": [{"key": "a", "match": {"value": 1.5}}]}, r"match\.value is 1\.5.*use range"),
        ({"must": [{"key": "a", "match": {"any": [1, {}]}}]}, r"match\.any\[1\]"),
        ({"must": [{"key": "a", "match": {"text": 1}}]}, r"match\.text is 1"),
        ({"must": [{"key": "a", "match": {"value": 1}, "range": {"gt": 1}}]}, "match and range"),
        ({"must": [{"key": "a..b", "match": {"value": 1}}]}, r"'a\.\.b' at \$\.filter\.must\[0\]\.key"),
        ({"must": [{"key": "a", "values_count": {"gt": 1.5}}]}, r"values_count\.gt is 1\.5"),
        ({"must": [{"key": "a", "geo_radius": {"center": {"lat": 1}, "radius": 1}}]}, r"center\.lon is None"),
        ({"must": [{"key": "a", "geo_bounding_box": {"top_left": {"lat": 1, "lon": 1}}}]}, r"bottom_right is NoneType"),
        ({"must": [{"nested": {"key": "a"}}]}, r"nested\.filter is NoneType"),
        ({"must": [{"has_id": [1, -1]}]}, r"has_id\[1\]"),
        ({"must": [{"slice": {"total": 3}}]}, r"slice\.index is None"),
        ({"min_should": {"conditions": [], "min_count": -1}}, r"min_should\.min_count is -1"),
    ],
)
def test_s42_what_is_malformed_names_its_place(asked, place):
    with pytest.raises(MalformedError, match=place):
        parsed(asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"min_should": {"conditions": [], "min_count": 0}},
        {"must": [{"slice": {"total": 3, "index": 3}}]},
        {"must": [{"slice": {"total": 0, "index": 0}}]},
        {"must": [{"key": "a", "geo_radius": {"center": {"lat": 91, "lon": 0}, "radius": 1}}]},
        {"must": [{"key": "a", "geo_polygon": {"exterior": {"points": [{"lat": 1, "lon": 1}] * 3}}}]},
    ],
)
def test_s42_what_is_out_of_range_is_not_malformed(asked):
    with pytest.raises(OutOfRangeError):
        parsed(asked)


@pytest.mark.parametrize("empty", [None, {}, {"must": []}, {"should": None, "must_not": []}])
def test_s42_an_empty_filter_restricts_nothing(empty):
    assert parsed(empty) is None


def test_s42_filters_in_filters_end_somewhere():
    asked = {"key": "a", "match": {"value": 1}}
    for _ in range(200):
        asked = {"must": [asked]}
    with pytest.raises(MalformedError, match="Write it flat"):
        parsed(asked)


KEYS = {"a.b": 1, "a": {"b": 2}, "rdfs:type": "x", "tag/1": True, "цвет": "синий", "k k": 5, "": 6, 'q"q': 7}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a.b", 2), ('"a.b"', 1), ("rdfs:type", "x"), ('"rdfs:type"', "x"), ("tag/1", True), ('"tag/1"', True),
        ("цвет", "синий"), ('"цвет"', "синий"), ("k k", 5), ('"k k"', 5), ('""', 6), ('"q\\"q"', 7),
    ],
)  # fmt: skip
def test_s43_keys_of_any_letters(passing, key, value):
    assert passing([KEYS, {}], must(key, match={"value": value})) == [1]
    assert passing([KEYS, {}], must(key, match={"value": "other"})) == []


def test_s43_values_are_compared_letter_for_letter(passing):
    rows = [{"v": "ES009453/19"}, {"v": "\u00e9"}, {"v": "e\u0301"}]
    assert passing(rows, must("v", match={"value": "ES009453/19"})) == [1]
    assert passing(rows, must("v", match={"value": "\u00e9"})) == [2]
    assert passing(rows, must("v", match={"value": "e\u0301"})) == [3]


def test_only_rows_that_matter_are_read_as_json():
    rows = [{"n": at, "d": [{"x": at}]} for at in range(50)]
    builder = ColumnBuilder()
    builder.append(rows)
    target = ListTarget(rows, builder.view())
    nested = {"nested": {"key": "d", "filter": must("x", range={"gte": 10})}}
    tree = parsed({"must": [nested, {"key": "n", "range": {"lt": 12}}]})
    assert sum(by_columns(tree, target)) == 2
    assert target.read == 12
    by_columns(parsed({"should": [nested, {"key": "n", "range": {"gte": 3}}]}), target)
    assert target.read == 12 + 3


def test_equal_filters_have_equal_keys():
    assert parsed({"must": [], "should": [{"has_id": [1]}]}) == parsed({"should": [{"has_id": [1]}], "must": []})
    assert parsed(must("a", match={"value": 1})) != parsed(must("a", match={"value": True}))
    assert len({parsed(must("a", match={"value": value})) for value in (1, 1, "1", True)}) == 3
