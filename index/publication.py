"""How a generation's folder appears: whole, or not at all.

require_place()                     where an index may be put: at a free place, or over another index
temporary_sibling() / publish()     build beside the final place, then fsync everything and rename
discard() / remove_leftovers()      what a cancelled or killed build leaves

A folder under construction is locked (flock) by the process that builds it, and the lock dies with the process: so a
leftover is a folder that can be locked. Process ids would not do: containers that share a disk reuse them. It holds a
marker from its first moment on, so that no folder of anyone else is taken for one.
Invariant: nothing is removed that a manifest does not list, or that temporary_sibling() did not begin.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from index.descriptor import KINDS
from index.errors import CorruptIndexError, DiskFullError, IndexExistsError, OptionsError, VectorIndexError
from index.manifest import MANIFEST_NAME, MARKER_NAME, files_of, read_manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a folder is. word, a: for sentences; data: the file that it has beside its manifest; names: all it may have;
    unlisted: files that may lie in it and that its manifest does not list."""

    word: str
    a: str
    data: str
    names: tuple[str, ...]
    unlisted: tuple[str, ...] = ()


INDEX = Kind(
    "index",
    "an index",
    "vectors.bin",
    (
        "vectors.bin", "vectors.sum", "ids/table.bin", "ids/codes.npy", "payload/data.bin", "payload/columns.bin",
        "codes.npy", "scalars.npy", "links.npy", "entries.npy", "mean.npy", "groups.npy", "report.json",
        "lists/offsets.npy", "lists/centroids.npy", "lists/centroid_scalars.npy", "lists/codebooks.npy", "lists/route.bin",
    ),
)  # fmt: skip
_BUILDING, _OLD = ".building-", ".old-"
_ASIDE = re.compile(rf"\.(.+)({re.escape(_BUILDING)}|{re.escape(_OLD)})[0-9a-f]{{8}}", re.DOTALL)
_NAME_BYTES_MAX = 255 - len(f".{_BUILDING}") - 8
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def require_place(target: Path, *, replace: bool, kind: Kind = INDEX) -> Path:
    """Where an index (or what `kind` says) for `target` goes, absolute: `target`, or what a symbolic link there leads to.

    Raises OptionsError for a path where no folder can be made. Raises IndexExistsError unless nothing is there, or, with
    replace, an empty folder or an index without files of anyone else, which would be lost. A damaged index may be
    replaced, one of another format version not (UnsupportedFormatError).
    """
    place = _place(target, kind)
    try:
        there = place.lstat()
    except FileNotFoundError:
        if not target.is_symlink():
            return place
        there = None  # a link that leads nowhere
    except OSError as error:
        raise _unfit(place, error, kind) from None
    try:
        empty = there is not None and stat.S_ISDIR(there.st_mode) and not any(place.iterdir())
        known = is_kind(place, kind)
        if known and not replace:
            raise IndexExistsError(f"{target} is {kind.a} already. Choose another place, or build with replace=True.")
        if not known and not (empty and replace):
            found = "a link to nothing" if there is None else KINDS[stat.S_IFMT(there.st_mode)]
            which = "an empty folder" if empty else f"a folder that is not {kind.a}" if found == "a folder" else found
            raise IndexExistsError(
                f"{target} is there already and is {which}. fullview replaces only {kind.a}: choose another OUT."
            )
        if place.is_mount():
            raise OptionsError(f"{target} is where a file system is mounted: no folder can replace it. Name one in it.")
        if known:
            _require_no_others(place, kind)
    except PermissionError as error:
        raise _unfit(place, error, kind) from None
    return place


def is_kind(folder: Path, kind: Kind) -> bool:
    """Whether the folder is of that kind, damaged or not: it holds a manifest and the kind's data."""
    return (folder / MANIFEST_NAME).is_file() and (folder / kind.data).is_file()


def temporary_sibling(final: Path | str, *, kind: Kind = INDEX) -> Path:
    """A new, locked folder beside `final`, empty but for its marker, for publish() or discard().

    Raises OptionsError where none can be made, DiskFullError where there is no room for one.
    """
    final = _place(final, kind)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        while True:
            temporary = final.parent / f".{final.name}{_BUILDING}{secrets.token_hex(4)}"
            with contextlib.suppress(FileExistsError):
                temporary.mkdir()
                break
    except OSError as error:
        raise _unfit(final, error, kind) from None
    # Locked before it is marked: what is marked and can be locked is a leftover.
    with contextlib.suppress(OSError):  # a file system without locks; there remove_leftovers() spares everything
        fd = _lock(temporary)
        if fd is not None:
            _LOCKS[temporary] = fd
    try:
        _mark(temporary)
    except OSError as error:
        discard(temporary)
        raise _unfit(final, error, kind) from None
    return temporary


def publish(temporary: Path | str, final: Path | str, *, replace: bool = False, kind: Kind = INDEX) -> None:
    """Put the folder at its final place: everything is on the device first, then one rename.

    A symbolic link at `final` stays, what it leads to is replaced. Raises IndexExistsError where something non-empty is
    at `final`, unless replace, which exchanges the two in one step and removes the old index, file by file as its
    manifest lists them; who has it open keeps reading it. With replace also what require_place() raises. After an error
    `temporary` is still there: discard() it.
    """
    temporary, final = Path(temporary).absolute(), _place(final, kind)
    for path in files_of(temporary):
        _fsync(path)
    for path in [*(path for path in temporary.rglob("*") if path.is_dir()), temporary]:
        _fsync(path)
    old = None
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if not replace:
            raise IndexExistsError(
                f"{final} is already there, the {kind.word} was not put in its place. Remove it, choose another place, or "
                "build with replace=True."
            ) from None
        require_place(final, replace=True, kind=kind)
        with contextlib.suppress(OSError):
            _mark(final)
        old = _exchange(temporary, final)
    (final / MARKER_NAME).unlink(missing_ok=True)
    _fsync(final)
    _fsync(final.parent)
    if old is not None:
        _remove_listed(old, kind)
    _unlock(temporary)


def discard(temporary: Path | str) -> None:
    """Remove a folder of temporary_sibling() that will not be published."""
    temporary = Path(temporary).absolute()
    _remove(temporary)
    _unlock(temporary)


def remove_leftovers(parent: Path | str) -> list[Path]:
    """Remove what killed builds left in a folder, and say what it was. Running builds, of anyone, are spared.

    A leftover has the name that temporary_sibling() gives, the marker in it, and no lock. An index that a killed
    publish() had moved aside goes back to its place where nothing took it, which is no removal.
    """
    removed = []
    try:
        paths = sorted(Path(parent).iterdir())
    except OSError:
        return []  # no folder, or not ours to look into
    for path in paths:
        fields = _ASIDE.fullmatch(path.name)
        if fields is None or not _is_marked(path):
            continue
        try:
            fd = _lock(path)
        except OSError:
            continue  # a file system without locks: nobody knows whether it is a leftover
        if fd is None:
            continue
        try:
            if fields[2] == _OLD and _restored(path, Path(parent) / fields[1]):
                continue
            _remove(path)
            removed.append(path)
        finally:
            os.close(fd)
    return removed


# --- inside -----------------------------------------------------------------------------------------------------

# Descriptors that hold the locks of this process's temporary folders: a lock lasts as long as its descriptor is open.
_LOCKS: dict[Path, int] = {}


def _place(final: Path | str, kind: Kind) -> Path:
    """`final`, absolute, or where a symbolic link there leads to. Raises OptionsError for what is no path."""
    path = Path(final)
    if "\0" in str(path):
        raise OptionsError(f"{str(path)!r} contains a NUL character, which no path can. Choose another name.")
    path = path.absolute()
    try:
        if path.is_symlink() or path.name == "..":
            path = Path(os.path.realpath(path))
    except OSError as error:
        raise _unfit(path, error, kind) from None
    size = len(os.fsencode(path.name))
    if size > _NAME_BYTES_MAX:
        raise OptionsError(
            f"The name {path.name[:40]}... has {size} bytes, {kind.a}'s folder has at most {_NAME_BYTES_MAX}. "
            "Choose a shorter one."
        )
    return path


def _unfit(place: Path, error: OSError, kind: Kind) -> OptionsError | DiskFullError:
    """Why no folder can be made at a place."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = next(shutil.disk_usage(folder).free for folder in place.parents if folder.is_dir())
        return DiskFullError(path=place.parent, needed_bytes=free + 4096, free_bytes=free)
    return OptionsError(
        f"No {kind.word} can be built at {place}: {error.strerror} ({error.filename or place}). "
        "It needs a folder in which this user may make folders; choose another place."
    )


def _require_no_others(folder: Path, kind: Kind) -> None:
    """Raise IndexExistsError where something in an index's folder is not the index's."""
    listed = _listed(folder, kind)
    for path in sorted(folder.rglob("*")):
        if (name := path.relative_to(folder).as_posix()) not in listed:
            raise IndexExistsError(
                f"{folder / name} is not part of the {kind.word} in {folder}, and replacing that would remove it. "
                "Move it elsewhere, or choose another place."
            )


def _listed(folder: Path, kind: Kind) -> set[str]:
    """The files that make up an index, and the folders that hold them; where its manifest is damaged, all that may."""
    try:
        names: Collection[str] = read_manifest(folder, sizes=False).files
    except CorruptIndexError:
        names = kind.names
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    return folders | set(names) | {MANIFEST_NAME, MARKER_NAME, *kind.unlisted}


def _remove_listed(folder: Path, kind: Kind) -> None:
    """Remove an index, and nothing else in its folder; the manifest goes last, so that what is left can be judged."""
    try:
        _require_no_others(folder, kind)
        names = sorted(_listed(folder, kind) - {MANIFEST_NAME, "."}, reverse=True)
        for name in [*names, MANIFEST_NAME]:
            path = folder / name
            with contextlib.suppress(FileNotFoundError):  # another process may be removing it too
                if stat.S_ISDIR(path.lstat().st_mode):
                    path.rmdir()
                else:
                    path.unlink()
        folder.rmdir()
    except (OSError, VectorIndexError) as error:
        if folder.exists():
            # The new index is at its place: no failure, and without a marker nothing of anyone's is lost later.
            with contextlib.suppress(OSError):
                (folder / MARKER_NAME).unlink(missing_ok=True)
            log.warning("%s, the index that was replaced, was not removed entirely: %s", folder, error)


def _restored(aside: Path, final: Path) -> bool:
    """Move an index back to the place that a killed publish() had moved it from; False where something is there."""
    if os.path.lexists(final):
        return False
    aside.rename(final)
    (final / MARKER_NAME).unlink(missing_ok=True)
    _fsync(final.parent)
    return True


def _mark(folder: Path) -> None:
    (folder / MARKER_NAME).touch()


def _is_marked(path: Path) -> bool:
    """True for a folder with a marker; looks without opening or following anything."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode) and stat.S_ISREG((path / MARKER_NAME).lstat().st_mode)
    except OSError:
        return False


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where it is gone or someone else's. OSError: no locks here."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


def _unlock(folder: Path) -> None:
    fd = _LOCKS.pop(folder, None)
    if fd is not None:
        os.close(fd)


def _exchange(temporary: Path, final: Path) -> Path:
    """Swap the two; returns where the old one is now."""
    if sys.platform == "linux":
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is not None:
            names = os.fsencode(temporary), os.fsencode(final)
            if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
                return temporary
    # Where the system cannot exchange there is a moment without either; after a crash in it remove_leftovers() moves the
    # old one back. Until both are moved it is locked: nobody else may do so.
    aside = final.parent / f".{final.name}{_OLD}{secrets.token_hex(4)}"
    fd = None
    with contextlib.suppress(OSError):
        fd = _lock(final)
    try:
        final.rename(aside)
        try:
            temporary.rename(final)
        except BaseException:
            aside.rename(final)
            raise
    finally:
        if fd is not None:
            os.close(fd)
    return aside


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # Twice: another process may be removing it too.
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
