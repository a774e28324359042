"""Reading every byte of a generation and comparing it with what was written: `fullview check`.

check_folder()      all that is wrong, each with file and offset
verify_contents()   what opening believes: refuse the first file that is not the one the manifest lists

check_folder() compares every page of vectors.bin with its checksum, every other file with the manifest's. Reads only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xxhash

from index.descriptor import NotAFileError, open_regular
from index.errors import CorruptIndexError, CorruptReason, ReadFailedError, VectorIndexError
from index.fullview.checksum import find_bad_pages
from index.fullview.headers import SUMS_NAME, VECTORS_NAME
from index.fullview.layout import PAGE_BYTES, PageLayout
from index.fullview.vector_file import load_checksums
from index.manifest import HEAD_BYTES, READ_IN_PARTS, FileEntry, Manifest, read_manifest

_BLOCK_BYTES = 256 * PAGE_BYTES
_FOR_PEOPLE = ("report.json",)
_BELIEVED_IF_THERE = ("lists/route.bin",)


def check_folder(
    folder: Path | str, on_progress: Callable[[int, int], None] | None = None
) -> list[CorruptIndexError | ReadFailedError]:
    """Every problem of the generation in `folder`, empty where there is none; each names file and offset.

    on_progress(bytes done, bytes in all) is called after each MiB. Raises UnknownIndexError and UnsupportedFormatError,
    which are no damage. A damaged manifest is the only problem then named: nothing else can be judged without it.
    """
    folder = Path(folder)
    try:
        manifest = read_manifest(folder)
    except CorruptIndexError as problem:
        if problem.path.name == "manifest.json":
            return [problem]
        manifest = read_manifest(folder, sizes=False)
    total = sum(entry.size for entry in manifest.files.values())
    done = 0
    problems: list[CorruptIndexError | ReadFailedError] = []
    for name, entry in manifest.files.items():
        for found in _check_file(folder, name, entry, manifest):
            if isinstance(found, int):
                done += found
                if on_progress is not None:
                    on_progress(min(done, total), total)
            else:
                problems.append(found)
    return problems


def verify_contents(folder: Path | str, manifest: Manifest) -> None:
    """Compare with the manifest every file that an index believes when it is open; of READ_IN_PARTS only the heads, which
    bind what those files then verify when they are read.

    Reads one file after the other in blocks of 1 MiB. Raises CorruptIndexError for the first that differs,
    ReadFailedError.
    """
    folder = Path(folder)
    for name in _BELIEVED_IF_THERE:
        if name not in manifest.files and os.path.lexists(folder / name):
            raise _corrupt(folder, name, CorruptReason.HEADER, "no such file", "one that the manifest does not list")
    for name, entry in manifest.files.items():
        if name in _FOR_PEOPLE:
            continue
        whole = name not in READ_IN_PARTS
        expected = entry.xxh3 if whole else entry.head
        if expected is None:
            continue  # written before heads were
        found = _hash(folder, name, None if whole else HEAD_BYTES)
        if found != expected:
            raise _corrupt(folder, name, CorruptReason.CHECKSUM, expected, found)


def _hash(folder: Path, name: str, limit: int | None) -> str:
    """xxh3 of a file, or of its first `limit` bytes."""
    path, digest, offset = folder / name, xxhash.xxh3_64(), 0
    try:
        with open(open_regular(path), "rb", buffering=0) as file:  # noqa: PTH123 (a descriptor)
            while block := file.read(limit or _BLOCK_BYTES):
                digest.update(block)
                offset += len(block)
                if limit is not None:
                    break
    except NotAFileError as error:
        raise _corrupt(folder, name, CorruptReason.HEADER, "a file", str(error)) from None
    except FileNotFoundError:
        raise _corrupt(folder, name, CorruptReason.MISSING, "a file", "nothing") from None
    except OSError as error:
        raise ReadFailedError(path=path, offset_bytes=offset, error_number=error.errno or 0) from error
    return digest.hexdigest()


def _check_file(
    folder: Path, name: str, entry: FileEntry, manifest: Manifest
) -> Iterator[int | CorruptIndexError | ReadFailedError]:
    """Bytes read, and problems, as they come."""
    path = folder / name
    try:
        fd = open_regular(path)
    except NotAFileError as error:
        yield _corrupt(folder, name, CorruptReason.HEADER, "a file", str(error))
        return
    except OSError as error:
        yield _corrupt(
            folder, name, CorruptReason.MISSING, f"a file of {entry.size} bytes", error.strerror or "nothing"
        )
        return
    try:
        size = os.fstat(fd).st_size
        if size != entry.size:
            yield _corrupt(folder, name, CorruptReason.SIZE, entry.size, size)
        pages = _PageCheck(folder, manifest) if name == VECTORS_NAME else None
        digest, bad_pages, unread = xxhash.xxh3_64(), 0, False
        for offset, block in _blocks(fd, size):
            if isinstance(block, OSError):
                unread = True
                yield ReadFailedError(path=path, offset_bytes=offset, error_number=block.errno or 0)
                continue
            digest.update(block)
            for problem in pages.problems(offset, block) if pages else ():
                bad_pages += 1
                yield problem
            yield len(block)
        # Where pages or sizes already say what is wrong, the whole file's checksum adds nothing.
        if size == entry.size and not bad_pages and not unread and digest.hexdigest() != entry.xxh3:
            yield _corrupt(folder, name, CorruptReason.CHECKSUM, entry.xxh3, digest.hexdigest())
    finally:
        os.close(fd)


def _blocks(fd: int, size: int) -> Iterator[tuple[int, bytes | OSError]]:
    """The file in blocks with their offsets; page by page, with the errors, where a block cannot be read."""
    for start in range(0, size, _BLOCK_BYTES):
        stop = min(start + _BLOCK_BYTES, size)
        try:
            yield start, os.pread(fd, stop - start, start)
        except OSError:
            for offset in range(start, stop, PAGE_BYTES):
                try:
                    yield offset, os.pread(fd, min(PAGE_BYTES, stop - offset), offset)
                except OSError as error:
                    yield offset, error


class _PageCheck:
    """Compares blocks of vectors.bin with vectors.sum; without a readable vectors.sum it finds nothing."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        layout = PageLayout(manifest.n, manifest.dim, np.dtype(manifest.dtype))
        try:
            self._expected = load_checksums(folder / SUMS_NAME, layout)
        except (VectorIndexError, OSError):
            self._expected = np.empty(0, np.uint32)  # vectors.sum is reported as a file of its own

    def problems(self, offset: int, block: bytes) -> Iterator[CorruptIndexError]:
        first = offset // PAGE_BYTES
        count = min(len(block) // PAGE_BYTES, len(self._expected) - first)
        if count <= 0:
            return
        pages = np.frombuffer(block, np.uint8, count * PAGE_BYTES).reshape(count, PAGE_BYTES)
        expected, found = self._expected[first : first + count], np.empty(count, np.uint32)
        if find_bad_pages(pages, expected, found):
            for page in np.flatnonzero(expected != found).tolist():
                values = int(expected[page]), int(found[page])
                yield _corrupt(
                    self._folder, VECTORS_NAME, CorruptReason.CHECKSUM, *values, offset=(first + page) * PAGE_BYTES
                )


def _corrupt(
    folder: Path, name: str, reason: CorruptReason, expected: int | str, found: int | str, *, offset: int = 0
) -> CorruptIndexError:
    return CorruptIndexError(
        path=folder / name, offset_bytes=offset, reason=reason, expected=expected, found=found, folder=folder
    )
