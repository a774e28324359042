"""Entries on the disk: durable when committed, verified when read, dropped when a generation has them."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from index.errors import CorruptIndexError, UnsupportedFormatError
from service.errors import NoRoomError
from service.points.entries import Entry, EntryKind, id_of_key, key_of
from service.points.store import PointStore

IDS = [0, 1, 255, 256, 2**32, 2**63, 2**64 - 1, "", "0", "a", "b", "é", "\uffff", "\U0001f600"]


def whole(id_, *values, payload=b'{"a":1}'):
    return Entry(id_, EntryKind.WHOLE, np.array(values, np.float32) if values else None, payload)


@pytest.fixture
def store(tmp_path):
    made = PointStore(tmp_path / "c" / "points.db", dim=2)
    yield made
    made.close()


def ids_of(store, **which):
    return [entry.id for entry in store.entries(**which)]


def test_keys_ascend_as_ids_do_and_lead_back():
    assert sorted(IDS, key=key_of) == IDS
    assert [id_of_key(key_of(id_)) for id_ in IDS] == IDS


def test_entries_come_back_as_they_were_written(store):
    entries = [whole(1, 0.5, -1.5), whole("x", payload=None), Entry(2, EntryKind.DELETED), Entry(3, EntryKind.PAYLOAD)]
    assert store.commit(entries) == 1
    store.close()
    found = list(store.entries())
    assert [(e.id, e.kind, e.payload) for e in found] == sorted(
        ((e.id, e.kind, e.payload) for e in entries), key=lambda e: key_of(e[0])
    )
    assert found[0].vector.tolist() == [0.5, -1.5] and all(e.vector is None for e in found[1:])


def test_the_newest_entry_of_an_id_counts_and_comes_last(store):
    store.commit([whole(1, 1, 1), whole(2, 2, 2)])
    store.commit([whole(1, 3, 3)])
    assert [(e.id, e.vector.tolist()) for e in store.entries()] == [(2, [2, 2]), (1, [3, 3])]
    assert ids_of(store, upto=1) == [2]


def test_many_entries_come_in_pieces(store):
    for start in range(0, 9000, 3000):
        store.commit([whole(i, i, i) for i in range(start, start + 3000)])
    assert ids_of(store) == list(range(9000))


def test_what_a_generation_took_in_is_dropped_but_points_without_vectors_stay(store):
    store.commit([whole(1, 1, 1), whole(2)])
    store.commit([Entry(3, EntryKind.DELETED), Entry(4, EntryKind.PAYLOAD)])
    store.commit([whole(5, 5, 5), whole(6)])
    assert ids_of(store, folded=2) == [2, 5, 6]
    assert ids_of(store, folded=2, given_up=1) == [5, 6]
    store.drop(folded=2, given_up=0)
    assert ids_of(store) == [2, 5, 6]
    store.drop(folded=3, given_up=3)
    assert ids_of(store) == [] and not store.path.exists()
    assert store.commit([whole(7, 7, 7)]) == 4


def test_sequence_numbers_go_on_after_a_restart(tmp_path, store):
    store.commit([whole(1, 1, 1)])
    store.commit([whole(2, 2, 2)])
    store.close()
    again = PointStore(store.path, dim=2)
    again.examine()
    assert again.sequence == 2
    again.close()
    behind = PointStore(tmp_path / "d" / "points.db", dim=2)
    behind.drop(folded=9, given_up=0)
    assert behind.commit([whole(1, 1, 1)]) == 10
    behind.close()


def test_a_crash_keeps_what_was_committed(tmp_path):
    code = (
        "import os, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from service.points.store import PointStore\n"
        "from service.points.entries import Entry, EntryKind\n"
        "store = PointStore(Path(sys.argv[1]), dim=2)\n"
        "for i in range(20): store.commit([Entry(i, EntryKind.WHOLE, np.zeros(2, np.float32), None)])\n"
        "os._exit(9)\n"
    )
    path = tmp_path / "points.db"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    store = PointStore(path, dim=2)
    store.examine()
    assert store.sequence == 20 and len(ids_of(store)) == 20
    store.close()


@pytest.mark.parametrize("count", [1, 7, 64])
@pytest.mark.parametrize("cut", [True, False])
def test_s29_a_torn_log_is_cut_where_it_is_torn_and_said_so(tmp_path, caplog, count, cut):
    """The last bytes of the log are lost, or bytes that are none were added: the rest is there."""
    place = tmp_path / "live"
    store = PointStore(place / "points.db", dim=2)
    for i in range(5):
        store.commit([whole(i, i, i)])
    copied = tmp_path / "copy"
    shutil.copytree(place, copied)  # as it lies there while it is open: database, log, index of the log
    store.close()
    log = copied / "points.db-wal"
    (copied / "points.db-shm").unlink()
    raw = log.read_bytes()
    log.write_bytes(raw[:-count] if cut else raw + b"\x5a" * count)
    again = PointStore(copied / "points.db", dim=2)
    again.examine()
    assert ids_of(again) == ([0, 1, 2, 3] if cut else [0, 1, 2, 3, 4])
    assert "bytes are no whole transaction and were dropped" in caplog.text
    if not cut:
        assert f"the last {count} bytes" in caplog.text
    again.close()


def test_a_log_that_was_closed_in_order_drops_nothing(store, caplog):
    for i in range(3000):  # beyond what SQLite keeps in a log before it begins anew
        store.commit([whole(i, i, i, payload=b'{"p":"' + b"x" * 500 + b'"}')])
    copied = store.path.parent.parent / "copy"
    shutil.copytree(store.path.parent, copied)
    again = PointStore(copied / "points.db", dim=2)
    again.examine()
    assert len(ids_of(again)) == 3000
    assert not caplog.text
    again.close()


def test_every_flipped_byte_is_found_or_changes_nothing(store):
    store.commit([whole(i, i, -i, payload=b'{"n":"' + b"abc" * 20 + b'"}') for i in range(40)])
    store.close()
    good = store.path.read_bytes()
    before = [(e.id, e.kind, e.vector.tolist(), e.payload) for e in store.entries()]
    store.close()
    found = 0
    for at in np.random.default_rng(0).choice(len(good), 400, replace=False).tolist():
        damaged = bytearray(good)
        damaged[at] ^= 0x55
        for end in ("-wal", "-shm"):
            store.path.with_name(store.path.name + end).unlink(missing_ok=True)
        store.path.write_bytes(damaged)
        again = PointStore(store.path, dim=2)
        try:
            again.examine()
            now = [(e.id, e.kind, e.vector.tolist(), e.payload) for e in again.entries()]
        except (CorruptIndexError, UnsupportedFormatError) as error:
            found += str(store.path) in str(error)
        else:
            assert now == before, f"byte {at} changed what is read and nobody noticed"
        again.close()
    assert found > 60  # most of the file is free room


def test_s35_a_newer_file_is_refused_and_left_as_it_is(store):
    store.commit([whole(1, 1, 1)])
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    raw = store.path.read_bytes()
    again = PointStore(store.path, dim=2)
    with pytest.raises(UnsupportedFormatError, match="format version 7, this program reads up to 1"):
        again.examine()
    assert store.path.read_bytes() == raw


def test_s15_a_full_disk_refuses_the_whole_request_and_the_next_one_may_fit(store, monkeypatch):
    store.commit([whole(1, 1, 1)])
    database = store._open()
    (pages,) = database.rows("PRAGMA page_count")
    database.rows(f"PRAGMA max_page_count = {pages[0] + 3}")
    large = [whole(i, i, i, payload=b'{"p":"' + b"x" * 2000 + b'"}') for i in range(2, 50)]
    with pytest.raises(NoRoomError, match=r"No room on the disk at .*: about \d+ bytes are needed"):
        store.commit(large)
    assert ids_of(store) == [1] and store.sequence == 1
    database.rows("PRAGMA max_page_count = 1000000")
    store.commit(large)
    assert len(ids_of(store)) == 49


def test_a_file_that_was_emptied_or_went_away_under_its_log_is_damage(tmp_path, store):
    store.commit([whole(1, 1, 1)])
    copied = tmp_path / "copy"
    shutil.copytree(store.path.parent, copied)
    (copied / "points.db").unlink()
    with pytest.raises(CorruptIndexError, match=r"points\.db .*a log of \d+ bytes beside it"):
        PointStore(copied / "points.db", dim=2).examine()
    (copied / "points.db").write_bytes(b"")
    with pytest.raises(CorruptIndexError, match="an empty file"):
        PointStore(copied / "points.db", dim=2).examine()


def test_points_without_vectors_that_the_generation_has_rows_for_count_no_more(store):
    store.commit([whole(1), whole(2)])
    store.commit([whole(3)])

    def rows_of(ids):
        return np.array([7 if id_ in (1, 3) else -1 for id_ in ids], np.int64)

    assert ids_of(store, folded=1, rows_of=rows_of) == [2, 3]
