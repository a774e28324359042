"""Growing columns: what a cell becomes, and views that never change while rows are added."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from index.columns import NO_TIME, ColumnBuilder, Kind, asking, parse_time
from index.columns import growing as growing_module
from index.columns.kinds import COLUMNS_MAX, DEPTH_MAX


def view_of(*payloads):
    builder = ColumnBuilder()
    builder.append(payloads)
    return builder.view()


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (None, Kind.NULL, 0),
        (True, Kind.BOOL, 1),
        (7, Kind.INT, 7),
        (-(2**63), Kind.INT, -(2**63)),
        (2**63, Kind.OTHER, 0),
        (float("nan"), Kind.NULL, 0),
        (float("inf"), Kind.NULL, 0),
        ("x", Kind.STRING, 0),
        ({}, Kind.OBJECT, 0),
        ([], Kind.LIST, 0),
        ([1, "x", None], Kind.LIST, 3),
        ([1, 2**70], Kind.OTHER, 0),
        ([1, [2]], Kind.OTHER, 0),
        ([{}], Kind.OTHER, 0),
    ],
)
def test_what_a_value_becomes(value, kind, stored):
    column = view_of({"a": value}).column(("a",))
    assert column.cells.of(kind).tolist() == [True] and column.cells.values.tolist() == [stored]
    assert column.rows is None


def test_objects_have_columns_below_them():
    view = view_of({"a": {"b": {"c": 1}}}, None, {"a": 5})
    assert view.paths() == [("a",), ("a", "b"), ("a", "b", "c")]
    assert view.column(("a",)).rows.tolist() == [0, 2]
    assert view.column(("a", "b", "c")).rows.tolist() == [0]
    assert view.column(("b",)) is None and view.uncolumned(("b",)) is None


def test_what_has_no_column_is_known_by_its_rows():
    deep = {"a": 1}
    for _ in range(DEPTH_MAX):
        deep = {"a": deep}
    view = view_of({"b": 1}, deep)
    assert max(map(len, view.paths())) == DEPTH_MAX
    assert view.uncolumned(("a",) * (DEPTH_MAX + 1)).tolist() == [False, True]
    wide = view_of({f"k{i}": i for i in range(COLUMNS_MAX)}, {"k0": 1}, {"more": 1, "most": 1})
    assert len(wide.paths()) == COLUMNS_MAX
    assert wide.uncolumned(("more",)).tolist() == [False, False, True]


def test_a_view_does_not_change():
    builder = ColumnBuilder()
    builder.append([{"a": "x", "l": [1]}])
    before = builder.view()
    first = before.column(("a",))
    builder.append([{"a": at, "l": [at, "y"], "new": at} for at in range(1000)])
    builder.append([{"a": "y"}])
    assert before.n == 1 and first.strings.code_of("y") == -1 and list(first.strings.texts()) == ["x"]
    # Columns that are first asked for when there are more rows are of the old ones too.
    assert len(before.column(("l",)).elements) == 1
    assert len(before.column(("new",)).cells) == 0 and before.paths() == [("a",), ("l",)]
    late = before.column(("l",))
    assert late.where(lambda cells: asking.equal_to(cells, late.strings, [1])).tolist() == [True]


def test_views_are_whole_while_another_thread_appends():
    builder, wrong = ColumnBuilder(), []

    def read():
        while builder.n < 20_000:
            view = builder.view()
            for path in [("n",), ("t",), ("l",)]:
                column = view.column(path)
                if column is None:
                    continue
                cells = column.cells if path != ("l",) else column.elements
                found = (cells.values if path == ("n",) else np.zeros(0)).tolist()
                if len(column.cells) != view.n or found != list(range(view.n))[: len(found)]:
                    wrong.append((view.n, path, len(column.cells)))
            if view.n and view.column(("t",)).strings.text(view.n - 1) != f"t{view.n - 1}":
                wrong.append(view.n)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, 20_000, 50):
        builder.append([{"n": at, "t": f"t{at}", "l": [at, "x"]} for at in range(start, start + 50)])
    for reader in readers:
        reader.join()
    assert not wrong


def test_a_date_is_parsed_once(monkeypatch):
    builder = ColumnBuilder()
    builder.append([{"d": "2023-01-01"}, {"d": "x"}])
    times = builder.view().column(("d",)).strings.times()
    assert times.tolist() == [parse_time("2023-01-01"), NO_TIME]
    builder.append([{"d": "2024-01-01"}, {"d": "2023-01-01"}])
    parsed = []
    monkeypatch.setattr(growing_module, "parse_time", lambda text: parsed.append(text))
    assert len(builder.view().column(("d",)).strings.times()) == 3 and parsed == ["2024-01-01"]


@pytest.mark.parametrize(
    ("bounds", "low", "high"),
    [
        ({}, -(2**63), 2**63 - 1),
        ({"gt": 1}, 2, 2**63 - 1),
        ({"gt": 1.5}, 2, 2**63 - 1),
        ({"gte": 1.5}, 2, 2**63 - 1),
        ({"lt": 1.5}, -(2**63), 1),
        ({"lt": 1}, -(2**63), 0),
        ({"lte": -1.5, "gt": -5}, -4, -2),
        ({"gte": 10**30}, 10**30, 2**63 - 1),
        ({"gt": 1e30}, int(1e30) + 1, 2**63 - 1),
    ],
)
def test_bounds_of_integers(bounds, low, high):
    given = {name: bounds.get(name) for name in ("gt", "gte", "lt", "lte")}
    assert asking.integer_bounds(*given.values()) == (low, high)


@pytest.mark.parametrize("bound", [2**53 + 1, -(2**53) - 1, 10**400, -(10**400), 2**63, 0.5, 42])
def test_floats_are_compared_with_integers_that_no_float_is(bound):
    floats = [-1e300, -(2.0**53) - 2, -(2.0**53), -0.0, 0.5, 42.0, 2.0**53, 2.0**53 + 2, 2.0**63, 1e300]
    cells = view_of(*({"a": value} for value in floats)).column(("a",)).cells
    assert asking.in_range(cells, gt=bound).tolist() == [value > bound for value in floats]
    assert asking.in_range(cells, gte=bound).tolist() == [value >= bound for value in floats]
    assert asking.in_range(cells, lt=bound).tolist() == [value < bound for value in floats]
    assert asking.in_range(cells, lte=bound).tolist() == [value <= bound for value in floats]
