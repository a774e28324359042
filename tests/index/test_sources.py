"""Paths, folders and patterns; agreement between shards; bad rows; refusals that name what came and what was needed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_writers import WRITERS, arrow_table

from index.errors import BadRowsError, OptionsError, ShapeMismatchError, SourceError
from index.sources import BadRow, VectorSource, find_bad_rows, open_source

RNG = np.random.default_rng(7)


def rows(n: int, dim: int = 8, dtype: str = "f4") -> np.ndarray:
    return RNG.integers(-100, 100, (n, dim)).astype(dtype)


def read(source: VectorSource) -> np.ndarray:
    return np.concatenate([block.vectors for block in source.blocks()])


def bad(source: VectorSource, max_rows: int | None = None) -> list[tuple[int, int, str]]:
    """(row of the source, column, reason) of all bad rows."""
    return [
        (block.start + row, column, reason)
        for block in source.blocks(max_rows)
        for row, column, reason in find_bad_rows(block)
    ]


def refusal(source: Any, **names: Any) -> str:
    with pytest.raises(SourceError) as caught:
        list(open_source(source, **names).blocks())
    return str(caught.value)


# --- bad rows ----------------------------------------------------------------


def test_s01_nan_and_infinity_are_named(tmp_path: Path) -> None:
    vectors = rows(1000)
    vectors[417, 3] = np.nan
    vectors[417, 6] = np.nan
    vectors[900, 0] = np.inf
    vectors[901, 7] = -np.inf
    np.save(tmp_path / "rows.npy", vectors)
    expected = [(417, 3, "NaN"), (900, 0, "infinity"), (901, 7, "-infinity")]
    for max_rows in (None, 1, 64, 418):
        assert bad(open_source(tmp_path / "rows.npy"), max_rows) == expected
    error = BadRowsError(rows=[("rows.npy", *expected[0]), ("rows.npy", *expected[1])], count=2)
    for words in ("rows.npy", "row 417", "column 3", "2 bad rows"):
        assert words in str(error)


@pytest.mark.parametrize("dtype", ["f2", ">f2", "f4", "f8", ">f8"])
def test_s01_every_float_width(dtype: str) -> None:
    vectors = rows(50, 5).astype(dtype)
    assert bad(open_source(vectors)) == []
    vectors[[3, 49], [4, 0]] = [np.nan, -np.inf]
    assert bad(open_source(vectors)) == [(3, 4, "NaN"), (49, 0, "-infinity")]


def test_s03_one_data_in_many_dtypes(tmp_path: Path) -> None:
    given = np.abs(rows(500, 16))
    stored = {"f8": "float32", "f4": "float32", "f2": "float16", "i1": "int8", "u1": "uint8"}
    for dtype, name in stored.items():
        np.save(tmp_path / "rows.npy", given.astype(dtype))
        source = open_source(tmp_path / "rows.npy")
        assert source.dtype.name == name
        assert np.array_equal(read(source), given)
        assert source.conversion == ("float64 stored as float32" if dtype == "f8" else None)


def test_s03_beyond_float32_is_not_called_infinity() -> None:
    vectors = rows(20, 4, "f8")
    vectors[5, 2] = 1e300
    vectors[5, 3] = np.nan
    vectors[6, 1] = np.nan
    vectors[6, 2] = -1e300
    vectors[7, 0] = np.inf
    vectors[8, 0] = 1e-300  # rounds to 0, as any tiny value does
    assert bad(open_source(vectors)) == [
        (5, 2, "1e+300 is beyond the float32 range"),
        (6, 1, "NaN"),
        (7, 0, "infinity"),
    ]


@pytest.mark.parametrize(
    "array, word",
    [
        (np.array([["a", "b"]]), "string"),
        (np.array([[b"a", b"b"]]), "bytes"),
        (np.array([[1j, 2j]]), "complex128"),
        (np.array([[True, False]]), "bool"),
        (np.array([[{}, 1]], dtype=object), "object"),
        (np.array([["2024-01-01"]], "M8[D]"), "datetime64"),
        (np.zeros((2, 2), [("a", "f4")]), "structured"),
    ],
)
def test_s03_dtypes_that_are_no_numbers(tmp_path: Path, array: np.ndarray, word: str) -> None:
    np.save(tmp_path / "rows.npy", array)
    for source in (tmp_path / "rows.npy", array):
        said = refusal(source)
        assert word in said
        assert "float32" in said
    np.savez(tmp_path / "rows.npz", array)
    assert word in refusal(tmp_path / "rows.npz")


def test_wide_integers_are_checked_to_be_exact() -> None:
    exact = [0, 1 << 24, -(1 << 24), 1 << 40, -(1 << 63), (1 << 63) - (1 << 39)]
    source = open_source(np.array([exact], np.int64))
    assert source.conversion == "int64 stored as float32 (each value was checked to be exact)"
    assert bad(source) == []
    assert read(source).astype(object).tolist() == [exact]
    for value in [(1 << 24) + 1, -(1 << 24) - 1, (1 << 63) - 1, (1 << 53) + 1]:
        assert bad(open_source(np.array([[0, 0], [1, value]], np.int64))) == [
            (1, 1, f"{value} is an integer that float32 does not hold exactly")
        ]
    assert bad(open_source(np.array([[1 << 63]], np.uint64))) == []
    assert len(bad(open_source(np.array([[(1 << 64) - 1], [(1 << 31) + 1]], np.uint64)))) == 2
    assert len(bad(open_source(np.array([[(1 << 31) - 1]], np.int32)))) == 1
    assert open_source(np.array([[300]], np.int16)).conversion == "int16 stored as float32"


# --- layouts -----------------------------------------------------------------


def test_s04_layouts_give_the_same_rows(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    wide, turned = np.zeros((6, 8), np.float32), x[::-1].copy()
    wide[:, ::2] = x
    forms = {
        "C": x,
        "F": np.asfortranarray(x),
        "strided": wide[:, ::2],
        "reversed": turned[::-1],
        "big": x.astype(">f4"),
    }
    for name, form in forms.items():
        assert np.array_equal(read(open_source(form)), x), name
        np.save(tmp_path / "x.npy", form)
        assert np.array_equal(read(open_source(tmp_path / "x.npy")), x), name
    int8 = np.asfortranarray(np.arange(24, dtype=np.int8).reshape(6, 4))
    assert np.array_equal(read(open_source(int8)), int8)


def test_s04_fortran_file_is_read_in_small_blocks(tmp_path: Path) -> None:
    x = rows(100, 3)
    np.save(tmp_path / "x.npy", np.asfortranarray(x))
    blocks = list(open_source(tmp_path / "x.npy").blocks(7, start=11))
    assert {len(block) for block in blocks[:-1]} == {7}
    assert np.array_equal(np.concatenate([block.vectors for block in blocks]), x[11:])


# --- headers and sizes -------------------------------------------------------


def test_s05a_fvecs_called_fbin(tmp_path: Path) -> None:
    vectors = rows(10, 128)
    vectors[0, 0] = 0.0
    path = tmp_path / "base.fbin"
    WRITERS["fvecs"][1](path, vectors)
    assert path.stat().st_size == 5160
    said = refusal(path)
    for words in ("n=128", "d=0", "looks like fvecs", str(path)):
        assert words in said


def test_s05b_short_fbin(tmp_path: Path) -> None:
    path = tmp_path / "base.fbin"
    path.write_bytes(struct.pack("<II", 1000, 32) + bytes(127_944 - 8))
    said = refusal(path)
    for words in ("128008", "127944", "n=1000 d=32"):
        assert words in said


@pytest.mark.parametrize("name", ["npy", "HDF5", "Parquet list", "Feather list", "npz"])
def test_s05c_cut_by_100_bytes(tmp_path: Path, name: str) -> None:
    suffix, write, _ = WRITERS[name]
    path = tmp_path / f"base{suffix}"
    write(path, rows(200))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"base\."):
        open_source(path)


@pytest.mark.parametrize("said, real", [("fvecs", "fbin"), ("npy", "Parquet list"), ("HDF5", "npy"), ("npz", "HDF5")])
def test_s05_what_a_file_really_is(tmp_path: Path, said: str, real: str) -> None:
    path = tmp_path / f"base{WRITERS[said][0]}"
    WRITERS[real][1](path, rows(37, 5))
    assert f"looks like {real.split()[0]}" in refusal(path)


@pytest.mark.parametrize("real", ["npy", "Parquet list", "fvecs", "HDF5"])
def test_s05_unknown_suffix(tmp_path: Path, real: str) -> None:
    path = tmp_path / "base.bin"
    WRITERS[real][1](path, rows(37, 5))
    said = refusal(path)
    assert "'.bin'" in said
    assert "*.fvecs" in said
    assert f"looks like {real.split()[0]}" in said.replace("It looks", "looks")


def test_s05_record_of_another_dim(tmp_path: Path) -> None:
    records = [struct.pack("<i4f", 4, 1, 2, 3, 4) for _ in range(9)]
    for row in (4, 8):
        broken = list(records)
        broken[row] = struct.pack("<i4f", 5, 1, 2, 3, 4)
        (tmp_path / "x.fvecs").write_bytes(b"".join(broken))
        said = refusal(tmp_path / "x.fvecs")
        assert f"row {row} says dim 5" in said


def test_file_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, rows(100))
    blocks = open_source(path).blocks(10)
    next(blocks)
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(SourceError, match="ended early"):
        list(blocks)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (5, 0), ()])
def test_shapes_that_are_no_rows(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "x.npy", np.zeros(shape, np.float32))
    said = refusal(tmp_path / "x.npy")
    assert str(shape) in said or "0 dimensions" in said
    with pytest.raises((ShapeMismatchError, SourceError)):
        open_source(np.zeros(shape, np.float32))


def test_dimension_limit() -> None:
    assert open_source(np.zeros((1, 65_536), np.int8)).dim == 65_536
    assert "65537" in refusal(np.zeros((1, 65_537), np.int8))


# --- folders -----------------------------------------------------------------


def test_s06_empty_shards_are_skipped_and_listed(tmp_path: Path) -> None:
    a, d = rows(100), rows(50)
    for name, array in {"a": a, "b": np.zeros(0), "c": np.zeros((0, 8)), "d": d}.items():
        np.save(tmp_path / f"{name}.npy", array)
    source = open_source(tmp_path)
    assert source.n == 150
    assert [Path(path).name for path in source.empty_shards] == ["b.npy", "c.npy"]
    assert [(Path(path).name, n) for path, n in source.shards] == [("a.npy", 100), ("d.npy", 50)]
    assert np.array_equal(read(source), np.concatenate([a, d]))
    last = list(source.blocks())[-1]
    assert (last.start, last.file_start, Path(last.file).name) == (100, 0, "d.npy")


@pytest.mark.parametrize("name", ["Parquet list", "HDF5", "fvecs", "fbin", "Feather list", "Arrow stream"])
def test_s06_empty_shard_of_other_formats(tmp_path: Path, name: str) -> None:
    suffix, write, _ = WRITERS[name]
    write(tmp_path / f"a{suffix}", rows(3))
    empty = tmp_path / f"b{suffix}"
    if name == "HDF5":
        with h5py.File(empty, "w") as file:
            file.create_dataset("train", shape=(0, 8), dtype="f4")
    else:
        write(empty, rows(0))
    source = open_source(tmp_path)
    assert (source.n, source.empty_shards) == (3, [str(empty)])
    assert str(empty) in refusal(empty)


def test_s06_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    said = refusal(tmp_path)
    for words in (str(tmp_path), "*.npy", "*.parquet"):
        assert words in said
    np.save(tmp_path / "a.npy", np.zeros((0, 8)))
    np.save(tmp_path / "b.npy", np.zeros(0))
    said = refusal(tmp_path)
    for words in (str(tmp_path), "*.npy", "a.npy", "b.npy"):
        assert words in said
    assert "*.fvecs" in refusal(str(tmp_path / "*.xyz"))
    assert "no such file" in refusal(tmp_path / "missing.npy")


def test_s07_other_dim_is_refused_before_the_first_row(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", rows(100, 8))
    np.save(tmp_path / "b.npy", rows(100, 16))
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path)
    for words in ("a.npy", "b.npy", "dim 16", "dim 8"):
        assert words in str(caught.value)


def test_s07_dtypes_of_shards(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", rows(4, 8, "f2"))
    np.save(tmp_path / "b.npy", rows(4, 8, ">f2"))
    assert open_source(tmp_path).dtype == np.float16
    np.save(tmp_path / "b.npy", rows(4, 8, ">f8"))
    source = open_source(tmp_path)
    assert (source.dtype, source.given_dtype) == (np.float32, np.float64)
    assert source.conversion == "float16 and float64 stored as float32"
    np.save(tmp_path / "b.npy", rows(4, 8, "i1"))
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path)
    for words in ("a.npy", "float16", "b.npy", "int8"):
        assert words in str(caught.value)


def test_natural_order_hidden_files_and_sidecars(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        np.save(tmp_path / f"shard-{number}.npy", np.full((1, 2), number, np.float32))
    np.save(tmp_path / ".hidden.npy", rows(1, 3))
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "sub.npy").mkdir()
    for source in (tmp_path, str(tmp_path / "*"), str(tmp_path / "shard-*.npy"), str(tmp_path / "**" / "*.npy")):
        assert read(open_source(source))[:, 0].tolist() == [1, 2, 10]
    (tmp_path / "odd[1].npy").write_bytes((tmp_path / "shard-1.npy").read_bytes())
    assert open_source(tmp_path / "odd[1].npy").n == 1, "a file that exists is no pattern"


def test_mixed_formats_are_refused(tmp_path: Path) -> None:
    WRITERS["fvecs"][1](tmp_path / "base.fvecs", rows(3))
    np.save(tmp_path / "base.npy", rows(3))
    said = refusal(tmp_path)
    for words in ("npy", "fvecs", "base.fvecs"):
        assert words in said
    assert open_source(str(tmp_path / "*.npy")).n == 3


# --- blocks ------------------------------------------------------------------


def test_blocks_are_bounded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5000, 1000), np.float32))
    source = open_source(tmp_path / "x.npy")
    assert max(block.vectors.nbytes for block in source.blocks()) <= 8_000_000
    assert max(len(block) for block in source.blocks(100_000)) <= 2000
    assert [len(block) for block in source.blocks(1999)] == [1999, 1999, 1002]
    assert list(source.blocks(start=5000)) == []
    for wrong in ({"max_rows": 0}, {"start": -1}):
        with pytest.raises(OptionsError):
            list(source.blocks(**wrong))


def test_start_inside_a_later_shard(tmp_path: Path) -> None:
    parts = [rows(n) for n in (3, 5, 4)]
    for number, part in enumerate(parts):
        np.save(tmp_path / f"{number}.npy", part)
    whole = np.concatenate(parts)
    source = open_source(tmp_path)
    for start in range(13):
        blocks = list(source.blocks(2, start=start))
        assert np.array_equal(np.concatenate([np.empty((0, 8)), *(b.vectors for b in blocks)]), whole[start:])
        for block in blocks:
            within = parts[int(Path(block.file).stem)][block.file_start :]
            assert np.array_equal(block.vectors, within[: len(block)])


def test_what_is_no_source() -> None:
    assert "list" in refusal([[1.0, 2.0]])
    assert "masked" in refusal(np.ma.masked_equal(np.ones((2, 2)), 1))
    assert "no named columns" in refusal(np.ones((2, 2)), ids="id")


def test_formats_without_columns_refuse_names(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows(3))
    said = refusal(tmp_path / "x.npy", ids="id")
    assert "npy" in said
    assert "Parquet" in said


def test_parquet_bad_rows(tmp_path: Path) -> None:
    lists = [[1.0, 2.0], None, [1e300, float("nan")], [None, 3.0], [1.0], [1.0, 2.0, 3.0], [], [4.0, float("inf")]]
    pq.write_table(pa.table({"vector": lists}), tmp_path / "x.parquet", row_group_size=3)
    for max_rows in (None, 1, 2, 3):
        assert bad(open_source(tmp_path / "x.parquet"), max_rows) == [
            (1, 0, "null in place of a vector"),
            (2, 0, "1e+300 is beyond the float32 range"),
            (3, 0, "null"),
            (4, 1, "a list of 1 values, needed 2"),
            (5, 2, "a list of 3 values, needed 2"),
            (6, 0, "a list of 0 values, needed 2"),
            (7, 1, "infinity"),
        ]
    assert isinstance(find_bad_rows(next(open_source(tmp_path / "x.parquet").blocks()))[0], BadRow)


def test_an_odd_first_row_does_not_set_the_dimension(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [None, [], [1.0], [1.0, 2.0], [3.0, 4.0]]}), tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet")
    assert source.dim == 2
    assert [row for row, _, _ in bad(source)] == [0, 1, 2]
    pq.write_table(pa.table({"v": pa.array([None, []], pa.list_(pa.float32()))}), tmp_path / "x.parquet")
    assert "every row is null" in refusal(tmp_path / "x.parquet")


@pytest.mark.parametrize("kind", ["fixed", "large", "list"])
def test_integer_lists_with_nulls(tmp_path: Path, kind: str) -> None:
    dtype = {"fixed": pa.list_(pa.uint8(), 2), "large": pa.large_list(pa.uint8()), "list": pa.list_(pa.uint8())}[kind]
    table = pa.table({"v": pa.array([[1, 2], None, [3, None], [255, 0]], dtype)})
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    source = open_source(tmp_path / "x.arrow")
    assert source.dtype == np.uint8
    assert bad(source) == [(1, 0, "null in place of a vector"), (2, 1, "null")]
    assert bad(source, 1) == bad(source)
    assert read(source)[[0, 3]].tolist() == [[1, 2], [255, 0]]


def test_parquet_row_groups_are_not_held(tmp_path: Path) -> None:
    """A row group of 41 MB, streamed: Arrow's own pool stays far below it."""
    vectors = rows(40_000, 256)
    pq.write_table(arrow_table(vectors), tmp_path / "x.parquet", row_group_size=40_000, compression="none")
    source = open_source(tmp_path / "x.parquet")
    most, row = 0, 0
    for block in source.blocks(2000):
        most = max(most, pa.total_allocated_bytes())
        assert np.array_equal(block.vectors, vectors[row : row + len(block)])
        row += len(block)
    assert row == 40_000
    assert most < 16_000_000
