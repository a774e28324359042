"""Putting a folder in its place: what is removed, what never is, and which paths are refused in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from index import BuildOptions, build, open_index, publication
from index.check import check_folder
from index.errors import CorruptIndexError, IndexExistsError, OptionsError, UnknownIndexError, VectorIndexError
from index.manifest import MARKER_NAME, read_manifest
from index.publication import discard, publish, remove_leftovers, require_place, temporary_sibling

GRAPH = BuildOptions(preview="graph")
ROWS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)


def everything(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def left_by_a_killed_build(final: Path) -> Path:
    program = (
        "import os, signal, sys; from index.publication import temporary_sibling;"
        "path = temporary_sibling(sys.argv[1]); (path / 'half').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    before = set(final.parent.iterdir())
    root = Path(publication.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", program, str(final)], cwd=root, check=False)
    assert result.returncode == -signal.SIGKILL
    (left,) = set(final.parent.iterdir()) - before
    return left


# --- leftovers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        ".house.building-plans", ".house.building-1234567", ".house.building-123456789", ".house.building-1234567G",
        ".house.building-12345678.bak", ".building-12345678", "house.building-12345678", ".house.old-12345678",
        ".house.building-12345678", ".house.old-plans",
    ],
)  # fmt: skip
def test_what_someone_else_made_is_never_removed(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("years of work")
    if publication._ASIDE.fullmatch(name) is None:
        (tmp_path / name / MARKER_NAME).touch()
    before = everything(tmp_path)
    assert remove_leftovers(tmp_path) == []
    build(ROWS, tmp_path / "house")
    assert {path: raw for path, raw in everything(tmp_path).items() if path.split("/")[0] != "house"} == before


def test_files_links_fifos_and_what_only_seems_marked_are_spared(tmp_path):
    names = [f".a.building-0000000{i}" for i in range(5)]
    (tmp_path / names[0]).write_text("a file")
    os.mkfifo(tmp_path / names[1])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / MARKER_NAME).touch()
    (tmp_path / names[2]).symlink_to(tmp_path / "elsewhere")
    (tmp_path / names[3] / MARKER_NAME).mkdir(parents=True)
    (tmp_path / names[4]).mkdir()
    os.mkfifo(tmp_path / names[4] / MARKER_NAME)
    assert remove_leftovers(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "elsewhere"]


def test_a_leftover_goes_and_the_marker_is_in_no_published_folder(tmp_path):
    final = tmp_path / "a.building-0 b\nc"
    left = left_by_a_killed_build(final)
    assert (left / MARKER_NAME).is_file()
    assert remove_leftovers(tmp_path) == [left]
    for _ in range(2):
        build(ROWS, final, replace=True)
        assert MARKER_NAME not in everything(final)
        assert MARKER_NAME not in read_manifest(final).files
    assert list(tmp_path.iterdir()) == [final]


DIE_BETWEEN = """
import os, signal, sys
from pathlib import Path
import numpy as np
from index import BuildOptions, build, publication

publication.sys.platform = "other"
rename = Path.rename

def die(path, target):
    if path.name.startswith(".house.building-") and not Path(target).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)

Path.rename = die
build(np.eye(8, dtype=np.float32), sys.argv[1], replace=True)
"""


def test_a_build_killed_between_two_renames_gives_the_old_index_back(tmp_path):
    """Where the system cannot exchange two folders."""
    final = tmp_path / "house"
    build(ROWS, final)
    before = everything(final)
    assert subprocess.run([sys.executable, "-c", DIE_BETWEEN, str(final)], check=False).returncode == -signal.SIGKILL
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == [".house.building", ".house.old"]
    assert [path.name.split("-")[0] for path in remove_leftovers(tmp_path)] == [".house.building"]
    assert list(tmp_path.iterdir()) == [final] and everything(final) == before


def test_an_old_index_beside_the_new_one_is_a_leftover(tmp_path):
    final, aside = tmp_path / "house", tmp_path / ".house.old-0123abcd"
    build(ROWS, final)
    build(ROWS, tmp_path / "other")
    (tmp_path / "other").rename(aside)
    assert remove_leftovers(tmp_path) == []
    (aside / MARKER_NAME).touch()
    assert remove_leftovers(tmp_path) == [aside]
    assert list(tmp_path.iterdir()) == [final]


def test_a_rename_that_fails_between_two_leaves_the_old_index_in_its_place(tmp_path, monkeypatch):
    final, rename = tmp_path / "house", Path.rename
    build(ROWS, final)
    before = everything(final)

    def fail(path, target):
        if path.name.startswith(".house.building-") and not Path(target).exists():
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(publication.sys, "platform", "other")
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output error"):
        build(ROWS[:50], final, replace=True)
    assert list(tmp_path.iterdir()) == [final]
    assert {name: raw for name, raw in everything(final).items() if name != MARKER_NAME} == before


# --- replacing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stray", ["notes.txt", "ids/notes.txt", ".hidden", "plans/", "link", "fifo"])
def test_an_index_with_a_file_of_someone_else_is_not_replaced(tmp_path, stray):
    final = tmp_path / "house"
    build(ROWS, final)
    path = final / stray
    if stray == "plans/":
        path.mkdir()
    elif stray == "link":
        path.symlink_to(tmp_path / "nowhere")
    elif stray == "fifo":
        os.mkfifo(path)
    else:
        path.write_text("mine")
    names = sorted(everything(final))
    seen = []
    with pytest.raises(IndexExistsError, match=stray.rstrip("/")):
        build(ROWS, final, replace=True, on_progress=seen.append)
    assert seen == []
    assert sorted(everything(final)) == names
    assert list(tmp_path.iterdir()) == [final]


def test_a_file_that_comes_during_the_build_is_not_lost(tmp_path):
    final = tmp_path / "house"
    build(ROWS, final)

    def drop(event):
        if event.phase == "verify":
            (final / "notes.txt").write_text("mine")

    with pytest.raises(IndexExistsError, match=r"house/notes\.txt is not part of the index"):
        build(ROWS[:50], final, replace=True, on_progress=drop)
    assert (final / "notes.txt").read_text() == "mine" and read_manifest(final).n == 60
    assert list(tmp_path.iterdir()) == [final]


def test_a_file_that_comes_in_the_last_moment_is_left_beside(tmp_path, monkeypatch, caplog):
    final = tmp_path / "house"
    build(ROWS, final)
    exchange = publication._exchange

    def late(temporary, place):
        (place / "notes.txt").write_text("mine")
        return exchange(temporary, place)

    monkeypatch.setattr(publication, "_exchange", late)
    build(ROWS[:50], final, replace=True)
    assert read_manifest(final).n == 50
    (aside,) = set(tmp_path.iterdir()) - {final}
    assert (aside / "notes.txt").read_text() == "mine"
    assert str(aside) in caplog.text
    assert remove_leftovers(tmp_path) == []


def test_a_damaged_index_is_replaced_but_not_with_a_file_of_someone_else(tmp_path):
    final = tmp_path / "house"
    build(ROWS, final)
    (final / "manifest.json").write_bytes(b"{")
    (final / "notes.txt").write_text("mine")
    with pytest.raises(IndexExistsError, match=r"notes\.txt"):
        build(ROWS, final, replace=True)
    (final / "notes.txt").unlink()
    build(ROWS, final, replace=True)
    assert list(tmp_path.iterdir()) == [final] and read_manifest(final).n == 60


# --- places -----------------------------------------------------------------------------------------------------


def refused(place: str | Path, kind: type[VectorIndexError], match: str, *, replace: bool = False) -> None:
    seen = []
    with pytest.raises(kind, match=match):
        build(ROWS, place, replace=replace, on_progress=seen.append)
    assert seen == []


@pytest.mark.parametrize("replace", [False, True])
def test_places_where_no_folder_can_be(tmp_path, replace):
    (tmp_path / "file").write_text("mine")
    refused(tmp_path / ("n" * 240), OptionsError, "has 240 bytes, an index's folder has at most 236", replace=replace)
    refused(tmp_path / ("é" * 120), OptionsError, "240 bytes", replace=replace)
    refused(tmp_path / "x\0y", OptionsError, "NUL", replace=replace)
    refused(tmp_path / "file" / "house", OptionsError, "No index can be built at .*Not a directory", replace=replace)
    refused(tmp_path / ("d" * 300) / "house", OptionsError, "File name too long", replace=replace)
    if Path("/proc/self").is_dir():
        refused("/proc/house", OptionsError, "No index can be built at /proc/house", replace=replace)
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_longest_name_and_odd_names_work(tmp_path):
    for name in ("n" * 236, "a b\n", "[x]*?", "-rf", "ü.building-"):
        build(ROWS, tmp_path / name)
        build(ROWS, tmp_path / name, replace=True)
        with open_index(tmp_path / name) as index:
            assert index.n == 60


def test_an_empty_folder_is_used_with_replace(tmp_path):
    (tmp_path / "house").mkdir()
    refused(tmp_path / "house", IndexExistsError, "an empty folder")
    build(ROWS, tmp_path / "house", replace=True)
    assert read_manifest(tmp_path / "house").n == 60
    assert [path.name for path in tmp_path.iterdir()] == ["house"]


def test_links(tmp_path):
    real, link = tmp_path / "real" / "house", tmp_path / "link"
    link.symlink_to(real)
    for replace in (False, True):
        refused(link, IndexExistsError, "a link to nothing", replace=replace)
    assert not real.parent.exists()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    refused(loop, VectorIndexError, "loop", replace=True)
    build(ROWS, real)
    refused(link, IndexExistsError, "replace=True")
    build(ROWS[:50], link, replace=True)
    assert link.is_symlink() and not real.is_symlink()
    assert read_manifest(real).n == read_manifest(link).n == 50
    assert [path.name for path in real.parent.iterdir()] == ["house"]
    build(ROWS[:40], tmp_path / "real" / ".." / "real" / "other")
    assert sorted(path.name for path in real.parent.iterdir()) == ["house", "other"]


def test_names_that_are_no_index_when_opening(tmp_path):
    for place in (tmp_path / ("n" * 300), f"{tmp_path}/x\0y", tmp_path / "nothing", "/proc/house", "p" * 5000):
        with pytest.raises(UnknownIndexError, match="is not an index"):
            open_index(place)


@pytest.mark.parametrize("kind", ["fifo", "folder", "link to a device"])
@pytest.mark.parametrize("name", ["manifest.json", "vectors.bin", "entries.npy", "ids/table.bin", "codes.npy"])
def test_what_is_not_a_file_is_named_and_never_waited_for(tmp_path, name, kind):
    final = tmp_path / "house"
    build(np.random.default_rng(1).normal(size=(400, 8)).astype(np.float32), final, options=GRAPH)
    path = final / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(CorruptIndexError, match=rf"{path.name} .*expected a file, found a"):
        open_index(final)
    assert [problem.path for problem in check_folder(final)][:1] == [path]


def test_a_folder_that_this_user_cannot_read(tmp_path, monkeypatch):
    build(ROWS, tmp_path / "house")

    def refuse(*_: object, **__: object):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("index.manifest.open_regular", refuse)
    with pytest.raises(UnknownIndexError, match="cannot be read by this user"):
        open_index(tmp_path / "house")


def test_publishing_by_hand_checks_the_place_too(tmp_path):
    temporary = temporary_sibling(tmp_path / "house")
    assert [path.name for path in temporary.iterdir()] == [MARKER_NAME]
    (temporary / "x").write_text("x")
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "mine").write_text("mine")
    for replace in (False, True):
        with pytest.raises(IndexExistsError):
            publish(temporary, tmp_path / "house", replace=replace)
    discard(temporary)
    assert everything(tmp_path) == {"house": None, "house/mine": b"mine"}
    assert require_place(tmp_path / "new", replace=False) == tmp_path / "new"
