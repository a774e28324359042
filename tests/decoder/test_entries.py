"""Where walks begin: tokens that win in the state's part of the space, each once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from layer_oracle import random_states

from decoder.entries import LEADING, Entries


def nothing() -> None:
    pass


def calibrated(coordinates, answers, vocab_size, **options) -> Entries:
    given = {"clusters": 8, "rows": 6, "seed": 0, "check": nothing, **options}
    return Entries.of_calibration(coordinates, answers.astype(np.int32), vocab_size, **given)


def require_entries(entries: Entries, vocab_size: int) -> None:
    assert entries.table.dtype == np.int32 and entries.centroids.dtype == entries.halves.dtype == np.float32
    for row in entries.table.tolist():
        assert len(set(row)) == len(row) and min(row) >= 0 and max(row) < vocab_size
    np.testing.assert_allclose(entries.halves, 0.5 * (entries.centroids.astype(np.float64) ** 2).sum(axis=1), rtol=1e-5)


def test_each_cluster_begins_with_its_most_frequent_winners():
    generator = np.random.default_rng(1)
    where = generator.integers(0, 3, 600)
    points = (np.eye(3, 20)[where] * 30 + generator.normal(size=(600, 20))).astype(np.float32)
    answers = np.stack([100 * where + 7, 100 * where + generator.integers(0, 3, 600)], axis=1)
    entries = calibrated(points, answers, 400, clusters=3)
    require_entries(entries, 400)
    nearest = (points @ entries.centroids.T - entries.halves).argmax(axis=1)
    assert (entries.table[nearest, 0] == 100 * where + 7).all()
    # Then the other answers of the cluster, then the winners of all clusters.
    for row in entries.table.tolist():
        own = row[0] // 100
        assert {token // 100 for token in row[:4]} == {own} and set(row[4:]) <= {7, 107, 207}


@pytest.mark.parametrize("n, clusters", [(1, 8), (5, 8), (300, 8), (300, 1)])
def test_never_more_clusters_than_states(n, clusters):
    entries = calibrated(random_states(n, 40), np.zeros((n, 3)), 50, clusters=clusters)
    require_entries(entries, 50)
    assert entries.table.shape == (min(n, clusters), 6)


def test_equal_states_leave_no_cluster_without_a_centroid():
    entries = calibrated(np.ones((50, 10), np.float32), np.zeros((50, 2)), 30)
    require_entries(entries, 30)
    assert np.isfinite(entries.centroids).all() and entries.table[0, 0] == 0


@pytest.mark.parametrize("vocab_size, rows", [(1, 6), (4, 6), (6, 6), (7, 6)])
def test_few_tokens(vocab_size, rows):
    answers = np.random.default_rng(0).integers(0, vocab_size, (40, 2))
    entries = calibrated(random_states(40, 8), answers, vocab_size, rows=rows)
    require_entries(entries, vocab_size)
    assert entries.table.shape[1] == min(vocab_size, rows)


def test_clusters_are_told_apart_by_the_leading_coordinates():
    entries = calibrated(random_states(100, LEADING + 50), np.zeros((100, 1)), 30)
    assert entries.centroids.shape[1] == LEADING


def test_the_same_seed_gives_the_same_entries():
    points, answers = random_states(300, 20), np.random.default_rng(2).integers(0, 90, (300, 4))
    first, second, other = (calibrated(points, answers, 90, seed=seed) for seed in (1, 1, 2))
    assert first.table.tobytes() == second.table.tobytes() and first.centroids.tobytes() == second.centroids.tobytes()
    assert first.centroids.tobytes() != other.centroids.tobytes()


def test_clustering_can_be_cancelled():
    asked = threading.Event()

    def check() -> None:
        asked.set()
        raise InterruptedError

    with pytest.raises(InterruptedError):
        calibrated(random_states(100, 8), np.zeros((100, 1)), 30, check=check)
    assert asked.is_set()


def test_without_calibration_one_place_for_all_states():
    order, spread = np.arange(100, dtype=np.int32)[::-1].copy(), np.array([5, 99, 50, 7], np.int32)
    entries = Entries.of_rows(order, spread, leading=300, rows=8)
    require_entries(entries, 100)
    assert entries.table.tolist() == [[99, 98, 97, 96, 5, 50, 7, 95]] and entries.centroids.shape == (1, LEADING)


@pytest.mark.parametrize("vocab_size, rows", [(1, 8), (3, 8), (100, 1)])
def test_without_calibration_few_tokens(vocab_size, rows):
    order = np.arange(vocab_size, dtype=np.int32)
    entries = Entries.of_rows(order, order, leading=16, rows=rows)
    require_entries(entries, vocab_size)
    assert entries.table.shape == (1, min(vocab_size, rows))


def test_arrays_read_from_a_file():
    made = calibrated(random_states(60, 12), np.zeros((60, 2)), 30)
    again = Entries.of(made.centroids, made.table)
    assert again.halves.tobytes() == made.halves.tobytes()
