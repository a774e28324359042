"""Scenarios S18, S19 and S21 to S26: what a search gives, whatever is asked of it."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import all_scores, recall_by_scores, require_reference, same_hits

from index import BuildOptions, SearchOptions, build, open_index
from index.errors import IndexExistsError, OptionsError, VectorIndexError

EXACT = SearchOptions(exact=True)


def random_rows(n: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


def random_ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).choice(10 * n, n, replace=False).tolist()


# --- S18 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 3, 1023, 1024, 1025, 1536, 4096])
def test_s18_vectors_of_any_size(tmp_path, dim):
    rows, ids = random_rows(300, dim), random_ids(300)
    build(rows, tmp_path / "out", ids=ids, options=BuildOptions(metric="l2"))
    queries = random_rows(10, dim, seed=1)
    with open_index(tmp_path / "out") as index:
        np.testing.assert_array_equal(index.vectors(index.ids.rows_of(ids)), rows)
        require_reference(index.search(queries, k=10), rows, queries, "l2", 10, ids=ids)
        require_reference(index.search(queries, k=10, options=EXACT), rows, queries, "l2", 10, ids=ids)


def test_s18_files_of_another_build_are_never_mixed_in(tmp_path):
    build(random_rows(40, 8), tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    other = random_rows(30, 12)
    with pytest.raises(IndexExistsError, match="out"):
        build(other, tmp_path / "out")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    build(other, tmp_path / "out", replace=True)
    with open_index(tmp_path / "out") as index:
        assert (index.n, index.dim) == (30, 12)
        require_reference(index.search(other, k=3), other, other, "cosine", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    # A folder of other things is no index: nobody's files are replaced.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    for replace in (False, True):
        with pytest.raises(VectorIndexError, match="mine"):
            build(other, tmp_path / "mine", replace=replace)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


# --- S19 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preview", ["flat", "graph"])
@pytest.mark.parametrize("n", [65, 600])
def test_s19_limits_around_the_number_of_rows(tmp_path, n, preview):
    rows, ids = random_rows(n, 12), random_ids(n)
    build(rows, tmp_path / "out", ids=ids, options=BuildOptions(preview=preview))
    with open_index(tmp_path / "out") as index:
        for k in (n - 2, n - 1, n, n + 1, n + 35, 10**9):
            for options in (None, EXACT):
                hits = index.search(rows[:65], k=k, options=options)
                assert hits.counts.tolist() == [min(k, n)] * 65
                assert hits.ids.shape[1] == min(k, n)
                for q in range(65):
                    assert len(set(hits.ids[q].tolist())) == min(k, n) and set(hits.ids[q].tolist()) <= set(ids)
        require_reference(index.search(rows[:5], k=n + 35), rows, rows[:5], "cosine", n + 35, ids=ids)


@pytest.mark.parametrize("k", [0, -1, 1.5, "5", True, None])
def test_s19_a_limit_that_is_no_number_of_rows_is_refused(tmp_path, k):
    build(random_rows(5, 4), tmp_path / "out")
    with open_index(tmp_path / "out") as index, pytest.raises(OptionsError, match="k is"):
        index.search(random_rows(1, 4), k=k)


# --- S21 --------------------------------------------------------------------------------------------------------


def check_batches(index, queries, k, options=None):
    together = index.search(queries, k=k, options=options)
    m = len(queries)
    parts = {
        "one by one": [slice(q, q + 1) for q in range(m)],
        "sevens": [slice(q, min(q + 7, m)) for q in range(0, m, 7)],
    }
    for how, slices in parts.items():
        for part in slices:
            some = index.search(queries[part], k=k, options=options)
            assert (some.ids == together.ids[part]).all(), how
            assert some.scores.tobytes() == together.scores[part].tobytes(), how
            assert (some.work.pages_read == together.work.pages_read[part]).all(), how
    back = index.search(queries[::-1], k=k, options=options)
    assert (back.ids[::-1] == together.ids).all() and (back.scores[::-1] == together.scores).all()


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("preview", ["flat", "graph"])
def test_s21_batches_do_not_change_answers(tmp_path, preview, metric):
    rows = random_rows(1500, 40)
    build(rows, tmp_path / "out", options=BuildOptions(metric=metric, preview=preview))
    with open_index(tmp_path / "out") as index:
        check_batches(index, random_rows(64, 40, seed=2), 10)
        check_batches(index, random_rows(64, 40, seed=2), 10, EXACT)


def test_s21_many_ties_in_wide_vectors(tmp_path):
    generator = np.random.default_rng(0)
    rows = (generator.random((400, 5000)) < 0.002).astype(np.float32)
    build(rows, tmp_path / "out", options=BuildOptions(metric="dot"))
    with open_index(tmp_path / "out") as index:
        queries = (generator.random((64, 5000)) < 0.01).astype(np.float32)
        check_batches(index, queries, 10)
        check_batches(index, queries, 10, EXACT)
        require_reference(index.search(queries, k=10, options=EXACT), rows, queries, "dot", 10)


# --- S22, S23 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["dot", "l2", "cosine"])
def test_s22_a_short_list_begins_the_long_one(tmp_path, metric):
    grid = np.random.default_rng(1).integers(0, 4, (1000, 2)).astype(np.float32) + (1 if metric == "cosine" else 0)
    ids = random_ids(1000)
    order = np.random.default_rng(2).permutation(1000)
    build(grid, tmp_path / "out", ids=ids, options=BuildOptions(metric=metric))
    build(grid[order], tmp_path / "again", ids=[ids[i] for i in order], options=BuildOptions(metric=metric, seed=3))
    query = [1.0, 2.0]
    with open_index(tmp_path / "out") as index, open_index(tmp_path / "again") as again:
        longest = index.search(query, k=1000, options=EXACT)
        require_reference(longest, grid, np.array([query]), metric, 1000, ids=ids)
        for k in range(1, 101):
            hits = index.search(query, k=k, options=EXACT)
            assert hits.ids[0].tolist() == longest.ids[0, :k].tolist()
        assert again.search(query, k=1000, options=EXACT).ids.tolist() == longest.ids.tolist()
        # 16 distinct vectors: the ordinary search is exact too.
        for k in (1, 7, 30, 100, 1000):
            assert index.search(query, k=k).ids[0].tolist() == longest.ids[0, :k].tolist()


def test_s23_pages_of_nearly_collinear_vectors(tmp_path):
    rows = np.arange(1, 26, dtype=np.float32)[:, None] * np.array([0.1, 0.05, 0.0333, 0.025], np.float32)
    build(rows, tmp_path / "out")
    with open_index(tmp_path / "out") as index:
        walked = []
        for offset in (0, 10, 20):
            hits = index.search(rows[3], k=offset + 10)
            walked += hits.ids[0, offset : hits.counts[0]].tolist()
        assert sorted(walked) == list(range(25))


def test_s23_pages_of_an_exact_walk_are_one_list(tmp_path):
    rows = random_rows(10_000, 8)
    build(rows, tmp_path / "out")
    query = random_rows(1, 8, seed=4)
    with open_index(tmp_path / "out") as index:
        whole = index.search(query, k=2000, options=EXACT).ids[0].tolist()
        walked = []
        for offset in range(0, 2000, 100):
            hits = index.search(query, k=offset + 100, options=EXACT)
            walked += hits.ids[0, offset:].tolist()
        assert walked == whole and len(set(walked)) == 2000


# --- S24, S25 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_s24_a_row_is_its_own_neighbour_at_exactly_one(tmp_path, dtype):
    rows = random_rows(1000, 128)
    rows = (rows * 40).astype(dtype) if dtype == "int8" else rows.astype(dtype)
    build(rows, tmp_path / "out")
    with open_index(tmp_path / "out") as index:
        for options in (SearchOptions(score_threshold=1.0), SearchOptions(score_threshold=1.0, exact=True)):
            hits = index.search(rows, k=10, options=options)
            found = hits.counts > 0
            assert found.all() if options.exact else found.mean() >= 0.95
            assert (hits.ids[found, 0] == np.flatnonzero(found)).all()
            assert (hits.scores[found, 0] == 1.0).all()
        hits = index.search(rows, k=10)
        assert (np.abs(hits.scores) <= 1.0).all()


def test_s25_numbers_mean_what_is_said(tmp_path):
    for metric, score in (("dot", 11.0), ("cosine", 0.98387), ("l2", 2.828427)):
        build(np.array([[3, 4]], np.float32), tmp_path / metric, options=BuildOptions(metric=metric))
        with open_index(tmp_path / metric) as index:
            assert index.search([1, 2], k=1).scores[0, 0] == pytest.approx(score, abs=5e-6)
            stats = index.stats()
            assert stats["metric"] == metric
            assert stats["order"] == ("lower is better" if metric == "l2" else "higher is better")


def test_s25_thresholds(tmp_path):
    build(np.array([[-1, 0], [-2, 0]], np.float32), tmp_path / "dot", options=BuildOptions(metric="dot"))
    with open_index(tmp_path / "dot") as index:
        hits = index.search([1, 0], k=2)
        assert hits.ids.tolist() == [[0, 1]] and hits.scores.tolist() == [[-1.0, -2.0]]
        for exact in (False, True):
            options = SearchOptions(score_threshold=-1.5, exact=exact)
            assert index.search([1, 0], k=2, options=options).counts.tolist() == [1]
        assert index.search([1, 0], k=2, options=SearchOptions(score_threshold=-2.0)).counts.tolist() == [2]
    build(np.array([[3, 0], [0, 4], [5, 5]], np.float32), tmp_path / "l2", options=BuildOptions(metric="l2"))
    with open_index(tmp_path / "l2") as index:
        for limit, count in ((2.9, 0), (3.0, 1), (4.0, 2), (100.0, 3)):
            hits = index.search([0, 0], k=3, options=SearchOptions(score_threshold=limit))
            assert hits.counts.tolist() == [count]


# --- S26 --------------------------------------------------------------------------------------------------------


def rows_of_all_lengths(n: int, dim: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(n, dim))
    rows *= 10 ** generator.uniform(-2, 2, (n, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


@pytest.mark.parametrize("preview", ["auto", "graph"])
def test_s26_the_promise_holds_for_dot_over_all_lengths(tmp_path, preview):
    rows, queries = rows_of_all_lengths(8000, 64, 0), rows_of_all_lengths(2000, 64, 1)
    report = build(rows, tmp_path / "out", options=BuildOptions(metric="dot", preview=preview))
    assert report.promise_kept and "rows only" in report.promise_covers
    with open_index(tmp_path / "out") as index:
        recall = recall_by_scores(index.search(queries, k=10), rows, queries, "dot", 10)
        measured = report.measured_recall
        assert recall >= 0.95
        assert measured["low"] <= recall <= measured["high"] or abs(recall - measured["recall"]) <= 0.02
        assert recall_by_scores(index.search(queries[:300], k=890), rows, queries[:300], "dot", 890) >= 0.95


def test_s26_a_promise_that_cannot_be_kept_is_confessed(tmp_path):
    rows = random_rows(1500, 64)
    options = BuildOptions(metric="l2", bits=1, preview="graph", recall=0.9999)
    report = build(rows, tmp_path / "out", options=options)
    assert not report.promise_kept
    assert any("0.9999" in warning and "not reached" in warning for warning in report.warnings)
    with open_index(tmp_path / "out") as index:
        promise = index.stats()["promise"]
        assert promise["kept"] is False and promise["recall"] == 0.9999
        # The best operating point serves.
        best = max((p for p in index.generation.points if p.k == 10), key=lambda p: (p.low, -p.cost))
        assert index.point(10) == best


def test_s26_the_oracle_of_the_library_is_the_reference(tmp_path):
    rows, queries = rows_of_all_lengths(3000, 32, 2), rows_of_all_lengths(50, 32, 3)
    build(rows, tmp_path / "out", options=BuildOptions(metric="dot"))
    with open_index(tmp_path / "out") as index:
        hits = index.search(queries, k=25, options=EXACT)
        require_reference(hits, rows, queries, "dot", 25)
        estimate = index.recall(queries, k=10)
        mine = recall_by_scores(index.search(queries, k=10), rows, queries, "dot", 10)
        assert estimate.mean == pytest.approx(mine, abs=0.005) and estimate.queries == 50
        assert same_hits(hits, index.search(queries, k=25, options=EXACT))
        assert all_scores(rows, queries[:1], "dot").max() == pytest.approx(float(hits.scores[0, 0]), rel=1e-6)
