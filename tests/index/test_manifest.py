"""The folder of a generation: read back, refused when newer or damaged, published whole, checked page by page."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from index import publication
from index.check import check_folder
from index.errors import (
    CorruptIndexError,
    CorruptReason,
    IndexExistsError,
    ReadFailedError,
    UnknownIndexError,
    UnsupportedFormatError,
)
from index.fullview import PAGE_BYTES, PageLayout, VectorFileWriter
from index.manifest import MANIFEST_NAME, read_manifest, write_manifest
from index.publication import discard, publish, remove_leftovers, temporary_sibling

N, DIM = 900, 7


def make_generation(folder: Path, *, seed: int = 0, dim: int = DIM) -> None:
    layout = PageLayout(N, dim, np.dtype(np.float32))
    vectors = np.random.default_rng(seed).standard_normal((N, dim)).astype(np.float32)
    folder.mkdir(exist_ok=True)
    with VectorFileWriter(folder / "vectors.bin", layout) as writer:
        writer.append(vectors, np.arange(N, dtype=np.uint64))
    (folder / "ids").mkdir()
    (folder / "ids" / "table.bin").write_bytes(bytes(range(200)))
    write_manifest(
        folder,
        n=N,
        dim=dim,
        dtype="float32",
        metric="l2",
        preview="flat",
        preview_parameters={"bits": 4},
        operating_points=[{"recall": 0.95, "beam": 100}],
        promise={"recall": 0.95, "covers": "queries like the rows"},
        extras={"note": "é"},
        created_at="2026-01-02T03:04:05+00:00",
    )


@pytest.fixture
def generation(tmp_path):
    make_generation(tmp_path / "wiki")
    return tmp_path / "wiki"


def digests(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_what_was_written_is_read(generation):
    found = read_manifest(generation)
    assert (found.n, found.dim, found.dtype, found.metric, found.preview) == (N, DIM, "float32", "l2", "flat")
    assert found.operating_points == [{"recall": 0.95, "beam": 100}]
    assert found.extras == {"note": "é"}
    assert set(found.files) == {"vectors.bin", "vectors.sum", "ids/table.bin"}
    assert found.files["ids/table.bin"].size == 200
    assert check_folder(generation) == []


def test_no_manifest_is_no_index(tmp_path):
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UnknownIndexError, match=str(place)):
            read_manifest(place)


def test_s35_a_newer_version_is_refused_untouched(generation):
    path = generation / MANIFEST_NAME
    path.write_bytes(b'{"format_version": 2, "something": "else"}')
    before = digests(generation)
    for act in (read_manifest, check_folder):
        with pytest.raises(UnsupportedFormatError, match=r"format version 2, this program reads version 1"):
            act(generation)
    assert digests(generation) == before


def test_each_kind_of_damage_to_the_manifest_is_found(generation):
    path = generation / MANIFEST_NAME
    whole = path.read_bytes()
    for damaged in (
        whole.replace(b'"n": 900', b'"n": 901'),
        whole.replace(b'"beam": 100', b'"beam": 101'),
        whole[: len(whole) // 2],
        b"",
        b"[]",
        b"\xff" + whole[1:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptIndexError) as caught:
            read_manifest(generation)
        assert caught.value.path == path
        assert [str(problem) for problem in check_folder(generation)] == [str(caught.value)]


def test_missing_and_truncated_files_are_named(generation):
    os.truncate(generation / "vectors.bin", 5 * PAGE_BYTES + 17)
    with pytest.raises(CorruptIndexError, match=r"vectors\.bin .*wrong size"):
        read_manifest(generation)
    (generation / "ids" / "table.bin").unlink()
    problems = check_folder(generation)
    assert [(problem.path.name, problem.reason) for problem in problems] == [
        ("table.bin", CorruptReason.MISSING),
        ("vectors.bin", CorruptReason.SIZE),
    ]
    assert f"fullview check {generation}`" in str(problems[0])


def test_s30_check_lists_every_bad_page_and_every_bad_file(generation):
    path = generation / "vectors.bin"
    data = bytearray(path.read_bytes())
    for page, byte, bit in [(0, 100, 1), (1, 0, 0), (3, 4095, 7), (len(data) // PAGE_BYTES - 1, 2000, 3)]:
        data[page * PAGE_BYTES + byte] ^= 1 << bit
    path.write_bytes(data)
    ids = generation / "ids" / "table.bin"
    ids.write_bytes(bytes(199) + b"x")
    progress = []
    problems = check_folder(generation, on_progress=lambda done, total: progress.append((done, total)))
    last = len(data) - PAGE_BYTES
    assert [(problem.path, problem.offset_bytes) for problem in problems] == [
        (ids, 0), (path, 0), (path, PAGE_BYTES), (path, 3 * PAGE_BYTES), (path, last),
    ]  # fmt: skip
    assert {problem.reason for problem in problems} == {CorruptReason.CHECKSUM}
    assert all(problem.expected != problem.found for problem in problems)
    assert progress[-1][0] == progress[-1][1] == sum(entry.size for entry in read_manifest(generation).files.values())


def test_a_damaged_checksum_file_is_blamed_itself(generation):
    path = generation / "vectors.sum"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    assert [problem.path for problem in check_folder(generation)] == [path]


def test_s54_unreadable_pages_are_listed_and_the_rest_is_checked(generation, monkeypatch):
    path = generation / "vectors.bin"
    data = bytearray(path.read_bytes())
    data[4 * PAGE_BYTES] ^= 1
    path.write_bytes(data)
    real = os.pread

    def failing(fd, count, offset):
        if Path(f"/proc/self/fd/{fd}").readlink() == path and offset <= 2 * PAGE_BYTES < offset + count:
            raise OSError(5, "Input/output error")
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", failing)
    problems = check_folder(generation)
    assert [(type(problem), problem.offset_bytes // PAGE_BYTES) for problem in problems] == [
        (ReadFailedError, 2),
        (CorruptIndexError, 4),
    ]


def test_publish_puts_the_whole_folder_there(tmp_path):
    final = tmp_path / "new" / "wiki"
    temporary = temporary_sibling(final)
    assert temporary.parent == final.parent
    assert temporary.name.startswith(".")
    make_generation(temporary)
    publish(temporary, final)
    assert read_manifest(final).n == N
    assert list(final.parent.iterdir()) == [final]


def test_s18_publish_refuses_or_replaces_but_never_mixes(generation):
    temporary = temporary_sibling(generation)
    make_generation(temporary, dim=3)
    before = digests(generation)
    with pytest.raises(IndexExistsError, match=str(generation)):
        publish(temporary, generation)
    assert digests(generation) == before
    held = os.open(generation / "vectors.bin", os.O_RDONLY)
    publish(temporary, generation, replace=True)
    assert read_manifest(generation).dim == 3
    assert list(generation.parent.iterdir()) == [generation]
    assert os.fstat(held).st_size == PageLayout(N, DIM, np.dtype(np.float32)).file_bytes
    os.close(held)


def test_replacing_without_an_exchanging_rename(generation, monkeypatch):
    temporary = temporary_sibling(generation)
    make_generation(temporary, dim=3)
    monkeypatch.setattr(publication.sys, "platform", "other")
    publish(temporary, generation, replace=True)
    assert read_manifest(generation).dim == 3
    assert list(generation.parent.iterdir()) == [generation]


def test_a_file_in_the_way_is_refused(tmp_path):
    final = tmp_path / "wiki"
    final.write_text("notes")
    temporary = temporary_sibling(final)
    make_generation(temporary)
    for replace in (False, True):
        with pytest.raises(IndexExistsError, match=str(final)):
            publish(temporary, final, replace=replace)
        assert final.read_text() == "notes"
    discard(temporary)


def test_s14_leftovers_of_a_killed_build_go_and_running_builds_stay(tmp_path):
    final = tmp_path / "wiki"
    code = (
        "import os, signal, sys; from index.publication import temporary_sibling;"
        "path = temporary_sibling(sys.argv[1]); (path / 'half').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(publication.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", code, str(final)], cwd=root, check=False)
    assert result.returncode == -9
    (left,) = tmp_path.iterdir()
    running = temporary_sibling(final)
    assert remove_leftovers(tmp_path) == [left]
    assert list(tmp_path.iterdir()) == [running]
    discard(running)
    assert list(tmp_path.iterdir()) == []
    assert remove_leftovers(tmp_path / "absent") == []


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(fd, operation):
        raise OSError(95, "not supported")

    monkeypatch.setattr(publication.fcntl, "flock", refuse)
    temporary = temporary_sibling(tmp_path / "wiki")
    assert remove_leftovers(tmp_path) == []
    discard(temporary)
    assert list(tmp_path.iterdir()) == []
