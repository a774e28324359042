"""The oracle and recall: what counts as found, and how sure an estimate is."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import all_scores

from index import exact
from index.exact import interval, recall_of
from index.fullview import PageLayout, VectorFile, VectorFileWriter
from index.kernels import score
from index.preview import Groups
from index.rerank import Places

METRICS = {"cosine": score.COSINE, "dot": score.DOT, "l2": score.L2}


def counts(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "n,dim,dtype", [(1, 3, "float32"), (700, 24, "int8"), (300, 600, "float16"), (40, 2100, "float32")]
)
def test_all_rows_are_scored(tmp_path, n, dim, dtype, metric):
    generator = np.random.default_rng(0)
    rows = (generator.normal(size=(n, dim)) * 20).astype(dtype)
    layout = PageLayout(n, dim, np.dtype(dtype))
    ids = generator.permutation(n).astype(np.uint64)
    with VectorFileWriter(tmp_path / "vectors.bin", layout) as writer:
        writer.append(rows, ids)
    queries = generator.normal(size=(70, dim)).astype(np.float32)
    told = []
    with VectorFile.open(tmp_path, layout) as file:
        best = exact.search_all(
            file.reader(),
            Places(layout, Groups(np.zeros(0, np.int32), np.zeros(0, np.int64))),
            None if layout.ids_in_pages else ids,
            queries,
            metric=METRICS[metric],
            k=20,
            check=lambda done, total: told.append((done, total)),
        )
    assert told[-1][0] == told[-1][1]
    true = all_scores(rows, queries, metric) * (-1 if metric == "l2" else 1)
    k = min(20, n)
    # float32 sums are right relative to the size of what is added.
    slack = 1e-6 * float((np.abs(queries) @ np.abs(rows.astype(np.float32)).T).max())
    assert (best.counts == k).all() and (best.codes[:, :k] == ids[best.rows[:, :k]]).all()
    np.testing.assert_allclose(
        best.scores[:, :k], np.take_along_axis(true, best.rows[:, :k], axis=1), rtol=1e-4, atol=slack
    )
    np.testing.assert_allclose(best.scores[:, :k], -np.sort(-true, axis=1)[:, :k], rtol=1e-4, atol=slack)


def test_of_equally_good_rows_any_counts_as_found():
    true = np.array([[3.0, 2.0, 2.0], [5.0, 4.0, 0.0]], np.float32)
    found = np.array([[3.0, 2.0, 1.0], [5.0, 0.0, 0.0]], np.float32)
    assert recall_of(found, counts(3, 2), true, counts(3, 2)).tolist() == [2 / 3, 1 / 2]
    assert recall_of(true, counts(3, 2), true, counts(3, 2)).tolist() == [1.0, 1.0]
    assert recall_of(found, counts(0, 0), true, counts(3, 2)).tolist() == [0.0, 0.0]
    assert recall_of(found, counts(3, 2), true, counts(0, 0)).tolist() == [1.0, 1.0]


def test_intervals_cover_the_truth():
    generator = np.random.default_rng(1)
    covered = []
    for _ in range(400):
        estimate = interval(generator.binomial(10, 0.93, 500) / 10)
        assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1 and estimate.queries == 500
        covered.append(estimate.low <= 0.93 <= estimate.high)
    assert np.mean(covered) > 0.92


def test_intervals_of_little():
    assert interval(np.zeros(0)).queries == 0
    for perfect in (1, 30, 1000):
        estimate = interval(np.ones(perfect))
        assert estimate.mean == estimate.high == 1.0 and estimate.low < 1.0
    assert interval(np.ones(30)).low < interval(np.ones(1000)).low
