"""Payloads: one JSON object a row, or none, kept on disk and read when a hit asks for it.

PayloadWriter   append() rows in disk order, close()
PayloadFile     get() the JSON of rows; nothing is resident

Records lie in one file, then a table of where each begins and of its checksum; the header, which says where the table
begins and holds its digest, is written last. So the header, which opening compares with the manifest, binds all: damage
is found by the read that meets it, and so is a file of another index. docs/format.md describes each byte.
Not here: filters over payloads.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from index.descriptor import Descriptor
from index.errors import CorruptIndexError, CorruptReason, ReadFailedError
from index.fullview.headers import require_version

FORMAT_VERSION = 1
PAYLOAD_FOLDER = "payload"
DATA_NAME = "data.bin"

_MAGIC = b"FVPAYLOD"
_FIELDS = struct.Struct("<8sIIQQQ24x")
_ROW = struct.Struct("<qI")
_END = struct.Struct("<q")
_SPAN = struct.Struct("<qIq")
_BLOCK_BYTES = 1 << 20

_encoder = msgspec.json.Encoder()


class PayloadWriter:
    """Writes payload/ of the generation in `folder`. A context manager; left by an exception it abandons the file.

    Streams: the table waits in a nameless file beside it, so that memory does not grow with the rows.
    """

    def __init__(self, folder: Path | str) -> None:
        place = Path(folder) / PAYLOAD_FOLDER
        place.mkdir(exist_ok=True)
        self._rows, self._end = 0, _FIELDS.size
        self._data = (place / DATA_NAME).open("wb", buffering=1 << 20)
        self._table = tempfile.TemporaryFile(dir=place, buffering=1 << 16)  # noqa: SIM115 (open until close())
        self._digest = xxhash.xxh3_64()
        self._data.write(_FIELDS.pack(_MAGIC, 0, 0, 0, 0, 0))  # version 0: not finished

    def append(self, payloads: Iterable[Mapping[str, Any] | bytes | None]) -> None:
        """Add rows in disk order: a dict that JSON can hold, the bytes of a JSON object as they are, or None."""
        for payload in payloads:
            if payload is None:
                # The complement, not the same offset twice: one flipped bit must not turn a payload into none.
                self._tell(_ROW.pack(~self._end, 0))
            else:
                raw = payload if isinstance(payload, bytes) else _encoder.encode(payload)
                assert raw[:1] == b"{", "a payload is a JSON object"
                self._tell(_ROW.pack(self._end, xxhash.xxh32_intdigest(raw)))
                self._data.write(raw)
                self._end += len(raw)
            self._rows += 1

    def _tell(self, entry: bytes) -> None:
        self._table.write(entry)
        self._digest.update(entry)

    def close(self) -> None:
        """Write the table, then the header. May be called twice."""
        if self._data.closed:
            return
        try:
            self._tell(_END.pack(self._end))
            self._table.seek(0)
            shutil.copyfileobj(self._table, self._data, _BLOCK_BYTES)
            self._data.flush()
            self._data.seek(0)
            digest = self._digest.intdigest()
            self._data.write(_FIELDS.pack(_MAGIC, FORMAT_VERSION, 0, self._rows, self._end, digest))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; without close() before, it is refused."""
        # Closing writes what is buffered, which a full disk refuses.
        try:
            self._data.close()
        finally:
            self._table.close()

    def __enter__(self) -> PayloadWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


class PayloadFile:
    """The payloads of one generation, on disk, behind one descriptor. n: rows.

    Threads: any number at once; close() waits for running calls.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / PAYLOAD_FOLDER / DATA_NAME
        self._file: Descriptor | None = None
        self.n = self._table_at = 0

    @classmethod
    def open(cls, folder: Path | str) -> PayloadFile:
        """Open payload/ in a generation's folder; reads the table, 12 bytes a row, once.

        Raises CorruptIndexError, UnsupportedFormatError, ReadFailedError.
        """
        file = cls(Path(folder))
        try:
            file._open()
        except BaseException:
            file.close()
            raise
        return file

    def get(self, rows: npt.ArrayLike) -> list[bytes | None]:
        """Rows int64 [m], each below n -> the JSON object of each, or None where the row has no payload.

        Raises CorruptIndexError naming file and offset for a damaged record, ReadFailedError, IndexError and, after
        close(), IndexClosedError.
        """
        with self._reading() as fd:
            return [self._record(fd, row) for row in np.asarray(rows, np.int64).tolist()]

    def close(self) -> None:
        """Wait for running calls and close the file. May be called twice."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> PayloadFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _reading(self) -> AbstractContextManager[int]:
        assert self._file is not None, "open() comes first"
        return self._file.reading()

    def _record(self, fd: int, row: int) -> bytes | None:
        if not 0 <= row < self.n:
            raise IndexError(f"row {row} was asked for, {self._path} has rows 0 to {self.n - 1}")
        offset = self._table_at + row * _ROW.size
        first, expected, second = _SPAN.unpack(self._read(fd, _SPAN.size, offset))
        begin, end = max(first, ~first), max(second, ~second)
        fits = begin < end if first >= 0 else begin == end
        if not fits or begin < _FIELDS.size or end > self._table_at:
            raise self._corrupt(CorruptReason.HEADER, "ascending offsets", f"{first}, {second}", offset)
        if first < 0:
            return None
        raw = self._read(fd, end - begin, begin)
        found = xxhash.xxh32_intdigest(raw)
        if expected != found:
            raise self._corrupt(CorruptReason.CHECKSUM, expected, found, begin)
        return raw

    def _read(self, fd: int, n_bytes: int, offset: int) -> bytes:
        try:
            raw = os.pread(fd, n_bytes, offset)
        except OSError as error:
            raise ReadFailedError(path=self._path, offset_bytes=offset, error_number=error.errno or 0) from error
        if len(raw) < n_bytes:
            raise self._corrupt(CorruptReason.SIZE, offset + n_bytes, os.fstat(fd).st_size, offset)
        return raw

    def _open(self) -> None:
        try:
            self._file = Descriptor(self._path)
        except FileNotFoundError:
            raise self._corrupt(CorruptReason.MISSING, "a file", "nothing", 0) from None
        with self._reading() as fd:
            magic, version, _, self.n, self._table_at, expected = _FIELDS.unpack(self._read(fd, _FIELDS.size, 0))
            require_version((magic, version), _MAGIC, FORMAT_VERSION, self._path, folder=self._folder)
            size, needed = os.fstat(fd).st_size, self._table_at + _ROW.size * self.n + _END.size
            if size != needed:
                raise self._corrupt(CorruptReason.SIZE, needed, size, 0)
            digest = xxhash.xxh3_64()
            for offset in range(self._table_at, size, _BLOCK_BYTES):
                digest.update(self._read(fd, min(_BLOCK_BYTES, size - offset), offset))
            if digest.intdigest() != expected:
                raise self._corrupt(CorruptReason.CHECKSUM, expected, digest.intdigest(), self._table_at)

    def _corrupt(self, reason: CorruptReason, expected: int | str, found: int | str, offset: int) -> CorruptIndexError:
        return CorruptIndexError(
            path=self._path,
            offset_bytes=offset,
            reason=reason,
            expected=expected,
            found=found,
            folder=self._folder,
        )
