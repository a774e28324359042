"""Sets of a benchmark: HDF5 files, folders, names; queries parted between build and measurement; files for contenders."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from index.errors import OptionsError, SourceError
from index.options import Metric
from service.bench.datasets import open_dataset, write_files


def opened(given, **changed):
    options = {"data": Path("nowhere"), "metric": None, "queries_for_build": None, "most_queries": None}
    return open_dataset(str(given), **{**options, **changed})


def vectors(n, dim=12, seed=3):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def write_fvecs(path, rows):
    np.concatenate([np.full((len(rows), 1), rows.shape[1], np.int32), rows.view(np.int32)], axis=1).tofile(path)


@pytest.fixture
def hdf5(tmp_path):
    path = tmp_path / "toy-12-angular.hdf5"
    with h5py.File(path, "w") as file:
        file["train"], file["test"] = vectors(200), vectors(30, seed=4)
        file["neighbors"] = np.arange(30 * 20).reshape(30, 20) % 200
        file.attrs["distance"] = "angular"
    return path


@pytest.fixture
def folder(tmp_path):
    write_fvecs(tmp_path / "base.fvecs", vectors(100))
    np.save(tmp_path / "queries.npy", vectors(20, seed=4))
    np.save(tmp_path / "sample_queries.npy", vectors(40, seed=5))
    (tmp_path / "queries.parquet").write_text("a table of texts beside the vectors")
    return tmp_path


def test_ann_benchmarks_file(hdf5):
    found = opened(hdf5)
    assert (found.n, found.dim, found.metric, found.vector) == (200, 12, Metric.COSINE, "train")
    assert found.queries.shape == (30, 12) and found.neighbours.shape == (30, 20)


def test_hdf5_of_an_unknown_distance_asks_for_the_metric(hdf5):
    with h5py.File(hdf5, "a") as file:
        file.attrs["distance"] = "jaccard"
    with pytest.raises(OptionsError, match=r"jaccard.*--metric"):
        opened(hdf5)
    assert opened(hdf5, metric="l2").metric is Metric.L2


def test_hdf5_without_test_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["train"] = vectors(10)
    with pytest.raises(SourceError, match="no data set test"):
        opened(tmp_path / "other.hdf5")


def test_folder_takes_vectors_before_tables(folder):
    found = opened(folder, metric="cosine")
    assert found.base.name == "base.fvecs" and found.queries.shape == (20, 12)


def test_folder_needs_a_metric_and_both_files(folder):
    with pytest.raises(OptionsError, match="Say --metric"):
        opened(folder)
    with pytest.raises(OptionsError, match="needed one of cosine"):
        opened(folder, metric="euclid")
    (folder / "base.fvecs").unlink()
    with pytest.raises(SourceError, match=r"no file base\.\*"):
        opened(folder, metric="l2")


def test_unknown_names_say_what_to_do(tmp_path):
    with pytest.raises(OptionsError, match="neither an HDF5 file"):
        opened("no-such-set")
    with pytest.raises(OptionsError, match=r"fetch_data\.py .* sift"):
        opened("sift", data=tmp_path)


def test_queries_of_the_build_are_not_measured_with(hdf5):
    found = opened(hdf5, queries_for_build="10", most_queries=15)
    everything = opened(hdf5)
    assert np.array_equal(found.sample_queries, everything.queries[:10])
    assert np.array_equal(found.queries, everything.queries[10:25])
    assert np.array_equal(found.neighbours, everything.neighbours[10:25])
    assert "first 10 queries" in found.query_note


def test_sample_queries_may_be_given_to_the_build(folder, hdf5):
    found = opened(folder, metric="l2", queries_for_build="sample")
    assert len(found.sample_queries) == 40 and len(found.queries) == 20
    with pytest.raises(OptionsError, match="no sample_queries"):
        opened(hdf5, queries_for_build="sample")
    for wrong in ("0", "30", "some"):
        with pytest.raises(OptionsError, match="some must be left"):
            opened(hdf5, queries_for_build=wrong)


def test_bundled_set():
    found = opened("wordnet")
    assert found.n == 24_000 and found.queries.shape == (500, 384) and found.dtype == "int8"


def test_files_have_unit_length_under_cosine(hdf5, tmp_path):
    found = opened(hdf5)
    steps = []
    files = write_files(found, tmp_path, advance=lambda done, total: steps.append((done, total)))
    assert np.allclose(np.linalg.norm(np.load(files.base), axis=1), 1.0)
    assert np.allclose(np.linalg.norm(np.load(files.queries), axis=1), 1.0)
    assert files.base_given is None and steps[-1] == (200, 200)


def test_files_keep_small_integers_for_peers_that_take_them(tmp_path):
    rows = np.random.default_rng(6).integers(0, 256, (50, 8)).astype(np.uint8)
    np.save(tmp_path / "base.npy", rows)
    np.save(tmp_path / "queries.npy", rows[:20])
    found = opened(tmp_path, metric="l2")
    out = tmp_path / "out"
    out.mkdir()
    files = write_files(found, out, advance=lambda *_: None)
    assert np.array_equal(np.load(files.base_given), rows) and np.load(files.base).dtype == np.float32
    assert np.load(files.queries_given).dtype == np.uint8
