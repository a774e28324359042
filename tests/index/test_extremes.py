"""Vectors and files that nobody expects: extreme lengths, outliers, signs of zero, sources that change, many equal rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from index import BuildOptions, SearchOptions, build, open_index
from index.errors import BadQueryError, BadRowsError, ShapeMismatchError, SourceError
from index.passes import row_hashes

EXACT = SearchOptions(exact=True)


def rows_of(n, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def nearest(rows, query, k, metric):
    rows, query = rows.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        return np.argsort(((rows - query) ** 2).sum(axis=1), kind="stable")[:k]
    scores = rows @ query
    if metric == "cosine":
        scores = scores / np.linalg.norm(rows, axis=1)
    return np.argsort(-scores, kind="stable")[:k]


@pytest.mark.parametrize("factor", [1e-35, 1e-25, 1e-22, 1e19, 1e25, 3e37])
def test_cosine_does_not_depend_on_the_length_of_a_query(tmp_path, factor):
    rows = rows_of(1000, 16)
    build(rows, tmp_path / "i")
    queries = rows[:20] * 0.5 + rows_of(20, 16, seed=1)
    scaled = (queries.astype(np.float64) * factor / np.abs(queries).max()).astype(np.float32)
    with open_index(tmp_path / "i") as index:
        for options in (None, EXACT):
            expected, found = index.search(queries, options=options), index.search(scaled, options=options)
            assert (found.scores > 0.1).all()
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
            assert (found.ids == expected.ids).mean() > 0.99


@pytest.mark.parametrize("metric,factor", [("l2", 1e20), ("dot", 1e20), ("cosine", 1e20), ("cosine", 1e-25)])
def test_rows_whose_squares_float32_does_not_hold_are_bad_rows(tmp_path, metric, factor):
    rows = rows_of(500, 8)
    rows[123] *= np.float32(factor)
    with pytest.raises(BadRowsError, match="row 123") as refused:
        build(rows, tmp_path / "i", options=BuildOptions(metric=metric))
    assert refused.value.count == 1
    assert not list(tmp_path.iterdir())
    report = build(rows, tmp_path / "i", options=BuildOptions(metric=metric, on_bad_rows="skip"))
    assert report.rows == 499


@pytest.mark.parametrize("metric", ["l2", "dot"])
def test_queries_whose_squares_float32_does_not_hold_are_refused(tmp_path, metric):
    build(rows_of(400, 8), tmp_path / "i", options=BuildOptions(metric=metric))
    with open_index(tmp_path / "i") as index:
        with pytest.raises(BadQueryError, match="query 1 "):
            index.search(np.array([[1.0] * 8, [1e19] * 8], np.float32))
        tiny = np.full((1, 8), 1e-44, np.float32)
        if metric == "dot":
            with pytest.raises(BadQueryError, match="vanish"):
                index.search(tiny)
        else:
            assert np.isfinite(index.search(tiny).scores).all()


@pytest.mark.parametrize("metric", ["dot", "l2"])
def test_one_outlier_neither_stops_a_build_nor_blinds_it(tmp_path, metric):
    rows = rows_of(9000, 16)
    rows[77] = 1e8
    build(rows, tmp_path / "i", options=BuildOptions(metric=metric, preview="graph", recall=0.9))
    queries = rows_of(50, 16, seed=2)
    with open_index(tmp_path / "i") as index:
        found = index.search(queries)
        true = [nearest(rows, query, 10, metric) for query in queries]
        assert np.mean([len(np.intersect1d(f, t)) for f, t in zip(found.ids, true)]) / 10 >= 0.9


def test_the_sign_of_zero_does_not_make_equal_rows_differ(tmp_path):
    equal = np.zeros((3000, 8), np.float32)
    equal[np.random.default_rng(0).random(equal.shape) < 0.5] *= -1.0
    assert len(np.unique(equal.view(np.uint32), axis=0)) > 100
    assert len(np.unique(row_hashes(equal))) == 1
    report = build(np.concatenate([equal, rows_of(1000, 8)]), tmp_path / "i", options=BuildOptions(metric="l2"))
    assert report.distinct_rows == 1001


def test_rows_that_are_all_alike_for_the_graph_are_linked_in_linear_time(tmp_path):
    # Differences far below what int8 shows beside the one large column: every distance is the same.
    rows = np.zeros((9000, 16), np.float32)
    rows[:, 0] = 1.0
    rows[:, 1] = np.arange(9000) * 1e-9
    report = build(rows, tmp_path / "i", options=BuildOptions(metric="l2", preview="graph"))
    assert report.phases["graph"] < 60


@pytest.mark.parametrize("phase", ["codes", "write"])
def test_a_source_that_changes_between_passes_is_refused(tmp_path, phase):
    def write(order):
        rows = rows_of(5000, 8)[order]
        table = {"id": pa.array(order), "vector": pa.array(list(rows))}
        pq.write_table(pa.table(table), tmp_path / "rows.parquet")

    def swap(progress):
        if progress.phase == phase and progress.done == 0:
            write(np.random.default_rng(1).permutation(5000))

    write(np.arange(5000))
    with pytest.raises(SourceError, match="was changed while it was being built from"):
        build(tmp_path / "rows.parquet", tmp_path / "i", ids="id", on_progress=swap)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_equal_rows_with_ids_in_any_spelling_come_by_id(tmp_path):
    generator = np.random.default_rng(0)
    plain = [f"{generator.integers(2**63):032x}" for _ in range(350)]
    ids = [
        text.upper() if i % 2 else f"{{{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}}}"
        for i, text in enumerate(plain)
    ]
    rows = np.concatenate([np.ones((350, 8), np.float32), rows_of(600, 8)])
    build(rows, tmp_path / "i", ids=[*ids, *range(600)])
    with open_index(tmp_path / "i") as index:
        found, true = index.search(rows[:1], k=5), index.search(rows[:1], k=5, options=EXACT)
        assert found.ids.tolist() == true.ids.tolist()
        assert true.ids[0].tolist() == sorted(true.ids[0].tolist())


@pytest.mark.parametrize("rows", [[-1], [400], [1.9], ["1"]])
def test_rows_that_are_not_there_have_no_vectors(tmp_path, rows):
    build(rows_of(400, 8), tmp_path / "i")
    with open_index(tmp_path / "i") as index, pytest.raises(ShapeMismatchError, match="from 0 to 399"):
        index.vectors(rows)


def test_of_equally_good_rows_any_counts_when_recall_is_measured(tmp_path):
    report = build(np.eye(512, dtype=np.float32), tmp_path / "i")
    assert report.promise_kept
    assert not report.warnings
    assert report.measured_recall["pages"] < 100
