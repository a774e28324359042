"""SQLite as this service uses it: WAL, synchronous=FULL, one connection behind a lock, explicit transactions, a version.

Invariant: what a transaction() block wrote is on the disk when the block ends, or not at all.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from index.errors import UnsupportedFormatError

_VERSION_AT = 60
"""Where the version stands in SQLite's header: https://www.sqlite.org/fileformat2.html#user_version_number"""


class Database:
    """One file. Threads: any; they take turns.

    schema makes a new file; of an older one, of version v, upgrades[v] makes version v + 1, and so on, in one transaction.
    Raises UnsupportedFormatError for a file of a newer version, which is left as it is.
    """

    def __init__(self, path: Path, *, schema: str, version: int = 1, upgrades: Mapping[int, str] = {}) -> None:
        _require_known(path, version)
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA foreign_keys=ON")
        try:
            self._make(schema, version, upgrades)
        except BaseException:
            self._connection.close()
            raise

    def _make(self, schema: str, version: int, upgrades: Mapping[int, str]) -> None:
        (found,) = self._connection.execute("PRAGMA user_version").fetchone()
        if found == version:
            return
        # executescript() would commit what is open: statements one by one.
        scripts = [schema] if found == 0 else [upgrades[older] for older in range(found, version)]
        with self.transaction() as connection:
            for statement in ";".join(scripts).split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, on the disk at the end."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk may have ended the transaction already, or made the COMMIT itself fail.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query."""
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def copy_to(self, path: Path) -> None:
        """A copy of all of it, without a log beside it."""
        with self._lock, contextlib.closing(sqlite3.connect(path)) as other:
            self._connection.backup(other)

    def close(self) -> None:
        """No call may follow."""
        with self._lock:
            self._connection.close()


def _require_known(path: Path, version: int) -> None:
    """Raises UnsupportedFormatError for a newer file. Read from the bytes: SQLite itself would touch what it opens."""
    try:
        with path.open("rb") as file:
            header = file.read(_VERSION_AT + 4)
    except FileNotFoundError:
        return
    found = int.from_bytes(header[_VERSION_AT:], "big") if len(header) == _VERSION_AT + 4 else 0
    if found > version:
        raise UnsupportedFormatError(
            f"{path} has format version {found}, this program reads up to {version}. Open it with the version of fullview "
            "that wrote it; nothing was changed."
        )
