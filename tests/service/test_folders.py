"""Folders put in place and removed; readers of what is open."""

from __future__ import annotations

import threading

from service.folders import move_into, remove_folder_if_there, remove_generation
from service.readers import Readers


def test_a_built_folder_is_moved_and_its_home_is_made(tmp_path):
    built = tmp_path / "built"
    built.mkdir()
    (built / "a").write_text("x")
    folder = move_into(tmp_path / "home" / "id", built, "g1")
    assert (folder / "a").read_text() == "x"
    assert not built.exists()


def test_a_home_goes_with_its_last_folder(tmp_path):
    for name in ("g1", "g2"):
        (tmp_path / "home" / name).mkdir(parents=True)
    remove_generation(tmp_path / "home" / "g1")
    assert (tmp_path / "home").is_dir()
    remove_generation(tmp_path / "home" / "g2")
    assert not (tmp_path / "home").exists()
    remove_folder_if_there(tmp_path / "home")


def readers():
    done = []
    return Readers(close=lambda: done.append("closed"), remove=lambda: done.append("removed")), done


def test_the_last_reader_of_what_is_retired_ends_it():
    open_thing, done = readers()
    assert open_thing.acquire()
    assert open_thing.acquire()
    open_thing.retire(remove_files=True)
    assert not open_thing.acquire()
    open_thing.release()
    assert done == []
    open_thing.release()
    assert done == ["closed", "removed"]
    open_thing.retire(remove_files=True)
    assert done == ["closed", "removed"]


def test_files_stay_where_nobody_wants_them_gone():
    open_thing, done = readers()
    open_thing.retire(remove_files=False)
    assert done == ["closed"]


def test_many_readers_end_it_once():
    open_thing, done = readers()
    for _ in range(50):
        open_thing.acquire()
    open_thing.retire(remove_files=True)
    threads = [threading.Thread(target=open_thing.release) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == ["closed", "removed"]
