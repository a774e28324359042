"""Which files a build may read: those inside the import root, and nothing that a link leads out of it.

resolve()    a path of a request -> an absolute path, folder or glob that is safe to open
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from service.errors import MalformedError, NotFoundError

_GLOB = frozenset("*?[")
PATH_MAX = 2048
NAME_MAX = 255


def resolve(root: Path, path: str, *, member: str) -> str:
    """The absolute form of `path` inside `root`: a file, a folder or a glob.

    member: where the path stood in the body, for messages. Raises MalformedError for what leaves the root, by its
    spelling or by a link, and NotFoundError for what is not there.
    """
    if not path or "\0" in path or "\\" in path:
        raise MalformedError(f"{member} is {path!r}: a path has at least one character, no NUL and no backslash.")
    if len(path.encode(errors="replace")) > PATH_MAX or any(
        len(part.encode(errors="replace")) > NAME_MAX for part in Path(path).parts
    ):
        raise MalformedError(
            f"{member} is a path of {len(path):,} characters: at most {PATH_MAX:,} bytes, {NAME_MAX} a name, are a path here."
        )
    if path.startswith(("/", "~")) or ".." in Path(path).parts:
        raise MalformedError(f"{member} is {path!r}: give it relative to the import root {root.name!r}, without `..`.")
    real_root = Path(os.path.realpath(root))
    full = real_root / path
    found = _found(full)
    if not found:
        raise NotFoundError(f"{member} is {path!r}: nothing of that name is in the import root {root.name!r}.")
    for file in found:
        for reached in _all_in(file):
            _require_inside(real_root, reached, path, member)
    return str(full)


def _found(full: Path) -> list[Path]:
    if full.exists() or full.is_symlink():
        return [full]
    if _GLOB.isdisjoint(str(full)):
        return []
    # Path.glob would need the pattern relative to a folder, and does not follow `**` as the sources do.
    return [Path(match) for match in glob.glob(str(full), recursive=True)]  # noqa: PTH207


def _all_in(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir():
        # Links to folders are yielded, and refused or not by where they lead, but not followed into circles.
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                yield Path(folder) / name


def _require_inside(root: Path, file: Path, path: str, member: str) -> None:
    real = Path(os.path.realpath(file))
    if real != root and root not in real.parents:
        raise MalformedError(
            f"{member} is {path!r}: {file.relative_to(root)} is a link that leads out of the import root. "
            "Copy the file into the import root."
        )
