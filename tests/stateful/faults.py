"""A failing file layer: the n-th call of what changes the disk fails as a full disk does, or ends the process.

Armed with FAULT_AT (a number) and FAULT_FILE (a file that must exist for calls to count), in a process that imports this
module before the service; what counts is what the server does to its data folder: commits, synchronisations, renames, new
folders, copies of databases, removals.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import service.database

_lock = threading.Lock()


class Faults:
    """calls: how many were counted; at: which one fails, 0: none. crash: end the process instead."""

    def __init__(self, *, crash: bool = False) -> None:
        self.calls = self.at = 0
        self.armed: Callable[[], bool] = lambda: True
        self.crash = crash

    def count(self, path: Any = None) -> None:
        with _lock:
            if not self.at or not self.armed():
                return
            self.calls += 1
            hit = self.calls == self.at
        if hit and self.crash:
            os._exit(9)
        if hit:
            raise OSError(errno.ENOSPC, "no room (made up by a test)", str(path))

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count(args[0] if args else None)
            return function(*args, **kwargs)

        return call


def install(faults: Faults, put: Callable[[Any, str, Any], None]) -> None:
    """put(owner, name, value) replaces an attribute: setattr, or monkeypatch's."""
    put(Path, "rename", faults.before(Path.rename))
    put(Path, "replace", faults.before(Path.replace))
    put(Path, "mkdir", faults.before(Path.mkdir))
    put(Path, "unlink", faults.before(Path.unlink))
    put(os, "fsync", faults.before(os.fsync))
    put(service.database.Database, "copy_to", faults.before(service.database.Database.copy_to))
    transaction = service.database.Database.transaction

    @contextmanager
    def counted(self: Any) -> Any:
        with transaction(self) as connection:
            yield connection
            try:
                faults.count("the database")  # what is written is lost with the transaction
            except OSError as error:
                raise sqlite3.OperationalError("database or disk is full") from error

    put(service.database.Database, "transaction", counted)


def install_from_environment() -> None:
    """In a server's own process: crash at the call that FAULT_AT numbers, once FAULT_FILE is there."""
    faults = Faults(crash=True)
    faults.at = int(os.environ["FAULT_AT"])
    armed = Path(os.environ["FAULT_FILE"])
    faults.armed = lambda: os.path.exists(armed)  # noqa: PTH110 (Path's own calls are counted)
    install(faults, setattr)
