"""Queries that have an answer, and scores as users see them."""

from __future__ import annotations

import numpy as np
import pytest

from index.errors import BadQueryError, OptionsError, ShapeMismatchError
from index.metric import as_queries, inward, metric_of, outward
from index.options import Metric


def test_metrics_by_name():
    assert [metric_of(name) for name in ("cosine", "dot", "l2")] == list(Metric)
    assert [metric.larger_is_better for metric in Metric] == [True, True, False]
    with pytest.raises(OptionsError, match=r"manhattan.*cosine, dot, l2"):
        metric_of("manhattan")


def test_inner_scores_and_what_users_see():
    inner = np.array([-3.0, -0.0, 0.0], np.float32)
    assert outward(inner, Metric.L2).tolist() == [3.0, 0.0, 0.0]
    assert not np.signbit(outward(inner, Metric.L2)).any()
    assert outward(inner, Metric.DOT) is inner
    assert (inward(2.5, Metric.L2), inward(2.5, Metric.DOT)) == (-2.5, 2.5)


@pytest.mark.parametrize("given", [[1, 2, 3], [[1, 2, 3]], np.array([1, 2, 3], np.uint8), (1.0, 2.0, 3.0)])
def test_one_query_is_a_batch_of_one(given):
    queries = as_queries(given, dim=3, metric=Metric.DOT)
    assert queries.tolist() == [[1, 2, 3]] and queries.dtype == np.float32 and queries.flags.c_contiguous


def test_any_memory_order_and_byte_order():
    base = np.arange(24, dtype=">f8").reshape(4, 6)
    for given in (base, np.asfortranarray(base), base[::-1][::-1], np.repeat(base, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(as_queries(given, dim=6, metric=Metric.L2), base)
    assert as_queries(np.zeros((0, 6)), dim=6, metric=Metric.COSINE).shape == (0, 6)


@pytest.mark.parametrize(
    "given", [[1, 2], [[1, 2, 3, 4]], [[[1, 2, 3]]], 5, "abc", [["a", "b", "c"]], [[1, 2], [3]], None, [1j, 2, 3]]
)
def test_what_is_no_batch_of_such_vectors_is_refused(given):
    with pytest.raises(ShapeMismatchError):
        as_queries(given, dim=3, metric=Metric.L2)


def test_a_query_without_an_answer_is_named():
    for bad, word in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf"), (1e300, "inf")):
        with pytest.raises(BadQueryError, match=f"query 1 is {word} at column 2"):
            as_queries([[1, 1, 1], [1, 1, bad]], dim=3, metric=Metric.L2)
    with pytest.raises(BadQueryError, match="query 1 is the zero vector"):
        as_queries([[1, 0, 0], [0, 0, 0]], dim=3, metric=Metric.COSINE)
    assert as_queries([0, 0, 0], dim=3, metric=Metric.L2).shape == (1, 3)
