"""Writers of vector files for the tests of sources: one function a format, each written without the code under test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq


def npy(path: Path, rows: np.ndarray) -> None:
    with path.open("wb") as file:  # given a name, numpy appends a suffix
        np.save(file, rows)


def npz(path: Path, rows: np.ndarray) -> None:
    with path.open("wb") as file:
        np.savez(file, rows)


def npz_packed(path: Path, rows: np.ndarray) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, rows)


def vecs(path: Path, rows: np.ndarray) -> None:
    with path.open("wb") as file:
        for row in rows:
            file.write(np.int32(len(row)).astype("<i4").tobytes())
            file.write(row.astype(row.dtype.newbyteorder("<")).tobytes())


def bins(path: Path, rows: np.ndarray) -> None:
    head = np.array(rows.shape, "<u4").tobytes()
    path.write_bytes(head + rows.astype(rows.dtype.newbyteorder("<")).tobytes("C"))


def hdf5(path: Path, rows: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("train", data=rows)


def hdf5_packed(path: Path, rows: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        chunks = (min(3, len(rows)), rows.shape[1])
        file.create_dataset("train", data=rows, chunks=chunks, compression="gzip")


def arrow_table(rows: np.ndarray, kind: str = "list", **columns: Any) -> pa.Table:
    rows = np.ascontiguousarray(rows.astype(rows.dtype.newbyteorder("=")))
    n, dim = rows.shape
    values = pa.array(rows.reshape(-1))
    if kind == "fixed":
        vectors = pa.FixedSizeListArray.from_arrays(values, dim)
    else:
        offsets = np.arange(n + 1) * dim
        if kind == "list":
            vectors = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        else:
            vectors = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    return pa.table({"vector": vectors, **columns})


def parquet(kind: str) -> Callable[[Path, np.ndarray], None]:
    return lambda path, rows: pq.write_table(arrow_table(rows, kind), path, row_group_size=5)


def feather(kind: str) -> Callable[[Path, np.ndarray], None]:
    return lambda path, rows: pyarrow.feather.write_feather(arrow_table(rows, kind), str(path), chunksize=4)


def arrow_stream(path: Path, rows: np.ndarray) -> None:
    table = arrow_table(rows)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


NUMBERS = ("f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")

# name -> (suffix, writer, dtypes that the format can hold)
WRITERS: dict[str, tuple[str, Callable[[Path, np.ndarray], None], tuple[str, ...]]] = {
    "npy": (".npy", npy, NUMBERS),
    "npz": (".npz", npz, NUMBERS),
    "npz compressed": (".npz", npz_packed, NUMBERS),
    "fvecs": (".fvecs", vecs, ("f4",)),
    "bvecs": (".bvecs", vecs, ("u1",)),
    "ivecs": (".ivecs", vecs, ("i4",)),
    "fbin": (".fbin", bins, ("f4",)),
    "u8bin": (".u8bin", bins, ("u1",)),
    "i8bin": (".i8bin", bins, ("i1",)),
    "HDF5": (".hdf5", hdf5, NUMBERS),
    "HDF5 chunked": (".h5", hdf5_packed, NUMBERS),
    "Parquet list": (".parquet", parquet("list"), NUMBERS),
    "Parquet large list": (".parquet", parquet("large"), NUMBERS),
    "Parquet fixed-size list": (".pq", parquet("fixed"), NUMBERS),
    "Feather list": (".feather", feather("list"), NUMBERS),
    "Feather large list": (".arrow", feather("large"), NUMBERS),
    "Feather fixed-size list": (".ipc", feather("fixed"), NUMBERS),
    "Arrow stream": (".arrow", arrow_stream, NUMBERS),
}
