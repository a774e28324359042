"""Counts, order and groups off columns equal those off the payloads themselves."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.columns import ColumnBuilder, ColumnsFile, ColumnsWriter, parse_time
from index.columns.reads import group_values, order_values, value_counts

BIG = 2**53
VALUES = [
    None, True, False, 0, 1, 42, 42.0, -7, BIG, BIG + 1, float(BIG), 0.5, 1e300, 2**70, "", "a", "é", "2023-01-01",
    "2023-01-01T00:00:00Z", "2024-02-02", {"x": 1},
]  # fmt: skip
PATH = ("a",)


def random_rows(random):
    def value():
        kind = random.randrange(6)
        if kind == 0:
            return [random.choice(VALUES) for _ in range(random.randrange(4))]
        if kind == 1:
            return [random.choice(VALUES[:12]) for _ in range(random.randrange(4))]
        return random.choice(VALUES)

    return [{} if random.random() < 0.2 else {"a": value()} for _ in range(12)]


def views(rows, folder):
    builder = ColumnBuilder()
    builder.append(rows)
    yield builder.view()
    (folder / "payload").mkdir(exist_ok=True)
    for text_bytes in (10**6, 0):
        with ColumnsWriter(folder, text_bytes=text_bytes) as writer:
            writer.append([json.dumps(row).encode() for row in rows])
        yield ColumnsFile.open(folder)


def values_of(row):
    found = row.get("a", [])
    return found if isinstance(found, list) else [found]


def integral(value):
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def plain_counts(rows, mask):
    counts = Counter()
    for row, wanted in zip(rows, mask):
        values = map(integral, values_of(row) if wanted else [])
        counts.update({(type(value).__name__, value) for value in values if isinstance(value, bool | int | str)})
    return {(name, value): count for (name, value), count in counts.items()}


def plain_orders(rows, mask):
    found = set()
    for at, row in enumerate(rows):
        for value in values_of(row):
            order = parse_time(value) if isinstance(value, str) else value
            if mask[at] and isinstance(order, int | float) and not isinstance(order, bool):
                found.add((at, order))
    return found


def plain_groups(row):
    values = [integral(value) for value in values_of(row)]
    if any(isinstance(value, bool) or not isinstance(value, int | str) for value in values):
        return []
    return list(dict.fromkeys(values))


def test_they_equal_what_the_payloads_say(tmp_path):
    @settings(max_examples=250, deadline=None, derandomize=True, database=None)
    @given(seed=st.integers(0, 2**32 - 1))
    def agree(seed):
        random = Random(seed)
        rows = random_rows(random)
        mask = np.array([random.random() < 0.7 for _ in rows])

        def read(positions):
            return [values_of(rows[at]) for at in positions]

        for columns in views(rows, tmp_path):
            counts = value_counts(columns, PATH, mask, read)
            assert {(type(value).__name__, value): count for value, count in counts} == plain_counts(rows, mask)
            assert [count for _, count in counts] == sorted((count for _, count in counts), reverse=True)
            orders = order_values(columns, PATH, mask, read)
            pairs = list(zip(orders.rows.tolist(), orders.values.tolist()))
            assert len(pairs) == len(set(pairs)) and set(pairs) == plain_orders(rows, mask)
            some = np.array(random.sample(range(len(rows)), 6))
            assert group_values(columns, PATH, some, read) == [plain_groups(rows[at]) for at in some]

    agree()


def unread(positions):
    assert not len(positions), "columns say all of these"
    return []


@pytest.mark.parametrize(
    ("rows", "dtype"), [([3, 1, 2], np.int64), ([0.5, 1.5, 0.5], np.float64), ([1, 0.5, 2], object)]
)
def test_values_to_order_by_keep_their_type(rows, dtype):
    builder = ColumnBuilder()
    builder.append([{"a": value} for value in rows])
    orders = order_values(builder.view(), PATH, np.ones(3, np.bool_), unread)
    assert orders.values.dtype == dtype and sorted(orders.values.tolist()) == sorted(rows)


def test_digits_of_64_bits_are_kept_beside_floats():
    builder = ColumnBuilder()
    builder.append([{"a": 2**63 - 1}, {"a": 2.0**62}, {"a": -(2**63)}])
    orders = order_values(builder.view(), PATH, np.ones(3, np.bool_), unread)
    assert sorted(orders.values.tolist()) == [-(2**63), 2.0**62, 2**63 - 1]


def test_counts_are_ranked_and_a_path_that_nothing_has_has_none():
    builder = ColumnBuilder()
    builder.append([{"a": "b"}, {"a": ["b", "b", "a"]}, {"a": 1}, {"a": True}, {"a": 1}])
    every = np.ones(5, np.bool_)
    counts = value_counts(builder.view(), PATH, every, unread)
    assert counts == [(1, 2), ("b", 2), (True, 1), ("a", 1)] and counts[2][0] is True
    assert value_counts(builder.view(), ("none",), every, unread) == []
    assert group_values(builder.view(), ("none",), np.arange(2), unread) == [[], []]
