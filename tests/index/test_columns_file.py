"""payload/columns.bin: the same columns as those that grew, in little memory; damage is found; older folders open."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
import xxhash

from index import BuildOptions, build, open_index
from index.check import check_folder
from index.columns import NO_TIME, ColumnBuilder, ColumnsFile, ColumnsWriter, Kind, parse_time
from index.columns.column import hash_of
from index.errors import CorruptIndexError, CorruptReason, IndexClosedError, UnsupportedFormatError

WORDS = ["", "a", "red fox", "é", "2023-01-01", "2023-01-01T00:00:00+01:00", "z" * 300]


def random_rows(seed, n):
    random = Random(seed)
    pick = random.choice
    values = [None, True, 3, 300, -70_000, 2**40, 1.5, *WORDS, [], [1, "a"], ["é", 2.5, None], {"x": 1}, [{}]]
    return [
        None if random.random() < 0.1 else {key: pick(values) for key in "abcd"[: pick([1, 2, 4])]} for _ in range(n)
    ]


def write(folder, rows, **bounds):
    (folder / "payload").mkdir(exist_ok=True)
    with ColumnsWriter(folder, **bounds) as writer:
        writer.append(None if row is None else json.dumps(row).encode() for row in rows)
    return folder / "payload" / "columns.bin"


def texts_of(column, cells):
    """Strings by cell, whatever codes they have."""
    listed = list(column.strings.texts())
    return [listed[code] if is_text else None for code, is_text in zip(cells.values, cells.of(Kind.STRING))]


@pytest.mark.parametrize("cell_bytes", [10**9, 0])
def test_the_file_says_what_growing_columns_say(tmp_path, cell_bytes):
    rows = random_rows(0, 3000)
    builder = ColumnBuilder()
    builder.append(rows)
    view = builder.view()
    write(tmp_path, rows, cell_bytes=cell_bytes)
    file = ColumnsFile.open(tmp_path)
    assert file.n == view.n and file.paths() == view.paths()
    for path in view.paths():
        mine, other = file.column(path), view.column(path)
        for kind in Kind:
            if kind is not Kind.MISSING:
                assert (mine.of(kind) == other.of(kind)).all(), (path, kind)
        there = ~mine.cells.of(Kind.MISSING)
        numbers = other.cells.of(Kind.INT) | other.cells.of(Kind.FLOAT) | other.cells.of(Kind.LIST)
        assert (mine.cells.values[there][numbers] == other.cells.values[numbers]).all()
        assert np.array(texts_of(mine, mine.cells))[there].tolist() == texts_of(other, other.cells)
        assert (mine.element_rows == other.element_rows).all()
        assert texts_of(mine, mine.elements) == texts_of(other, other.elements)
        assert list(mine.strings.texts()) == sorted(other.strings.texts())
        assert [mine.strings.text(code) for code in range(len(mine.strings))] == sorted(other.strings.texts())
        assert {mine.strings.code_of(text) for text in ["no", *mine.strings.texts()]} == {-1, *range(len(mine.strings))}
        found = [None if time == NO_TIME else time for time in mine.strings.times().tolist()]
        assert found == [parse_time(text) for text in mine.strings.texts()]


def test_many_strings_are_hashed_and_memory_stays(tmp_path):
    rows = [
        {"id": f"unique-{at:05}", "kind": WORDS[at % 4], "day": f"2023-01-01T00:{at // 60 % 60:02}:{at % 60:02}"}
        for at in range(3000)
    ]
    write(tmp_path, rows, text_bytes=300_000)
    file = ColumnsFile.open(tmp_path)
    unique, kind, day = (file.column((key,)) for key in ("id", "kind", "day"))
    assert kind.lists_strings and not unique.lists_strings and not day.lists_strings
    assert unique.cells.values.tolist() == [hash_of(row["id"]) for row in rows]
    assert unique.strings.code_of("unique-00017") == unique.cells.values[17] and len(unique.times.rows) == 0
    assert day.times.rows.tolist() == list(range(3000))
    assert day.times.values.tolist() == [parse_time(row["day"]) for row in rows]


def test_values_are_as_narrow_as_they_can_be(tmp_path):
    write(tmp_path, [{"a": at % 100, "b": at * 100, "c": at * 2**40, "d": str(at % 5), "e": 0.5} for at in range(300)])
    file = ColumnsFile.open(tmp_path)
    assert [file.column((key,)).cells.values.dtype.itemsize for key in "abcde"] == [1, 2, 8, 1, 8]
    assert all(file.column((key,)).cells.tags is None and file.column((key,)).rows is None for key in "abcde")


def everything(folder):
    file = ColumnsFile.open(folder)
    return [file.column(path) for path in file.paths()] + [file.uncolumned(("none",))]


def test_damage_names_file_and_offset(tmp_path):
    rows = [*random_rows(1, 60), {"a": {"a": {"a": {"a": {"a": 1}}}}}]
    path = write(tmp_path, rows)
    raw = path.read_bytes()
    for at in [*range(64), *range(64, len(raw), 19), len(raw) - 1]:
        if 12 <= at < 24 or 48 <= at < 64:  # rows and nothing: of the header the manifest has a digest
            continue
        damaged = bytearray(raw)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises((CorruptIndexError, UnsupportedFormatError), match=r"columns\.bin") as caught:
            everything(tmp_path)
        if isinstance(caught.value, UnsupportedFormatError):
            assert 8 <= at < 12
        else:
            # Of what the header says wrongly the directory is named.
            assert caught.value.path == path and (at < 64 or caught.value.offset_bytes <= at)


def test_a_file_that_is_cut_off_missing_or_newer_is_refused(tmp_path):
    path = write(tmp_path, random_rows(2, 20))
    raw = path.read_bytes()
    for size in (0, 10, 63, 64, len(raw) - 1):
        path.write_bytes(raw[:size])
        with pytest.raises(CorruptIndexError) as caught:
            ColumnsFile.open(tmp_path)
        assert caught.value.reason is CorruptReason.SIZE
    path.write_bytes(raw[:8] + b"\x02" + raw[9:])
    with pytest.raises(UnsupportedFormatError, match=r"columns\.bin has format version 2"):
        ColumnsFile.open(tmp_path)
    path.unlink()
    with pytest.raises(CorruptIndexError, match="missing"):
        ColumnsFile.open(tmp_path)
    path.mkdir()
    with pytest.raises(CorruptIndexError, match="a folder"):
        ColumnsFile.open(tmp_path)


def test_an_unfinished_file_is_refused_and_leaves_nothing_else(tmp_path):
    (tmp_path / "payload").mkdir()
    with pytest.raises(TypeError), ColumnsWriter(tmp_path) as writer:
        writer.append([b"{}", 1])
    assert [path.name for path in (tmp_path / "payload").iterdir()] == ["columns.bin"]
    with pytest.raises(UnsupportedFormatError, match="format version 0"):
        ColumnsFile.open(tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    place = tmp_path_factory.mktemp("built") / "index"
    vectors = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    payload = [{"n": at, "w": WORDS[at % 3]} if at % 7 else None for at in range(200)]
    build(vectors, place, payload=payload, options=BuildOptions(preview="flat"))
    return place


def numbers(index):
    """The column n by id."""
    column = index.columns.column(("n",))
    rows = np.arange(200) if column.rows is None else column.rows
    there = column.cells.of(Kind.INT)
    _, by_id = index.ids.in_order(None, 200)
    found = dict(zip(rows[there].tolist(), column.cells.values[there].tolist()))
    return [found.get(row) for row in by_id.tolist()]


EXPECTED = [at if at % 7 else None for at in range(200)]


def test_a_build_writes_columns_and_check_reads_them(built, tmp_path):
    with open_index(built) as index:
        assert isinstance(index.columns, ColumnsFile) and numbers(index) == EXPECTED
    assert check_folder(built) == []
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    path = copy / "payload" / "columns.bin"
    raw = bytearray(path.read_bytes())
    raw[70] ^= 1
    path.write_bytes(raw)
    assert [problem.path for problem in check_folder(copy)] == [path]


def test_an_index_from_before_there_were_columns_has_them_made(built, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    (copy / "payload" / "columns.bin").unlink()
    manifest = json.loads((copy / "manifest.json").read_text())["manifest"]
    del manifest["files"]["payload/columns.bin"]
    rewrite(copy, manifest)
    with open_index(copy) as index:
        assert not isinstance(index.columns, ColumnsFile) and numbers(index) == EXPECTED
        assert index.columns is index.columns


def test_an_index_without_payloads_has_no_columns(tmp_path):
    build(np.eye(8, dtype=np.float32), tmp_path / "index", options=BuildOptions(preview="flat"))
    with open_index(tmp_path / "index") as index:
        assert index.columns is None
    with pytest.raises(IndexClosedError):
        _ = index.columns


def rewrite(folder, manifest):
    body = json.dumps(manifest).encode()
    digest = xxhash.xxh3_64_hexdigest(body)
    (folder / "manifest.json").write_bytes(
        b'{"format_version":1,"xxh3":"%s","manifest":%s}\n' % (digest.encode(), body)
    )


def test_an_open_file_of_columns_holds_no_descriptor(tmp_path):
    write(tmp_path, random_rows(3, 50))
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    files = [ColumnsFile.open(tmp_path) for _ in range(5)]
    assert len(list(descriptors.iterdir())) == before and all(file.n == 50 for file in files)
