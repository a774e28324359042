"""Folders of what is served: put in place for good, and removed.

move_into()     a built folder to where it is served from, with everything that names it on the disk
remove_folder() remove_generation() remove_folder_if_there()
remove_leftovers()   at start: what no collection names
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("fullview.engine")


def move_into(home: Path, built: Path, name: str) -> Path:
    """Rename `built` to home/name; home is made where it is not there. Both folders above are on the disk afterwards."""
    home.mkdir(parents=True, exist_ok=True)
    folder = home / name
    built.rename(folder)
    for changed in (home, home.parent):
        sync_folder(changed)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder and all in it; what cannot be removed is logged and left to the next start."""
    shutil.rmtree(folder, onerror=lambda _, path, error: log.warning("cannot remove %s: %s", path, error[1]))


def remove_generation(folder: Path) -> None:
    """Remove a generation's folder, and its collection's where that was the last one in it."""
    remove_folder(folder)
    # A folder that still holds something (the next generation) stays.
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def remove_folder_if_there(folder: Path) -> None:
    """remove_folder() that says nothing of a folder that never was."""
    if folder.exists():
        remove_folder(folder)


def remove_leftovers(root: Path, kept: Mapping[str, str | None], *, beside: tuple[str, ...]) -> None:
    """At start: remove what no collection names. kept: collection's folder -> its generation's; None: it has none.

    beside: how names begin of what else a collection keeps in its folder.
    """
    root.mkdir(exist_ok=True)
    for folder in root.iterdir():
        if folder.name not in kept:
            log.info("removing what an unfinished build or deletion left: %s", folder)
            remove_folder(folder)
            continue
        for inside in folder.iterdir():
            if inside.name != kept[folder.name] and not inside.name.startswith(beside):
                log.info("removing what an unfinished build left: %s", inside)
                remove_folder(inside)


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in a folder is on the disk afterwards."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
