"""Damage anywhere: a named error when opening or searching, or exactly the right answers. Never a crash, never others."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index import BuildOptions, OpenIndex, SearchOptions, build, open_index
from index.check import check_folder, verify_contents
from index.errors import CorruptIndexError, CorruptReason, ReadFailedError, VectorIndexError
from index.fullview.headers import VECTORS_NAME
from index.manifest import read_manifest

N, DIM = 700, 24
IDS = [f"name-{i:03}" if i % 3 else i for i in range(N)]
KINDS = ["graph", "flat", "ivf"]
LATER = {"vectors.bin", "payload/data.bin", "payload/columns.bin"}  # read and verified in parts
FLIPS = 12


def rows(seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).normal(size=(N, DIM)).astype(np.float32)
    found[100:103] = found[5]  # equal rows: groups.npy is there
    return found


QUERIES = rows(0)[:40] + np.float32(0.1)


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Of each kind two indexes whose files are of the same sizes."""
    place = tmp_path_factory.mktemp("pairs")
    made = {}
    for kind in KINDS:
        if kind == "ivf" and importlib.util.find_spec("faiss") is None:
            continue
        for seed in (0, 1):
            # Payloads of the same lengths: their offsets are the same, too.
            payload = [{"n": f"{seed}-{i:04}"} if i % 5 else None for i in range(N)]
            ids = IDS if seed == 0 else [*IDS[3:], "name-700", "name-701", 702]
            options = BuildOptions(preview=kind)
            build(rows(seed), place / f"{kind}-{seed}", ids=ids, payload=payload, options=options)
        made[kind] = place / f"{kind}-0", place / f"{kind}-1"
    return made


def copy_of(pairs: dict[str, tuple[Path, Path]], kind: str, place: Path) -> tuple[Path, Path, Path]:
    if kind not in pairs:
        pytest.skip("faiss is not installed (extra cpu)")
    shutil.copytree(pairs[kind][0], place)
    return place, *pairs[kind]


def answers(folder: Path) -> list[Any]:
    """All that an index says."""
    with open_index(folder) as index:
        hits = index.search(QUERIES, k=10)
        exact = index.search(QUERIES[:2], k=N, options=SearchOptions(exact=True))
        found, at = index.ids.in_order(None, N)
        return [
            hits.ids.tolist(), hits.scores.tolist(), exact.ids.tolist(), exact.scores.tolist(), found.tolist(),
            index.ids.rows_of(IDS).tolist(), index.payload.get(at), index.vectors(at).tolist(), columns(index),
        ]  # fmt: skip


def columns(index: OpenIndex) -> list[Any]:
    """All that the columns of an index say."""
    found: list[Any] = []
    for path in index.columns.paths():
        column = index.columns.column(path)
        cells = column.cells
        tags = None if cells.tags is None else cells.tags.tolist()
        found += [path, tags, cells.values.tolist(), cells.kinds, list(column.strings.texts()), column.of(5).tolist()]
    return found


def agrees(folder: Path, expected: list[Any], name: str) -> bool:
    """False where the damage is named, as it should be."""
    try:
        found = answers(folder)
    except VectorIndexError as caught:
        error = caught
    else:
        assert found == expected, f"damage of {name} changed an answer"
        return True
    assert name in str(error)
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_s30_flipped_bits_in_any_file_are_named_or_change_nothing(pairs, tmp_path, kind):
    copy, _, _ = copy_of(pairs, kind, tmp_path / "copy")
    expected = answers(copy)
    generator = np.random.default_rng(7)
    for name in files_of(copy):
        raw = (copy / name).read_bytes()
        places = {0, 9, len(raw) - 1, *generator.integers(0, len(raw), FLIPS).tolist()}
        if name.endswith(".npy"):
            places |= {6, 8, *range(10, 80, 5), 127, 128}
        for at in sorted(place for place in places if place < len(raw)):
            damaged = bytearray(raw)
            damaged[at] ^= 1 << int(generator.integers(8))
            (copy / name).write_bytes(damaged)
            same = agrees(copy, expected, name)
            # The last line feed of the manifest, and what is for people, change nothing.
            assert not same or name in {"report.json", "manifest.json"}, f"bit in byte {at} of {name} went unnoticed"
        (copy / name).write_bytes(raw)
    assert answers(copy) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_another_index_are_named(pairs, tmp_path, kind):
    copy, mine, other = copy_of(pairs, kind, tmp_path / "copy")
    expected = answers(copy)
    swaps = [{name} for name in files_of(copy)] + [
        {"vectors.bin", "vectors.sum"}, {"codes.npy", "scalars.npy", "links.npy", "entries.npy"} & set(files_of(copy)),
        set(files_of(copy)) - {"vectors.bin"}, set(files_of(copy)) - {"payload/data.bin"}, LATER, LATER | {"vectors.sum"},
    ]  # fmt: skip
    same_size = 0
    for names in swaps:
        for name in names:
            same_size += (mine / name).stat().st_size == (other / name).stat().st_size
            shutil.copyfile(other / name, copy / name)
        if {"manifest.json"} == names:
            with pytest.raises(CorruptIndexError):
                answers(copy)
        elif names != {"report.json"} and any((mine / n).read_bytes() != (other / n).read_bytes() for n in names):
            with pytest.raises(CorruptIndexError) as caught:
                answers(copy)
            assert any(Path(name).name == caught.value.path.name for name in files_of(copy))
        for name in names:
            shutil.copyfile(mine / name, copy / name)
    assert same_size > len(swaps) and answers(copy) == expected


def test_a_payload_of_another_index_with_the_same_offsets_is_refused_when_opening(pairs, tmp_path):
    copy, mine, other = copy_of(pairs, "flat", tmp_path / "copy")
    name = "payload/data.bin"
    assert (mine / name).stat().st_size == (other / name).stat().st_size
    shutil.copyfile(other / name, copy / name)
    with pytest.raises(CorruptIndexError, match=r"data\.bin .*checksum mismatch"):
        open_index(copy)


def test_a_transposed_array_never_reaches_a_kernel(pairs, tmp_path):
    copy, _, _ = copy_of(pairs, "graph", tmp_path / "copy")
    for name in ("codes.npy", "links.npy", "scalars.npy"):
        raw = (copy / name).read_bytes()
        array = np.load(copy / name)
        np.save(copy / name, np.asfortranarray(array).T.reshape(array.shape[::-1]))
        assert (copy / name).stat().st_size == len(raw)
        with pytest.raises(CorruptIndexError, match=name):
            open_index(copy)
        (copy / name).write_bytes(raw)


def test_files_that_the_manifest_does_not_list_are_not_believed(pairs, tmp_path):
    rows_without = np.random.default_rng(5).normal(size=(N, DIM)).astype(np.float32)
    build(rows_without, tmp_path / "plain", options=BuildOptions(preview="graph"))
    plain, (mine, _) = tmp_path / "plain", pairs["graph"]
    with open_index(plain) as index:
        expected = index.search(QUERIES, k=10)
    shutil.copyfile(mine / "groups.npy", plain / "groups.npy")
    shutil.copytree(mine / "payload", plain / "payload")
    with open_index(plain) as index:
        found = index.search(QUERIES, k=10)
        assert index.payload is None and (found.ids == expected.ids).all() and (found.scores == expected.scores).all()
    (plain / "lists").mkdir()
    (plain / "lists" / "route.bin").write_bytes(b"x")
    with pytest.raises(CorruptIndexError, match=r"route\.bin .*does not list"):
        open_index(plain)


def test_what_opening_compares_is_one_block_of_memory_and_only_heads_of_large_files(pairs, tmp_path, monkeypatch):
    copy, _, _ = copy_of(pairs, "flat", tmp_path / "copy")
    manifest = read_manifest(copy)
    assert {name for name, entry in manifest.files.items() if entry.head} == LATER
    raw = bytearray((copy / VECTORS_NAME).read_bytes())
    raw[-1] ^= 1
    (copy / VECTORS_NAME).write_bytes(raw)
    verify_contents(copy, manifest)
    assert [problem.path.name for problem in check_folder(copy)] == [VECTORS_NAME]
    raw[20] ^= 1
    (copy / VECTORS_NAME).write_bytes(raw)
    with pytest.raises(CorruptIndexError) as caught:
        verify_contents(copy, manifest)
    assert caught.value.reason is CorruptReason.CHECKSUM and caught.value.path == copy / VECTORS_NAME

    def refuse(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("index.check.open_regular", refuse)
    with pytest.raises(ReadFailedError, match="EIO"):
        verify_contents(copy, manifest)
