"""Clustering rows into lists: complete, near, the same whatever the threads, and what happens without faiss or with a GPU."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest

from index.codes import encode_int8
from index.errors import MissingExtraError
from index.graph import GraphRows
from index.preview import clustering
from index.preview.clustering import cluster_rows, train_pq
from index.preview.ivf_build import ListOptions, order_by_lists

faiss = pytest.importorskip("faiss", reason="clustering needs faiss (extra cpu)")


def rows_of(vectors: np.ndarray, extra: np.ndarray | None = None) -> GraphRows:
    return GraphRows(*encode_int8(vectors.astype(np.float32), extra=extra))


def blobs(n: int = 4000, *, width: int = 16, centres: int = 60, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    middle = generator.normal(size=(centres, width))
    return (middle[generator.integers(0, centres, n)] + 0.3 * generator.normal(size=(n, width))).astype(np.float32)


@pytest.fixture
def small_steps(monkeypatch):
    """Groups are split twice and rows assigned through groups of lists, with few lists already."""
    monkeypatch.setattr(clustering, "LEAF", 4)
    monkeypatch.setattr(clustering, "FLAT_LISTS", 16)


@pytest.mark.parametrize("lists", [2, 60, 150])
def test_every_row_has_a_list_and_no_list_is_empty(lists, small_steps):
    labels, found = cluster_rows(rows_of(blobs()), lists=lists, seed=0, threads=2)
    assert labels.dtype == np.int32
    assert np.unique(labels).tolist() == list(range(found))
    assert 0.6 * lists <= found <= 1.6 * lists


def test_rows_are_in_the_list_whose_mean_is_nearest(small_steps):
    vectors = blobs()
    labels, found = cluster_rows(rows_of(vectors), lists=60, seed=0, threads=2)
    means = np.stack([vectors[labels == at].mean(axis=0) for at in range(found)])
    far = ((vectors[:, None] - means) ** 2).sum(axis=2)
    assert (far.argmin(axis=1) == labels).mean() > 0.9
    assert far[np.arange(len(vectors)), labels].mean() < 0.5 * vectors.var(axis=0).sum()


def test_lists_are_the_same_for_any_number_of_threads(small_steps):
    rows = rows_of(blobs())
    one = cluster_rows(rows, lists=80, seed=3, threads=1)
    for threads in (2, 5):
        many = cluster_rows(rows, lists=80, seed=3, threads=threads)
        np.testing.assert_array_equal(one[0], many[0])
    assert (cluster_rows(rows, lists=80, seed=4, threads=1)[0] != one[0]).any()


def test_the_extra_coordinate_counts():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(400, 8)).astype(np.float32)
    extra = np.where(np.arange(400) % 2 == 0, 0.0, 100.0).astype(np.float32)
    labels, found = cluster_rows(rows_of(vectors, extra), lists=2, seed=0, threads=1)
    assert found == 2
    assert len(set(labels[::2].tolist())) == len(set(labels[1::2].tolist())) == 1


@pytest.mark.parametrize(("n", "lists"), [(1, 1), (2, 5), (3, 3), (40, 40), (40, 30)])
def test_few_rows(n, lists):
    labels, found = cluster_rows(rows_of(blobs(n)), lists=lists, seed=0, threads=2)
    assert len(labels) == n
    assert 1 <= found <= n


def test_rows_that_cannot_be_told_apart(small_steps):
    labels, found = cluster_rows(rows_of(np.ones((500, 8))), lists=50, seed=0, threads=2)
    assert len(labels) == 500
    assert found <= 50


def test_an_exception_of_check_stops_it(small_steps):
    def check(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster_rows(rows_of(blobs()), lists=60, seed=0, threads=2, check=check)


def test_progress_never_goes_back(small_steps):
    told: list[int] = []
    cluster_rows(rows_of(blobs()), lists=60, seed=0, threads=2, check=lambda done, total: told.append(done))
    assert told == sorted(told)
    assert told[-1] == 4000


def test_faiss_is_named_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"fullview\[cpu\]"):
        cluster_rows(rows_of(blobs(100)), lists=4, seed=0, threads=1)


def test_with_a_gpu_the_same_calls_run_there(monkeypatch):
    """No GPU here: what asks for one is recorded and answered by the CPU."""
    asked: list[bool] = []
    moved: list[int] = []
    kmeans = faiss.Kmeans

    def on_gpu(*args: object, gpu: bool, **options: object) -> object:
        asked.append(gpu)
        return kmeans(*args, **options)

    def to_gpus(index: object) -> object:
        moved.append(index.ntotal)
        return index

    monkeypatch.setattr(faiss, "Kmeans", on_gpu)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", to_gpus)
    monkeypatch.setattr(clustering, "FLAT_LISTS", 16)
    rows = rows_of(blobs(1000))
    labels, _ = cluster_rows(rows, lists=30, seed=0, threads=4)
    assert asked
    assert all(asked)
    assert moved == [30]
    monkeypatch.undo()
    expected, _ = cluster_rows(rows, lists=30, seed=0, threads=4)
    assert (labels == expected).mean() > 0.99


# --- order ------------------------------------------------------------------------------------------------------


def test_order_is_list_after_list_with_near_lists_side_by_side():
    vectors = blobs(3000)
    options = ListOptions(lists=60, page_rows=4, seed=0, threads=2)
    order, offsets = order_by_lists(rows_of(vectors), options=options)
    assert np.sort(order).tolist() == list(range(3000))
    assert offsets.dtype == np.int32
    assert (np.diff(offsets) > 0).all()
    assert (offsets[0], offsets[-1]) == (0, 3000)
    means = np.stack([vectors[order[a:b]].mean(axis=0) for a, b in pairwise(offsets)])
    side_by_side = ((means[1:] - means[:-1]) ** 2).sum(axis=1).mean()
    shuffled = means[np.random.default_rng(0).permutation(len(means))]
    assert side_by_side < 0.9 * ((shuffled[1:] - shuffled[:-1]) ** 2).sum(axis=1).mean()
    again = order_by_lists(rows_of(vectors), options=ListOptions(lists=60, page_rows=4, seed=0, threads=1))
    np.testing.assert_array_equal(order, again.order)


# --- product quantiser --------------------------------------------------------------------------------------------


def test_codebooks_stand_for_residuals_the_better_the_more_parts():
    generator = np.random.default_rng(0)
    residuals = generator.normal(size=(2000, 16)).astype(np.float32)
    errors = []
    for parts in (2, 4, 8):
        books = train_pq(residuals, parts=parts, seed=0, threads=2)
        assert books.shape == (parts, 16 // parts, 256)
        np.testing.assert_array_equal(books, train_pq(residuals, parts=parts, seed=0, threads=1))
        own = residuals.reshape(2000, parts, 16 // parts, 1)
        errors.append(((own - books) ** 2).sum(axis=2).min(axis=2).sum(axis=1).mean())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1 * 16


def test_codebooks_of_fewer_rows_than_centroids():
    residuals = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    books = train_pq(residuals, parts=2, seed=0, threads=1)
    assert np.isfinite(books).all()
    own = residuals.reshape(5, 2, 4, 1)
    assert ((own - books) ** 2).sum(axis=2).min(axis=2).max() < 1e-6
