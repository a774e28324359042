"""The sets a benchmark can be run on, and the files that contenders read them from.

open_dataset   a name, a folder or an ann-benchmarks HDF5 file -> Dataset
write_files    a Dataset -> float32 (and int8 or uint8) npy files of vectors and queries, of unit length under cosine

Invariant: queries that a build is given are never measured with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from index.errors import OptionsError, SourceError
from index.options import Metric
from index.sources import VectorSource, open_source

FETCHED = {"wordnet_minilm": Metric.COSINE, "sift": Metric.L2, "glove": Metric.COSINE}
"""Sets of scripts/fetch_data.py that are searched, and how."""
BUNDLED = Path(__file__).parents[2] / "tests" / "data" / "wordnet"
DISTANCES = {"angular": Metric.COSINE, "cosine": Metric.COSINE, "euclidean": Metric.L2, "dot": Metric.DOT}
SAMPLE = "sample"
"""For queries_for_build: all of sample_queries.*"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """base: a file that open_source reads, vector: its column. queries float32 (m, dim), measured with;
    sample_queries float32 (s, dim) or None, for builds; neighbours int64 (m, >= 10) or None: as the set claims them."""

    name: str
    base: Path
    vector: str | None
    metric: Metric
    n: int
    dim: int
    dtype: str
    queries: NDArray[np.float32]
    sample_queries: NDArray[np.float32] | None = None
    neighbours: NDArray[np.int64] | None = None
    query_note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """npy files of a Dataset: see workers/searcher.py, Job."""

    base: Path
    queries: Path
    base_given: Path | None
    queries_given: Path | None
    sample_queries: Path | None


def open_dataset(
    given: str, *, data: Path, metric: str | None, queries_for_build: str | None, most_queries: int | None
) -> Dataset:
    """Find and open a set. data: the folder that scripts/fetch_data.py wrote to.

    queries_for_build: a number N (the first N queries), "sample" (the set's sample queries) or None. most_queries: how
    many of the queries that are left are measured with at most. Raises OptionsError, SourceError.
    """
    wanted = None if metric is None else _metric_named(metric)
    path = Path(given)
    if path.is_file() and path.suffix in (".hdf5", ".h5"):
        found = _from_hdf5(path, wanted)
    elif path.is_dir():
        found = _from_folder(path, path.resolve().name, wanted or FETCHED.get(path.resolve().name))
    elif given == "wordnet":
        found = _bundled(wanted)
    elif given in FETCHED:
        if not (data / given).is_dir():
            raise OptionsError(
                f"the set {given} is not in {data}. Make it with `python scripts/fetch_data.py {data} {given}`, "
                "or say where it is with --data."
            )
        found = _from_folder(data / given, given, wanted or FETCHED[given])
    else:
        raise OptionsError(
            f"dataset {given!r} is neither an HDF5 file, nor a folder with base.* and queries.*, nor one of the known "
            f"sets: wordnet, {', '.join(FETCHED)}."
        )
    return _shared_out(found, queries_for_build, most_queries)


def _metric_named(metric: str) -> Metric:
    try:
        return Metric(metric)
    except ValueError as error:
        raise OptionsError(f"metric is {metric!r}, needed one of {', '.join(Metric)}") from error


def _from_hdf5(path: Path, metric: Metric | None) -> Dataset:
    with h5py.File(path, "r") as file:
        missing = [name for name in ("train", "test") if name not in file]
        if missing:
            raise SourceError(
                f"{path} has no data set {', '.join(missing)}; an ann-benchmarks file has train and test."
            )
        distance = file.attrs.get("distance", b"")
        distance = distance.decode() if isinstance(distance, bytes) else str(distance)
        neighbours = np.asarray(file["neighbors"], np.int64) if "neighbors" in file else None
    if metric is None and distance not in DISTANCES:
        raise OptionsError(
            f"{path} measures distance {distance!r}, which is none of {', '.join(DISTANCES)}. Say --metric."
        )
    source = open_source(path, vector="train")
    return Dataset(
        name=path.stem,
        base=path,
        vector="train",
        metric=metric or DISTANCES[distance],
        n=source.n,
        dim=source.dim,
        dtype=str(source.dtype),
        queries=_read(open_source(path, vector="test")),
        neighbours=neighbours,
    )


def _from_folder(folder: Path, name: str, metric: Metric | None) -> Dataset:
    if metric is None:
        raise OptionsError(f"the metric of {folder} is not known. Say --metric cosine, dot or l2.")
    base, queries, samples = (_one_file(folder, stem) for stem in ("base", "queries", "sample_queries"))
    for path, stem in ((base, "base"), (queries, "queries")):
        if path is None:
            raise SourceError(f"{folder} has no file {stem}.* of vectors (npy, fvecs, fbin, ...)")
    assert base is not None, "refused above"
    assert queries is not None, "refused above"
    source = open_source(base)
    return Dataset(
        name=name,
        base=base,
        vector=None,
        metric=metric,
        n=source.n,
        dim=source.dim,
        dtype=str(source.dtype),
        queries=_read(open_source(queries)),
        sample_queries=None if samples is None else _read(open_source(samples)),
    )


def _one_file(folder: Path, stem: str) -> Path | None:
    """The file `stem`.* that holds vectors; a table of texts may stand beside it."""
    tables = {".parquet", ".arrow", ".feather", ".json", ".txt", ".md"}
    fitting = sorted(folder.glob(f"{stem}.*"), key=lambda path: (path.suffix in tables, path.name))
    return fitting[0] if fitting else None


def _bundled(metric: Metric | None) -> Dataset:
    if not BUNDLED.is_dir():
        raise OptionsError("the set wordnet is part of the repository's tests and not installed; run in a checkout.")
    points = BUNDLED / "points.parquet"
    source = open_source(points, vector="vector")
    return Dataset(
        name="wordnet",
        base=points,
        vector="vector",
        metric=metric or Metric.COSINE,
        n=source.n,
        dim=source.dim,
        dtype=str(source.dtype),
        queries=_read(open_source(BUNDLED / "queries.parquet", vector="vector")),
        sample_queries=_read(open_source(BUNDLED / "sample_queries.npy")),
    )


def _read(source: VectorSource) -> NDArray[np.float32]:
    return np.concatenate([np.asarray(block.vectors, np.float32) for block in source.blocks()])


def _shared_out(found: Dataset, queries_for_build: str | None, most_queries: int | None) -> Dataset:
    """Part the queries into those for the build and those to measure with."""
    queries, samples, start = found.queries, None, 0
    note = "the build saw no queries"
    if queries_for_build == SAMPLE:
        if found.sample_queries is None:
            raise OptionsError(f"{found.name} has no sample_queries. Give a number to --queries-for-build.")
        samples = found.sample_queries
        note = f"the build saw {len(samples):,} sample queries, none of them measured with"
    elif queries_for_build is not None:
        start = int(queries_for_build) if queries_for_build.isdigit() else 0
        if not 0 < start < len(queries):
            raise OptionsError(
                f"queries_for_build is {queries_for_build!r}; needed {SAMPLE!r}, or a number from 1 to "
                f"{len(queries) - 1}: {found.name} has {len(queries):,} queries and some must be left to measure with."
            )
        samples = queries[:start]
        note = f"the build saw the first {start:,} queries, none of them measured with"
    stop = len(queries) if most_queries is None else start + most_queries
    neighbours = None if found.neighbours is None else found.neighbours[start:stop]
    return replace(found, queries=queries[start:stop], sample_queries=samples, neighbours=neighbours, query_note=note)


def write_files(dataset: Dataset, folder: Path, *, advance: Callable[[int, int], None]) -> Files:
    """The set as npy files in `folder`; streams. advance: called with (rows done, rows in all)."""
    given = dataset.metric is Metric.L2 and dataset.dtype in ("uint8", "int8")
    base = folder / "base.npy"
    base_given = folder / "base_given.npy" if given else None
    wide = np.lib.format.open_memmap(base, "w+", np.float32, (dataset.n, dataset.dim))
    narrow = None
    if base_given is not None:
        narrow = np.lib.format.open_memmap(base_given, "w+", np.dtype(dataset.dtype), (dataset.n, dataset.dim))
    for block in open_source(dataset.base, vector=dataset.vector).blocks():
        rows = slice(block.start, block.start + len(block.vectors))
        wide[rows] = _prepared(np.asarray(block.vectors, np.float32), dataset.metric)
        if narrow is not None:
            narrow[rows] = block.vectors
        advance(rows.stop, dataset.n)
    for mapped in (wide, narrow):
        if mapped is not None:
            mapped.flush()
    queries_given = None
    if given and np.array_equal(dataset.queries, dataset.queries.astype(dataset.dtype)):
        queries_given = folder / "queries_given.npy"
        np.save(queries_given, dataset.queries.astype(dataset.dtype))
    np.save(folder / "queries.npy", _prepared(dataset.queries, dataset.metric))
    samples = None
    if dataset.sample_queries is not None:
        samples = folder / "sample_queries.npy"
        np.save(samples, dataset.sample_queries)
    return Files(
        base=base,
        queries=folder / "queries.npy",
        base_given=base_given if queries_given is not None else None,
        queries_given=queries_given,
        sample_queries=samples,
    )


def _prepared(vectors: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    """Unit length under cosine; zero vectors stay as they are."""
    if metric is not Metric.COSINE:
        return vectors
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: NDArray[Any] = vectors / np.where(lengths == 0.0, 1.0, lengths)
    return unit.astype(np.float32)
