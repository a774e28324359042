"""The catalogue: which collections, aliases and decoders there are, and which folder each of them serves. In SQLite.

Invariant: a folder of an index or decoder counts only if the catalogue names it; everything else on the disk is left
over from something that did not end, and may be removed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.database import Database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS collections (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, distance TEXT NOT NULL, config BLOB NOT NULL,
    generation TEXT, generation_number INTEGER NOT NULL, created_at REAL NOT NULL, folded INTEGER NOT NULL,
    given_up INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS aliases (
    alias TEXT PRIMARY KEY, collection_id TEXT NOT NULL REFERENCES collections (id) ON DELETE CASCADE
) STRICT;
CREATE TABLE IF NOT EXISTS decoders (
    name TEXT PRIMARY KEY, folder TEXT NOT NULL UNIQUE, number INTEGER NOT NULL, device TEXT NOT NULL, serve TEXT,
    created_at REAL NOT NULL
) STRICT
"""
_VERSION = 2
_UPGRADES = {
    1: "ALTER TABLE collections ADD COLUMN folded INTEGER NOT NULL DEFAULT 0;"
    " ALTER TABLE collections ADD COLUMN given_up INTEGER NOT NULL DEFAULT 0"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRecord:
    """What is kept of a collection beside its files."""

    id: str
    """Generated; names its folder. Users' names never become paths."""
    name: str
    size: int
    """Dimension of its vectors."""
    distance: str
    """Cosine, Dot or Euclid."""
    config: bytes
    """JSON object: what the client sent at creation, to be echoed."""
    generation: str | None
    """Folder inside the collection's; None: empty."""
    generation_number: int
    created_at: float
    """Seconds since 1970."""
    folded: int = 0
    """Entries up to this sequence number are in the generation and count no more, but those of points without vectors."""
    given_up: int = 0
    """Entries up to this sequence number count no more at all: a build replaced what they belonged to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRecord:
    """What is kept of a decoder beside its files."""

    name: str
    folder: str
    """Generated; another one with each build."""
    number: int
    """How many builds have served under this name, this one included."""
    device: str
    """Where it answers: cpu."""
    serve: str | None
    """Model folder or GGUF inside the import root that completions run; None: no completions."""
    created_at: float
    """Seconds since 1970; a build that replaces another leaves it."""


class Catalogue:
    """Reads at start, writes at each change. Threads: any."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, schema=_SCHEMA, version=_VERSION, upgrades=_UPGRADES)

    def collections(self) -> list[CollectionRecord]:
        """All, by name."""
        rows = self._database.rows("SELECT * FROM collections ORDER BY name")
        return [CollectionRecord(**dict(row)) for row in rows]

    def aliases(self) -> dict[str, str]:
        """Alias -> id of its collection."""
        return {row["alias"]: row["collection_id"] for row in self._database.rows("SELECT * FROM aliases")}

    def put(self, record: CollectionRecord, *, alias: str | None = None) -> None:
        """Write a collection, new or changed, and point an alias at it, in one transaction."""
        with self._database.transaction() as connection:
            self._put(connection, record)
            if alias is not None:
                connection.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?)", (alias, record.id))

    @staticmethod
    def _put(connection: sqlite3.Connection, record: CollectionRecord) -> None:
        connection.execute(
            "INSERT INTO collections VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
            " size = excluded.size, distance = excluded.distance, config = excluded.config, generation ="
            " excluded.generation, generation_number = excluded.generation_number, folded = excluded.folded,"
            " given_up = excluded.given_up",
            (
                record.id,
                record.name,
                record.size,
                record.distance,
                record.config,
                record.generation,
                record.generation_number,
                record.created_at,
                record.folded,
                record.given_up,
            ),
        )

    def put_in_place(self, record: CollectionRecord, old_id: str | None, aliases: Mapping[str, str]) -> None:
        """Write a collection in place of another one, whose aliases it gets, in one transaction."""
        with self._database.transaction() as connection:
            if old_id is not None:
                connection.execute("DELETE FROM collections WHERE id = ?", (old_id,))
            self._put(connection, record)
            connection.executemany("INSERT OR REPLACE INTO aliases VALUES (?, ?)", _pairs(aliases))

    def delete(self, collection_id: str) -> None:
        """Forget a collection and its aliases."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM collections WHERE id = ?", (collection_id,))

    def replace_aliases(self, aliases: Mapping[str, str]) -> None:
        """Make these all aliases there are, in one transaction."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM aliases")
            connection.executemany("INSERT INTO aliases VALUES (?, ?)", _pairs(aliases))

    def decoders(self) -> list[DecoderRecord]:
        """All, by name."""
        return [DecoderRecord(**dict(row)) for row in self._database.rows("SELECT * FROM decoders ORDER BY name")]

    def put_decoder(self, record: DecoderRecord) -> None:
        """Write a decoder, in place of the one of that name."""
        values = (record.name, record.folder, record.number, record.device, record.serve, record.created_at)
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO decoders VALUES (?, ?, ?, ?, ?, ?)", values)

    def delete_decoder(self, name: str) -> None:
        """Forget a decoder."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM decoders WHERE name = ?", (name,))

    def close(self) -> None:
        """No call may follow."""
        self._database.close()


def _pairs(aliases: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return list(aliases.items())
