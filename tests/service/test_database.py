"""What lies in the data folder: databases, the lock, uploads."""

from __future__ import annotations

import asyncio
import os
import sqlite3

import pytest

from service.data_lock import DataFolderInUseError, DataLock
from service.database import Database
from service.disk_reserve import RESERVE_BYTES, DiskReserve
from service.errors import NoRoomError, NotFoundError
from service.uploads import remove_parts, store_upload, upload_file

SCHEMA = "CREATE TABLE IF NOT EXISTS t (x INTEGER PRIMARY KEY) STRICT;"


def test_transactions_are_all_or_nothing(tmp_path):
    database = Database(tmp_path / "x.db", schema=SCHEMA)
    with database.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError), database.transaction() as connection:
        connection.executemany("INSERT INTO t VALUES (?)", [(2,), (1,)])
    assert [row["x"] for row in database.rows("SELECT x FROM t")] == [1]
    assert database.rows("PRAGMA journal_mode")[0][0] == "wal"
    assert database.rows("PRAGMA synchronous")[0][0] == 2
    database.close()


def test_a_folder_has_one_owner(tmp_path):
    lock = DataLock(tmp_path / "data")
    with pytest.raises(DataFolderInUseError, match=str(os.getpid())) as caught:
        DataLock(tmp_path / "data")
    assert str(tmp_path / "data") in str(caught.value)
    lock.release()
    DataLock(tmp_path / "data").release()


async def chunks(*parts):
    for part in parts:
        if isinstance(part, Exception):
            raise part
        yield part


def test_uploads_that_are_cut_off_leave_nothing(tmp_path):
    (tmp_path / "uploads").mkdir()
    with pytest.raises(ConnectionError):
        asyncio.run(store_upload(tmp_path, "a.npy", chunks(b"12", ConnectionError("the client left"))))
    with pytest.raises(NoRoomError, match="data_dir"):
        asyncio.run(store_upload(tmp_path, "a.npy", chunks(b"12", OSError(28, "No space left on device"))))
    assert list((tmp_path / "uploads").iterdir()) == []
    upload, size = asyncio.run(store_upload(tmp_path, "a.npy", chunks(b"12", b"", b"345")))
    assert size == 5
    assert upload_file(tmp_path, upload).read_bytes() == b"12345"
    (tmp_path / "uploads" / "f").mkdir()
    (tmp_path / "uploads" / "f" / ".part").touch()
    with pytest.raises(NotFoundError):
        upload_file(tmp_path, "f")
    remove_parts(tmp_path)
    assert [folder.name for folder in (tmp_path / "uploads").iterdir()] == [upload]


@pytest.mark.parametrize("upload", ["..", "../uploads", "", "x", "/etc"])
def test_an_upload_id_is_no_path(tmp_path, upload):
    (tmp_path / "uploads").mkdir()
    with pytest.raises(NotFoundError):
        upload_file(tmp_path, upload)


def test_the_reserve_takes_room_and_gives_it_back(tmp_path):
    reserve = DiskReserve(tmp_path / "reserve")
    reserve.fill()
    reserve.fill()
    assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
    reserve.empty()
    reserve.empty()
    assert not (tmp_path / "reserve").exists()
    DiskReserve(tmp_path / "none" / "reserve").fill()
