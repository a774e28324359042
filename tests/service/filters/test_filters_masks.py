"""Masks by columns equal the plain evaluation on every row: of growing columns, of views in the past, of a mapped file."""

from __future__ import annotations

import json
from random import Random

import numpy as np
from filter_cases import IDS, Cases, ListTarget, by_columns, parsed, plainly
from hypothesis import given, settings
from hypothesis import strategies as st

from index.columns import ColumnBuilder, ColumnsFile, ColumnsWriter

EXAMPLES = settings(max_examples=400, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(0, 2**32 - 1)
FILTERS_EACH = 12
BOUNDS = [{}, {"cell_bytes": 0}, {"text_bytes": 0}, {"text_bytes": 500}, {"text_bytes": 1500, "cell_bytes": 60}]
"""Of the writer: all at once, a period a row, all strings hashed at once or after some rows."""


def written(folder, rows, **bounds):
    (folder / "payload").mkdir(parents=True, exist_ok=True)
    with ColumnsWriter(folder, **bounds) as writer:
        for row in rows:
            writer.append([None if row is None else json.dumps(row).encode()])
    return ColumnsFile.open(folder)


def check(asked, target):
    tree = parsed(asked)
    if tree is not None:
        assert by_columns(tree, target) == plainly(tree, target), asked


@EXAMPLES
@given(seed=SEEDS)
def test_growing_columns_agree_with_the_plain_evaluation(seed):
    """A view keeps agreeing while rows are added behind it."""
    random = Random(seed)
    cases = Cases(random)
    rows = [cases.payload() for _ in range(len(IDS))]
    builder = ColumnBuilder()
    views = []
    for row in rows:
        views.append(builder.view())
        builder.append([row])
    vectors = np.array([random.random() < 0.5 for _ in rows])
    for _ in range(FILTERS_EACH):
        asked = cases.filter()
        check(asked, ListTarget(rows, builder.view(), IDS, vectors))
        early = random.choice(views)
        check(asked, ListTarget(rows[: early.n], early, IDS[: early.n]))


def test_a_mapped_file_agrees_with_the_plain_evaluation(tmp_path):
    @EXAMPLES
    @given(seed=SEEDS)
    def agree(seed):
        random = Random(seed)
        cases = Cases(random)
        rows = [cases.payload() for _ in range(len(IDS))]
        target = ListTarget(rows, written(tmp_path, rows, **random.choice(BOUNDS)), IDS)
        for _ in range(FILTERS_EACH):
            check(cases.filter(), target)

    agree()


@settings(EXAMPLES, max_examples=100)
@given(seed=SEEDS)
def test_without_columns_all_is_decided_from_the_json(seed):
    cases = Cases(Random(seed))
    rows = [cases.payload() for _ in range(len(IDS))]
    for _ in range(FILTERS_EACH):
        check(cases.filter(), ListTarget(rows, None, IDS))


def test_s38_random_filters_over_2000_payloads_agree_with_the_plain_evaluation(tmp_path):
    """Rows enough for columns with and without a cell for each, written in many periods, some of their strings hashed."""
    cases = Cases(Random(38))
    rows = [cases.payload() for _ in range(2000)]
    builder = ColumnBuilder()
    builder.append(rows)
    ids = list(range(2000))
    targets = [
        ListTarget(rows, builder.view(), ids),
        ListTarget(rows, written(tmp_path, rows), ids),
        ListTarget(rows, written(tmp_path / "hashed", rows, cell_bytes=5000, text_bytes=3000), ids),
    ]
    for _ in range(100):
        tree = parsed(cases.filter())
        if tree is not None:
            expected = plainly(tree, targets[0])
            assert all(by_columns(tree, target) == expected for target in targets)
