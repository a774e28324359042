"""Where vectors and ids lie, against a plain Python model; what the writer puts there."""

from __future__ import annotations

import numpy as np
import pytest

from index.errors import DiskFullError, ShapeMismatchError
from index.fullview import PAGE_BYTES, PageLayout, VectorFileWriter
from index.fullview import writer as writer_module
from index.fullview.layout import DtypeCode

DIMS = [1, 3, 1023, 1024, 1025, 1536, 4096]
DTYPES = ["float32", "float16", "uint8", "int8"]


def sample_vectors(n: int, dim: int, dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype in ("uint8", "int8"):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, (n, dim), dtype=dtype)
    return rng.standard_normal((n, dim)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [*DIMS, 384, 512, 65_536])
def test_places_agree_with_a_walk_through_the_pages(dim, dtype):
    layout = PageLayout(50, dim, np.dtype(dtype))
    size = dim * np.dtype(dtype).itemsize
    assert layout.vector_bytes == size
    page, offset, first_pages, offsets = 1, 0, [], []
    for _ in range(50):
        if size > PAGE_BYTES:
            first_pages.append(page)
            offsets.append(0)
            page += -(-size // PAGE_BYTES)
            continue
        if offset + size > PAGE_BYTES:
            page, offset = page + 1, 0
        first_pages.append(page)
        offsets.append(offset)
        offset += size
    rows = np.arange(50)
    assert layout.first_page(rows).tolist() == first_pages
    assert layout.vector_offset(rows).tolist() == offsets
    assert layout.file_pages == (page if size > PAGE_BYTES else page + 1)
    assert layout.file_bytes == layout.file_pages * PAGE_BYTES
    if layout.ids_in_pages:
        id_offsets = layout.id_offset(rows)
        group = layout.pages_per_vector * PAGE_BYTES
        assert (id_offsets % 8 == 0).all()
        assert (id_offsets >= layout.vectors_per_page * size).all()
        assert (id_offsets + 8 <= group).all()
        assert len(set(zip(first_pages, id_offsets.tolist(), strict=True))) == 50
    else:
        with pytest.raises(AssertionError):
            layout.id_offset(rows)


@pytest.mark.parametrize(
    "dim, dtype, per_page, pages, in_pages",
    [
        (1, "uint8", 4096, 1, False),
        (128, "uint8", 32, 1, False),
        (384, "float32", 2, 1, True),
        (1022, "float32", 1, 1, True),
        (1023, "float32", 1, 1, False),  # 4 bytes are left
        (1024, "float32", 1, 1, False),
        (1025, "float32", 1, 2, True),
        (1536, "float32", 1, 2, True),
        (1536, "float16", 1, 1, True),
        (4096, "float32", 1, 4, False),
        (65_536, "float32", 1, 64, False),
    ],
)
def test_ids_go_where_no_vector_is_lost(dim, dtype, per_page, pages, in_pages):
    layout = PageLayout(10, dim, np.dtype(dtype))
    assert (layout.vectors_per_page, layout.pages_per_vector, layout.ids_in_pages) == (per_page, pages, in_pages)


def test_numbers_of_types_never_change():
    assert {code.name: code.value for code in DtypeCode} == {"FLOAT32": 1, "FLOAT16": 2, "INT8": 3, "UINT8": 4}


@pytest.mark.parametrize(
    "n, dim, dtype", [(-1, 3, "float32"), (1, 0, "float32"), (1, 65_537, "uint8"), (1, 3, "float64")]
)
def test_what_cannot_be_laid_out_is_refused(n, dim, dtype):
    with pytest.raises(ShapeMismatchError):
        PageLayout(n, dim, np.dtype(dtype))


def test_no_rows_is_a_header(tmp_path):
    layout = PageLayout(0, 5, np.dtype("float32"))
    VectorFileWriter(tmp_path / "vectors.bin", layout).close()
    assert (tmp_path / "vectors.bin").stat().st_size == PAGE_BYTES == layout.file_bytes


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_do_not_show_in_the_file(tmp_path, block):
    vectors, ids = sample_vectors(1000, 300, "float32"), np.arange(1000, dtype=np.uint64) * 3
    layout = PageLayout(1000, 300, vectors.dtype)
    for name, size in [("whole", 1000), ("blocks", block)]:
        (tmp_path / name).mkdir()
        with VectorFileWriter(tmp_path / name / "vectors.bin", layout) as writer:
            for start in range(0, 1000, size):
                # Every other layout in memory must do as well.
                writer.append(np.asfortranarray(vectors[start : start + size]), ids[start : start + size])
    for file in ("vectors.bin", "vectors.sum"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "blocks" / file).read_bytes()


def test_the_writer_refuses_what_does_not_fit(tmp_path):
    layout = PageLayout(3, 4, np.dtype("float32"))
    writer = VectorFileWriter(tmp_path / "vectors.bin", layout)
    good, ids = np.zeros((2, 4), np.float32), np.zeros(2, np.uint64)
    for vectors, codes in [
        (good[:, :3], ids),
        (good.astype(np.float64), ids),
        (good, ids[:1]),
        (good, ids.astype(np.int64)),
        (np.zeros((4, 4), np.float32), np.zeros(4, np.uint64)),
    ]:
        with pytest.raises(ShapeMismatchError):
            writer.append(vectors, codes)
    with pytest.raises(AssertionError, match="NaN"):
        writer.append(np.full((2, 4), np.nan, np.float32), ids)
    writer.append(good, ids)
    with pytest.raises(ShapeMismatchError, match=r"2 rows were appended, .* is laid out for 3"):
        writer.close()
    # Without close() there is no header.
    assert (tmp_path / "vectors.bin").read_bytes()[:64] == bytes(64)


def test_a_full_device_says_how_much_is_needed(tmp_path, monkeypatch):
    def refuse(fd, data):
        raise OSError(28, "No space left on device")

    layout = PageLayout(10, 1024, np.dtype("float32"))
    writer = VectorFileWriter(tmp_path / "vectors.bin", layout)
    writer.append(np.zeros((10, 1024), np.float32), np.arange(10, dtype=np.uint64))
    monkeypatch.setattr(writer_module.os, "write", refuse)
    with pytest.raises(DiskFullError) as caught:
        writer.close()
    assert caught.value.errno == 28
    assert str(tmp_path / "vectors.bin") in str(caught.value)
