"""The vector file of an open generation: its descriptor, its checksums in memory, and the way it is read.

VectorFile.open()     choose and try a way of reading; believe nothing unchecked
VectorFile.reader()   a PageReader, one for each thread that searches
VectorFile.close()    waits for reads in flight

The descriptor is taken at open(): replacing or deleting the folder does not touch who has it open. Pages of a search
may come past the page cache, scans go through it: a scan opens the same file anew and closes it, so that an idle index
holds one descriptor.
Ways, in this order: Linux AIO with O_DIRECT, threads with O_DIRECT, the page cache. The reason for not taking an
earlier one is kept in `reason` and logged once.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from index.errors import (
    CorruptIndexError,
    CorruptReason,
    IndexClosedError,
    OptionsError,
    ReadFailedError,
    UnknownIndexError,
)
from index.fullview.buffered import BufferedReader
from index.fullview.headers import (
    SUM_HEADER_BYTES,
    SUMS_NAME,
    VECTORS_NAME,
    check_sum_header,
    check_vector_header,
)
from index.fullview.layout import PageLayout
from index.fullview.linux_aio import AioRefusedError, LinuxAioReader
from index.fullview.page_reader import PageReader, aligned_pages
from index.fullview.threads import ThreadsReader, read_pool
from index.options import IoMode

log = logging.getLogger(__name__)

UInt32Array = npt.NDArray[np.uint32]


class DirectRefusedError(Exception):
    """The file system does not read with O_DIRECT; the text says how it refused."""


class VectorFile:
    """vectors.bin, open for reading; made by open().

    mode, reason: how pages are read, and why not in a better way (None: it is the best, or it was asked for).
    page_fd, direct: the descriptor for pages, and whether it reads past the page cache.
    checksums: uint32 [pages of the file], resident. Threads: reader() and close() from any.
    After close() its readers raise IndexClosedError.
    """

    def __init__(self, folder: Path, layout: PageLayout) -> None:
        self.path, self.layout = folder / VECTORS_NAME, layout
        self.mode, self.reason = IoMode.BUFFERED, None  # type: IoMode, str | None
        self.page_fd, self.direct = -1, False
        self._scan_fd = -1  # held only where scan_descriptor() cannot open the file anew
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._readers: weakref.WeakSet[PageReader] = weakref.WeakSet()
        # The reader that tried the mode goes to whoever asks first: giving an AIO context back takes the kernel 30 ms.
        self._spare: PageReader | None = None
        self.checksums = load_checksums(folder / SUMS_NAME, layout)

    @classmethod
    def open(cls, folder: Path | str, layout: PageLayout, io_mode: str = "auto") -> VectorFile:
        """Open the vector file in a generation's folder.

        io_mode: "auto", or one of IoMode, which is then used or refused with OptionsError, never replaced. "threads"
        works without O_DIRECT too. Raises UnknownIndexError, CorruptIndexError, UnsupportedFormatError or
        ReadFailedError.
        """
        if io_mode != "auto" and io_mode not in list(IoMode):
            raise OptionsError(f"io_mode is {io_mode!r}, it must be auto, {', '.join(IoMode)}")
        if not Path(folder).is_dir():
            raise UnknownIndexError(f"{folder} is not a folder of an index")
        file = cls(Path(folder), layout)
        try:
            file.page_fd = _open_file(file.path, layout)
            file._choose_mode(io_mode)
            file._check_header()
        except BaseException:
            file.close()
            raise
        if file.reason is not None:
            log.warning("%s is read in mode %s: %s", file.path, file.mode.value, file.reason)
        return file

    def reader(self) -> PageReader:
        """A new reader, for one thread. Where the system has no more AIO contexts it reads by threads and says so.

        Raises IndexClosedError after close().
        """
        with self._locked():
            if self.page_fd < 0:
                raise IndexClosedError(f"{self.path} was closed; open the index again")
            spare, self._spare = self._spare, None
            return spare or self._new_reader()

    def pool(self) -> ThreadPoolExecutor:
        """The threads that this file's readers share. For readers only."""
        if self._pid != os.getpid():
            self._adopt()
        if self._pool is None:
            self._pool = read_pool()
        return self._pool

    @contextmanager
    def scan_descriptor(self, *, aligned: bool) -> Iterator[int]:
        """A descriptor for one sequential read through the page cache. For readers only.

        aligned: the read's buffer begins at a page boundary. It may then go past the page cache where no descriptor is
        left; others raise ReadFailedError.
        """
        if not self.direct or self._scan_fd >= 0:
            yield self._scan_fd if self.direct else self.page_fd
            return
        try:
            fd = _open_again(self.page_fd)
        except OSError as error:
            if not aligned:
                raise ReadFailedError(path=self.path, offset_bytes=0, error_number=error.errno or 0) from error
            fd = -1
        try:
            yield fd if fd >= 0 else self.page_fd
        finally:
            if fd >= 0:
                os.close(fd)

    def resident_bytes(self) -> int:
        """Memory that grows with n: the checksums."""
        return self.checksums.nbytes

    def close(self) -> None:
        """Wait for reads in flight, close all readers and the file. May be called twice."""
        with self._locked():
            self._spare = None
            for reader in list(self._readers):
                reader.close()
            if self._pool is not None:
                self._pool.shutdown(wait=True)
                self._pool = None
            for fd in {self.page_fd, self._scan_fd} - {-1}:
                os.close(fd)
            self.page_fd = self._scan_fd = -1

    def __enter__(self) -> VectorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "page_fd", -1) >= 0:
            self.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _locked(self) -> threading.Lock:
        if self._pid != os.getpid():
            self._adopt()
        return self._lock

    def _adopt(self) -> None:
        # In a child after a fork: threads are gone, and a lock may be held by one that does not exist here.
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pool = None

    def _choose_mode(self, io_mode: str) -> None:
        wanted = None if io_mode == "auto" else IoMode(io_mode)
        if wanted is IoMode.BUFFERED:
            return
        try:
            self._take_direct(open_direct(self.path))
        except DirectRefusedError as refusal:
            if wanted is IoMode.LINUX_AIO:
                raise OptionsError(
                    f'io_mode is linux_aio, but {refusal}. Use "auto", threads or buffered.'
                ) from refusal
            self.mode, self.reason = wanted or IoMode.BUFFERED, str(refusal)
            return
        self.mode = wanted or IoMode.LINUX_AIO
        if self.mode is IoMode.LINUX_AIO:
            try:
                self._spare = LinuxAioReader(self)
                self._readers.add(self._spare)
            except AioRefusedError as refusal:
                if wanted is IoMode.LINUX_AIO:
                    raise OptionsError(f"io_mode is linux_aio, but {refusal}. Use auto or threads.") from refusal
                self.mode, self.reason = IoMode.THREADS, str(refusal)

    def _take_direct(self, fd: int) -> None:
        buffered, self.page_fd, self.direct = self.page_fd, fd, True
        try:
            again = _open_again(fd)
        except OSError as error:
            log.warning("%s takes two descriptors: a scan cannot open it anew by /proc (%s)", self.path, error.strerror)
            self._scan_fd = buffered
            return
        os.close(again)
        os.close(buffered)

    def _new_reader(self) -> PageReader:
        reader: PageReader
        if self.mode is IoMode.BUFFERED:
            reader = BufferedReader(self, reason=self.reason)
        elif self.mode is IoMode.THREADS:
            reader = ThreadsReader(self, reason=self.reason)
        else:
            try:
                reader = LinuxAioReader(self, reason=self.reason)
            except AioRefusedError as refusal:
                if self.reason is None:
                    self.reason = f"some readers use threads: {refusal}"
                    log.warning("%s: %s", self.path, self.reason)
                reader = ThreadsReader(self, reason=str(refusal))
        self._readers.add(reader)
        return reader

    def _check_header(self) -> None:
        # Read as a search will read, so that the mode is known to work and its kernels are compiled.
        header, reader = aligned_pages(1), self.reader()
        reader.sequential(0, 1, header)
        check_vector_header(header.tobytes(), self.layout, self.path)
        reader.begin(np.zeros(1, np.int64), header)
        reader.finish()
        self._spare = reader


def open_direct(path: Path) -> int:
    """A descriptor that reads 4 KiB pages past the page cache. Raises DirectRefusedError."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        raise DirectRefusedError("this system has no O_DIRECT")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flag)
    except OSError as error:
        raise DirectRefusedError(f"the file system refuses O_DIRECT ({error.strerror})") from error
    try:
        os.preadv(fd, [aligned_pages(1).data], 0)
    except OSError as error:
        os.close(fd)
        raise DirectRefusedError(f"the file system refuses direct reads of 4 KiB ({error.strerror})") from error
    return fd


def _open_again(fd: int) -> int:
    """A buffered descriptor of the file that fd has open, whatever has become of its path. Raises OSError."""
    # Linux only. A duplicate of fd would share its O_DIRECT.
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    if not os.path.samestat(os.fstat(fd), os.fstat(again)):
        os.close(again)
        raise OSError(errno.ESTALE, "/proc/self/fd led to another file")
    _read_no_further(again)
    return again


def _open_file(path: Path, layout: PageLayout) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _missing(path) from error
    size = os.fstat(fd).st_size
    if size != layout.file_bytes:
        os.close(fd)
        raise CorruptIndexError(
            path=path, offset_bytes=0, reason=CorruptReason.SIZE, expected=layout.file_bytes, found=size
        )
    _read_no_further(fd)
    return fd


def _read_no_further(fd: int) -> None:
    if hasattr(os, "posix_fadvise"):
        # Without this a read of one page brings 128 KiB.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def load_checksums(path: Path, layout: PageLayout) -> UInt32Array:
    """vectors.sum, verified: uint32 [pages of the file]. Raises CorruptIndexError, UnsupportedFormatError."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise _missing(path) from error
    needed = SUM_HEADER_BYTES + 4 * layout.file_pages
    if len(raw) >= SUM_HEADER_BYTES:
        expected = check_sum_header(raw, count=layout.file_pages, path=path)
    if len(raw) != needed:
        raise CorruptIndexError(path=path, offset_bytes=0, reason=CorruptReason.SIZE, expected=needed, found=len(raw))
    found = xxhash.xxh3_64_intdigest(memoryview(raw)[SUM_HEADER_BYTES:])
    if found != expected:
        raise CorruptIndexError(
            path=path, offset_bytes=0, reason=CorruptReason.CHECKSUM, expected=expected, found=found
        )
    return np.frombuffer(raw, "<u4", offset=SUM_HEADER_BYTES).astype(np.uint32)


def _missing(path: Path) -> CorruptIndexError:
    return CorruptIndexError(
        path=path, offset_bytes=0, reason=CorruptReason.MISSING, expected="a file", found="nothing"
    )
