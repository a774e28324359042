"""Payloads: one JSON object a row, or none, kept on disk and read when a hit asks for it.

PayloadWriter   append() rows in disk order, close()
PayloadFile     get() the JSON of rows; nothing is resident

Each record carries a checksum of its own, so that damage is found by the read that meets it. docs/format.md describes
the two files. Not here: filters over payloads.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from index.errors import CorruptIndexError, CorruptReason, ReadFailedError
from index.fullview.headers import require_version

FORMAT_VERSION = 1
PAYLOAD_FOLDER = "payload"
DATA_NAME = "data.bin"
OFFSETS_NAME = "offsets.bin"

_DATA_MAGIC, _OFFSETS_MAGIC = b"FVPAYLOD", b"FVPAYOFF"
_DATA_FIELDS = struct.Struct("<8sII")
_OFFSETS_FIELDS = struct.Struct("<8sIIQQ")
_CHECKSUM = struct.Struct("<I")
_OFFSET = struct.Struct("<q")
_SPAN = struct.Struct("<qq")

_encoder = msgspec.json.Encoder()


class PayloadWriter:
    """Writes payload/ of the generation in `folder`. A context manager; left by an exception it abandons the files."""

    def __init__(self, folder: Path | str) -> None:
        place = Path(folder) / PAYLOAD_FOLDER
        place.mkdir(exist_ok=True)
        self._rows, self._end = 0, _DATA_FIELDS.size
        self._data = (place / DATA_NAME).open("wb", buffering=1 << 20)
        self._offsets = (place / OFFSETS_NAME).open("wb", buffering=1 << 16)
        self._data.write(_DATA_FIELDS.pack(_DATA_MAGIC, FORMAT_VERSION, 0))
        self._offsets.write(_OFFSETS_FIELDS.pack(_OFFSETS_MAGIC, 0, 0, 0, 0))  # version 0: not finished
        self._offsets.write(_OFFSET.pack(self._end))

    def append(self, payloads: Iterable[Mapping[str, Any] | bytes | None]) -> None:
        """Add rows in disk order: a dict that JSON can hold, the bytes of a JSON object as they are, or None."""
        for payload in payloads:
            if payload is not None:
                raw = payload if isinstance(payload, bytes) else _encoder.encode(payload)
                assert raw[:1] == b"{", "a payload is a JSON object"
                self._data.write(_CHECKSUM.pack(xxhash.xxh32_intdigest(raw)))
                self._data.write(raw)
                self._end += _CHECKSUM.size + len(raw)
            self._offsets.write(_OFFSET.pack(self._end))
            self._rows += 1

    def close(self) -> None:
        """Write the header last. May be called twice."""
        if self._offsets.closed:
            return
        try:
            self._data.flush()
            self._offsets.seek(0)
            self._offsets.write(_OFFSETS_FIELDS.pack(_OFFSETS_MAGIC, FORMAT_VERSION, 0, self._rows, self._end))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files as they are; without close() before, they are refused."""
        # Closing writes what is buffered, which a full disk refuses.
        try:
            self._data.close()
        finally:
            self._offsets.close()

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
    """The payloads of one generation, on disk. n: rows. Threads: any number at once; close() after the last call."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._place = folder, folder / PAYLOAD_FOLDER
        self._data_fd = self._offsets_fd = -1
        self.n = 0

    @classmethod
    def open(cls, folder: Path | str) -> PayloadFile:
        """Open payload/ in a generation's folder. Raises CorruptIndexError, UnsupportedFormatError."""
        file = cls(Path(folder))
        try:
            file._open()
        except BaseException:
            file.close()
            raise
        return file

    def get(self, rows: npt.ArrayLike) -> list[bytes | None]:
        """Rows int64 [m], each below n -> the JSON object of each, or None where the row has no payload.

        Raises CorruptIndexError naming file and offset for a damaged record, ReadFailedError, IndexError.
        """
        return [self._record(row) for row in np.asarray(rows, np.int64).tolist()]

    def close(self) -> None:
        """Close the files. May be called twice."""
        for fd in {self._data_fd, self._offsets_fd} - {-1}:
            os.close(fd)
        self._data_fd = self._offsets_fd = -1

    def __enter__(self) -> PayloadFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _record(self, row: int) -> bytes | None:
        if not 0 <= row < self.n:
            raise IndexError(f"row {row} was asked for, {self._place} has rows 0 to {self.n - 1}")
        offset = _OFFSETS_FIELDS.size + row * _OFFSET.size
        begin, end = _SPAN.unpack(self._read(self._offsets_fd, OFFSETS_NAME, offset, _SPAN.size))
        if begin == end:
            return None
        if not _DATA_FIELDS.size <= begin < end - _CHECKSUM.size or end > self._data_bytes:
            raise self._corrupt(OFFSETS_NAME, CorruptReason.HEADER, "ascending offsets", f"{begin}, {end}", offset)
        record = self._read(self._data_fd, DATA_NAME, begin, end - begin)
        raw = record[_CHECKSUM.size :]
        (expected,), found = _CHECKSUM.unpack_from(record), xxhash.xxh32_intdigest(raw)
        if expected != found:
            raise self._corrupt(DATA_NAME, CorruptReason.CHECKSUM, expected, found, begin)
        return raw

    def _read(self, fd: int, name: str, offset: int, n_bytes: int) -> bytes:
        try:
            raw = os.pread(fd, n_bytes, offset)
        except OSError as error:
            raise ReadFailedError(
                path=self._place / name, offset_bytes=offset, error_number=error.errno or 0
            ) from error
        if len(raw) < n_bytes:
            raise self._corrupt(name, CorruptReason.SIZE, offset + n_bytes, os.fstat(fd).st_size, offset)
        return raw

    def _open(self) -> None:
        self._data_fd = self._open_file(DATA_NAME)
        magic, version, _ = _DATA_FIELDS.unpack(self._read(self._data_fd, DATA_NAME, 0, _DATA_FIELDS.size))
        path = self._place / DATA_NAME
        require_version((magic, version), _DATA_MAGIC, FORMAT_VERSION, path, folder=self._folder)
        self._offsets_fd = self._open_file(OFFSETS_NAME)
        header = self._read(self._offsets_fd, OFFSETS_NAME, 0, _OFFSETS_FIELDS.size)
        magic, version, _, self.n, self._data_bytes = _OFFSETS_FIELDS.unpack(header)
        path = self._place / OFFSETS_NAME
        require_version((magic, version), _OFFSETS_MAGIC, FORMAT_VERSION, path, folder=self._folder)
        for fd, name, needed in (
            (self._data_fd, DATA_NAME, self._data_bytes),
            (self._offsets_fd, OFFSETS_NAME, _OFFSETS_FIELDS.size + _OFFSET.size * (self.n + 1)),
        ):
            size = os.fstat(fd).st_size
            if size != needed:
                raise self._corrupt(name, CorruptReason.SIZE, needed, size, 0)

    def _open_file(self, name: str) -> int:
        try:
            return os.open(self._place / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self._corrupt(name, CorruptReason.MISSING, "a file", "nothing", 0) from None

    def _corrupt(
        self, name: str, reason: CorruptReason, expected: int | str, found: int | str, offset: int
    ) -> CorruptIndexError:
        return CorruptIndexError(
            path=self._place / name,
            offset_bytes=offset,
            reason=reason,
            expected=expected,
            found=found,
            folder=self._folder,
        )
