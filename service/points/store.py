"""Entries of one collection on the disk: a SQLite file, WAL, synchronous=FULL.

PointStore     commit() entries, entries() of it, drop() what a generation has taken in; examine() after a crash

Each row carries a checksum of all its columns, since SQLite notices damage to its own structure only; the file is
examined when it is opened. The file is opened when it is needed and closed by close(); an idle collection holds none.

Invariant: when commit() returns, its entries are on the disk; if it raises, none of them is.
"""

from __future__ import annotations

import logging
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from index.errors import CorruptIndexError, CorruptReason
from service.database import Database
from service.errors import NoRoomError
from service.folders import sync_folder
from service.names import PointId
from service.points.entries import Entry, EntryKind, id_of_key, key_of
from service.points.wal import dropped_bytes

log = logging.getLogger("fullview.points")

STORE_NAME = "points.db"
FORMAT_VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key BLOB PRIMARY KEY, sequence INTEGER NOT NULL, kind INTEGER NOT NULL, vector BLOB, payload BLOB,
    checksum INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS by_sequence ON entries (sequence)
"""
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_BATCH = 2000
RowsOf = Callable[[Sequence[PointId]], NDArray[np.int64]]
Place = tuple[int, bytes]
"""A sequence number and a key: where reading goes on."""
START: Place = (0, b"")


class PointStore:
    """One file. Threads: any; the owner lets one at a time write. sequence: the number of the last commit."""

    def __init__(self, path: Path, *, dim: int) -> None:
        self.path, self.dim = path, dim
        self.sequence = 0
        self._database: Database | None = None

    def commit(self, entries: Sequence[Entry]) -> int:
        """Write entries in place of older ones of their ids; returns their sequence number. Raises NoRoomError."""
        sequence = self.sequence + 1
        rows = [_row_of(entry, sequence) for entry in entries]
        try:
            with self._open().transaction() as connection:
                connection.executemany(
                    "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET sequence ="
                    " excluded.sequence, kind = excluded.kind, vector = excluded.vector, payload = excluded.payload,"
                    " checksum = excluded.checksum",
                    rows,
                )
        except sqlite3.OperationalError as error:
            raise self._no_room(error, rows) from error
        self.sequence = sequence
        return sequence

    def entries(
        self, *, folded: int = 0, given_up: int = 0, upto: int | None = None, rows_of: RowsOf | None = None
    ) -> Iterator[Entry]:
        """In order of writing: those that count (see CollectionRecord), written up to a number. Raises CorruptIndexError."""
        at: Place | None = START
        while at is not None:
            some, at = self.some(at, folded=folded, given_up=given_up, upto=upto, rows_of=rows_of)
            yield from some

    def some(
        self,
        at: Place,
        *,
        folded: int = 0,
        given_up: int = 0,
        upto: int | None = None,
        rows_of: RowsOf | None = None,
    ) -> tuple[list[Entry], Place | None]:
        """A piece of entries(), what comes after `at`, and where the next one begins; None: that was all for now.

        rows_of: ids -> rows of the generation; a point without a vector from before the fold whose id has a row there
        counts no more: an append put the row in its place.
        """
        if not self.path.exists():
            return [], None
        limit = self.sequence if upto is None else upto
        try:
            rows = self._open().rows(
                "SELECT * FROM entries WHERE (sequence, key) > (?, ?) AND sequence <= ? ORDER BY sequence, key LIMIT ?",
                *max(at, (given_up, b"~")), limit, _BATCH,
            )  # fmt: skip
        except sqlite3.DatabaseError as error:
            raise self._corrupt(str(error)) from error
        found = [self._entry_of(row) for row in rows if row["sequence"] > folded]
        bare = [
            self._entry_of(row)
            for row in rows
            if row["sequence"] <= folded and row["kind"] == EntryKind.WHOLE and row["vector"] is None
        ]
        if bare and rows_of is not None:
            there = rows_of([entry.id for entry in bare]) >= 0
            bare = [entry for entry, taken in zip(bare, there.tolist(), strict=True) if not taken]
        found = [*bare, *found]
        if len(rows) < _BATCH:
            return found, None
        return found, (int(rows[-1]["sequence"]), bytes(rows[-1]["key"]))

    def drop(self, *, folded: int, given_up: int) -> None:
        """Forget entries that count no more (see CollectionRecord)."""
        self.sequence = max(self.sequence, folded, given_up)
        if not self.path.exists():
            return
        with self._open().transaction() as connection:
            connection.execute(
                "DELETE FROM entries WHERE sequence <= ? OR (sequence <= ? AND NOT (kind = ? AND vector IS NULL))",
                (given_up, folded, int(EntryKind.WHOLE)),
            )
        self._give_back()

    def examine(self) -> None:
        """Open the file, if there is one, and look at all of it. Raises CorruptIndexError, UnsupportedFormatError."""
        log_bytes = self._beside("-wal").stat().st_size if self._beside("-wal").exists() else 0
        if not self.path.exists():
            if log_bytes:
                raise self._corrupt(f"no file, but a log of {log_bytes} bytes beside it", CorruptReason.MISSING)
            return
        if not self.path.stat().st_size:
            raise self._corrupt("an empty file", CorruptReason.SIZE)
        lost = dropped_bytes(self._beside("-wal"))
        if lost:
            log.warning("%s-wal: the last %d bytes are no whole transaction and were dropped", self.path, lost)
        try:
            database = self._open()
            found = [row[0] for row in database.rows("PRAGMA integrity_check(3)")]
            if found != ["ok"]:
                raise self._corrupt("; ".join(found))
            (last,) = database.rows("SELECT max(sequence) AS last FROM entries")
        except sqlite3.DatabaseError as error:
            raise self._corrupt(str(error)) from error
        self.sequence = max(self.sequence, last["last"] or 0)

    def copy_to(self, path: Path) -> bool:
        """A copy of the file as it is now, logs folded in; False where there is no file. Raises NoRoomError."""
        if not self.path.exists():
            return False
        try:
            self._open().copy_to(path)
        except sqlite3.OperationalError as error:
            raise self._no_room(error, []) from error
        return True

    def remove(self) -> None:
        """Delete the file."""
        self.close()
        # The file last: a log without its file would be taken for damage.
        for end in ("-wal", "-shm", ""):
            self._beside(end).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def is_open(self) -> bool:
        """True while the file is held open."""
        return self._database is not None

    def _open(self) -> Database:
        if self._database is None:
            try:
                self._make()
                database = Database(self.path, schema=_SCHEMA, version=FORMAT_VERSION)
            except sqlite3.OperationalError as error:
                raise self._no_room(error, []) from error
            self._database = database
        return self._database

    def _make(self) -> None:
        """An empty file with its tables, whole or not at all: one without them is damaged."""
        if self.path.exists():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._beside(".new")
        for end in ("", "-wal", "-shm"):
            fresh.with_name(fresh.name + end).unlink(missing_ok=True)
        Database(fresh, schema=_SCHEMA, version=FORMAT_VERSION).close()
        fresh.rename(self.path)
        for folder in (self.path.parent, self.path.parent.parent):
            sync_folder(folder)

    def _beside(self, end: str) -> Path:
        return self.path.with_name(self.path.name + end)

    def _give_back(self) -> None:
        """Give the disk back what dropped entries took, where it is most of the file."""
        database = self._open()
        pages, free = (int(database.rows(f"PRAGMA {name}")[0][0]) for name in ("page_count", "freelist_count"))
        if not database.rows("SELECT 1 FROM entries LIMIT 1"):
            self.remove()
        elif 4 * free > 3 * pages:
            database.rows("VACUUM")
            database.rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def _entry_of(self, row: sqlite3.Row) -> Entry:
        key, kind, vector, payload = bytes(row["key"]), int(row["kind"]), row["vector"], row["payload"]
        if _checksum(key, int(row["sequence"]), kind, vector, payload) != row["checksum"]:
            raise self._corrupt(f"the entry of key {key!r} does not fit its checksum")
        if vector is not None and len(vector) != 4 * self.dim:
            raise self._corrupt(f"the vector of key {key!r} has {len(vector)} bytes, {4 * self.dim} are needed")
        array = None if vector is None else np.frombuffer(vector, "<f4").astype(np.float32, copy=False)
        return Entry(id_of_key(key), EntryKind(kind), array, payload)

    def _no_room(self, error: sqlite3.OperationalError, rows: Sequence[tuple[object, ...]]) -> Exception:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _FULL and "open" not in str(error):
            return error
        needed = sum(len(value) for row in rows for value in row if isinstance(value, bytes)) + 65_536
        return NoRoomError(
            f"No room on the disk at {self.path.parent} (SQLite: {error}): about {needed} bytes are needed. Nothing of this "
            "request was written. Free some room there, or delete collections."
        )

    def _corrupt(self, found: str, reason: CorruptReason = CorruptReason.CHECKSUM) -> CorruptIndexError:
        return CorruptIndexError(
            path=self.path, offset_bytes=0, reason=reason, expected="what was written", found=found
        )


def _row_of(entry: Entry, sequence: int) -> tuple[bytes, int, int, bytes | None, bytes | None, int]:
    vector = None if entry.vector is None else entry.vector.astype("<f4", copy=False).tobytes()
    key, kind = key_of(entry.id), int(entry.kind)
    return key, sequence, kind, vector, entry.payload, _checksum(key, sequence, kind, vector, entry.payload)


def _checksum(key: bytes, sequence: int, kind: int, vector: bytes | None, payload: bytes | None) -> int:
    """xxh3 of all columns, as the signed integer that SQLite holds."""
    digest = xxhash.xxh3_64(struct.pack("<IqBBB", len(key), sequence, kind, vector is not None, payload is not None))
    for part in (key, vector, payload):
        if part is not None:
            digest.update(part)
    value: int = digest.intdigest()
    return value - (1 << 64) if value >= 1 << 63 else value
