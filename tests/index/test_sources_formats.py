"""Every format gives back what was written, in any dtype, byte order and memory order, and refuses what was cut."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_writers import NUMBERS, WRITERS

from index.errors import SourceError
from index.sources import VectorSource, find_bad_rows, open_source

STORED = {"f2": np.float16, "f4": np.float32, "f8": np.float32, "i1": np.int8, "u1": np.uint8}


def all_rows(source: VectorSource, max_rows: int | None = None, start: int = 0) -> np.ndarray:
    blocks = list(source.blocks(max_rows, start=start))
    for block in blocks:
        assert block.vectors.flags.c_contiguous
        assert block.vectors.flags.writeable
        assert block.vectors.dtype == source.dtype
        assert block.vectors.dtype.isnative
        assert find_bad_rows(block) == []
        assert max_rows is None or len(block) <= max_rows
    starts = [block.start for block in blocks]
    assert starts == [start + sum(map(len, blocks[:i])) for i in range(len(blocks))]
    return np.concatenate([block.vectors for block in blocks])


def numbers(seed: int, n: int, dim: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype[0] == "f":
        return rng.standard_normal((n, dim)).astype(dtype)
    info = np.iinfo(dtype)
    low, high = max(info.min, -(1 << 24)), min(info.max, 1 << 24)
    return rng.integers(low, high, (n, dim), endpoint=True).astype(dtype)


def laid_out(rows: np.ndarray, layout: str) -> np.ndarray:
    """The same rows in another memory layout."""
    if layout == "C":
        return rows
    if layout == "F":
        return np.asfortranarray(rows)
    if layout == "every second column":
        wide = np.zeros((rows.shape[0], rows.shape[1] * 2), rows.dtype)
        wide[:, ::2] = rows
        return wide[:, ::2]
    return np.ascontiguousarray(rows[::-1, ::-1])[::-1, ::-1]


LAYOUTS = ("C", "F", "every second column", "reversed")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_round_trip(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(WRITERS)))
    suffix, write, dtypes = WRITERS[name]
    dtype = data.draw(st.sampled_from(dtypes))
    order = data.draw(st.sampled_from("<>"))
    layout = data.draw(st.sampled_from(LAYOUTS))
    n, dim = data.draw(st.integers(1, 23)), data.draw(st.integers(1, 9))
    rows = numbers(data.draw(st.integers(0, 99)), n, dim, dtype)
    max_rows = data.draw(st.none() | st.integers(1, n + 1))
    start = data.draw(st.integers(0, n - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"rows{suffix}")
        write(path, laid_out(rows.astype(order + dtype), layout))
        source = open_source(path)
        assert (source.n, source.dim) == (n, dim)
        assert source.dtype == STORED.get(dtype, np.float32)
        assert source.given_dtype == np.dtype(dtype)
        assert (source.conversion is None) == (source.dtype == source.given_dtype)
        expected = rows.astype(source.dtype)
        assert np.array_equal(all_rows(source, max_rows), expected)
        assert np.array_equal(all_rows(source, max_rows, start), expected[start:])
        assert np.array_equal(all_rows(source), expected), "a second pass"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(NUMBERS),
    order=st.sampled_from("<>"),
    layout=st.sampled_from(LAYOUTS),
    max_rows=st.none() | st.integers(1, 9),
)
def test_arrays(dtype: str, order: str, layout: str, max_rows: int | None) -> None:
    rows = numbers(3, 8, 5, dtype)
    given_array = laid_out(rows.astype(order + dtype), layout)
    before = given_array.copy()
    source = open_source(given_array)
    assert np.array_equal(all_rows(source, max_rows), rows.astype(source.dtype))
    for block in source.blocks():
        block.vectors[:] = 0
    assert np.array_equal(given_array, before), "a block shares nothing with the caller's array"


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_map(tmp_path: Path, order: str) -> None:
    rows = numbers(1, 30, 4, "f4")
    np.save(tmp_path / "rows.npy", np.asarray(rows, order=order))  # type: ignore[call-overload]
    source = open_source(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert np.array_equal(all_rows(source, 7), rows)
    assert next(source.blocks()).file.endswith("rows.npy")


def test_npz_compressed_fortran(tmp_path: Path) -> None:
    rows = np.asfortranarray(numbers(1, 30, 4, "f4"))
    np.savez_compressed(tmp_path / "rows.npz", rows)
    assert np.array_equal(all_rows(open_source(tmp_path / "rows.npz"), 7), rows)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path: Path, version: tuple[int, int]) -> None:
    rows = numbers(1, 5, 4, "f4")
    with (tmp_path / "rows.npy").open("wb") as file:
        np.lib.format.write_array(file, rows, version=version)
    assert np.array_equal(all_rows(open_source(tmp_path / "rows.npy")), rows)


def cut_points(size: int) -> list[int]:
    """Nothing, inside the magic bytes, inside a header, in the middle, near the end, one byte short."""
    points = {0, 1, 3, 4, 5, 7, 8, 9, 11, 12, 60, 127, 128, 129, size // 3, size // 2, size - 101, size - 100}
    return sorted(at for at in points | set(range(size - 12, size)) if 0 <= at < size)


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_s05_cut_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    suffix, write, dtypes = WRITERS[name]
    whole = tmp_path / f"whole{suffix}"
    write(whole, numbers(5, 41, 13, dtypes[0] if len(dtypes) == 1 else "f4"))
    data = whole.read_bytes()
    records = suffix.endswith("vecs")
    for at in cut_points(len(data)):
        cut = tmp_path / f"cut{suffix}"
        cut.write_bytes(data[:at])
        # Records have no count: a cut between two of them is a shorter file (0 bytes: an empty one).
        with pytest.raises(SourceError, match=r"cut|no row") as caught:
            list(open_source(cut).blocks())
        assert str(cut) in str(caught.value)
        if not records and at:
            assert "no row" not in str(caught.value), at


@pytest.mark.parametrize("name", ["npy", "fvecs", "bvecs", "ivecs", "fbin", "u8bin", "i8bin"])
def test_s05_longer_files_are_refused(tmp_path: Path, name: str) -> None:
    suffix, write, dtypes = WRITERS[name]
    path = tmp_path / f"rows{suffix}"
    write(path, numbers(5, 41, 13, dtypes[0]))
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\0" * 3)
    with pytest.raises(SourceError, match=str(size + 3)) as caught:
        open_source(path)
    assert str(size) in str(caught.value)


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_damaged_bytes_never_crash(tmp_path: Path, name: str) -> None:
    """One bit changed near the beginning or the end: rows or a SourceError, never another exception."""
    suffix, write, dtypes = WRITERS[name]
    path = tmp_path / f"rows{suffix}"
    write(path, numbers(5, 7, 3, dtypes[0] if len(dtypes) == 1 else "f4"))
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    near = sorted({*range(min(len(data), 400)), *range(max(0, len(data) - 400), len(data))})
    for at in rng.choice(near, min(len(near), 60), replace=False).tolist():
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with contextlib.suppress(SourceError):
            list(open_source(path).blocks())
