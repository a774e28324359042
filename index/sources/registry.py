"""The table of formats: which suffix is read by which module.

A new format is a module with open_shard(path, columns) -> Shard and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from index.errors import SourceError
from index.sources.shard import Columns, Shard, reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """name: as errors and reports say it; module: in index.sources; has_columns: vector, ids and payload have names."""

    name: str
    suffixes: tuple[str, ...]
    module: str
    has_columns: bool = False


FORMATS = (
    Format(name="npy", suffixes=(".npy",), module="npy"),
    Format(name="npz", suffixes=(".npz",), module="npz", has_columns=True),
    Format(name="fvecs", suffixes=(".fvecs",), module="vecs"),
    Format(name="bvecs", suffixes=(".bvecs",), module="vecs"),
    Format(name="ivecs", suffixes=(".ivecs",), module="vecs"),
    Format(name="fbin", suffixes=(".fbin",), module="bins"),
    Format(name="u8bin", suffixes=(".u8bin",), module="bins"),
    Format(name="i8bin", suffixes=(".i8bin",), module="bins"),
    Format(name="HDF5", suffixes=(".hdf5", ".h5"), module="hdf5", has_columns=True),
    Format(name="Parquet", suffixes=(".parquet", ".pq"), module="parquet", has_columns=True),
    Format(name="Arrow", suffixes=(".arrow", ".feather", ".ipc"), module="arrow", has_columns=True),
)

_BY_SUFFIX = {suffix: each for each in FORMATS for suffix in each.suffixes}


def format_of(path: Path) -> Format | None:
    """The format that a file's suffix says, in any case; None for a file that no reader knows."""
    return _BY_SUFFIX.get(path.suffix.lower())


def open_shard(path: Path, form: Format, columns: Columns) -> Shard:
    """Read and check a file's header. Refuses column names for a format that has none."""
    if columns.any_named and not form.has_columns:
        with_columns = ", ".join(each.name for each in FORMATS if each.has_columns)
        raise SourceError(
            f"{path}: {form.name} files have no named columns, but vector, ids or payload names one. "
            f"Leave them out, or use one of {with_columns}."
        )
    # Imported when first needed: pyarrow and h5py keep 50 MB resident, which a process that only searches never pays.
    with reading(path, form.name):
        shard: Shard = import_module(f"index.sources.{form.module}").open_shard(path, columns)
    return shard
