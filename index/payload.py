"""Payloads: one JSON object a row, or none, kept on disk and read when a hit asks for it.

PayloadWriter   append() rows in disk order, close()
PayloadFile     get() the JSON of rows; nothing is resident

Records lie in one file, then the offsets of all; the header that says where those begin is written last. Each record
carries a checksum of its own, so that damage is found by the read that meets it. docs/format.md describes each byte.
Not here: filters over payloads.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
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

_MAGIC = b"FVPAYLOD"
_FIELDS = struct.Struct("<8sIIQQ")
_CHECKSUM = struct.Struct("<I")
_OFFSET = struct.Struct("<q")
_SPAN = struct.Struct("<qq")

_encoder = msgspec.json.Encoder()


class PayloadWriter:
    """Writes payload/ of the generation in `folder`. A context manager; left by an exception it abandons the file.

    Streams: offsets wait in a nameless file beside it, so that memory does not grow with the rows.
    """

    def __init__(self, folder: Path | str) -> None:
        place = Path(folder) / PAYLOAD_FOLDER
        place.mkdir(exist_ok=True)
        self._rows, self._end = 0, _FIELDS.size
        self._data = (place / DATA_NAME).open("wb", buffering=1 << 20)
        self._offsets = tempfile.TemporaryFile(dir=place, buffering=1 << 16)  # noqa: SIM115 (open until close())
        self._data.write(_FIELDS.pack(_MAGIC, 0, 0, 0, 0))  # version 0: not finished

    def append(self, payloads: Iterable[Mapping[str, Any] | bytes | None]) -> None:
        """Add rows in disk order: a dict that JSON can hold, the bytes of a JSON object as they are, or None."""
        for payload in payloads:
            # The complement, not the same offset twice: one flipped bit must not turn a payload into none.
            self._offsets.write(_OFFSET.pack(~self._end if payload is None else self._end))
            if payload is not None:
                raw = payload if isinstance(payload, bytes) else _encoder.encode(payload)
                assert raw[:1] == b"{", "a payload is a JSON object"
                self._data.write(_CHECKSUM.pack(xxhash.xxh32_intdigest(raw)))
                self._data.write(raw)
                self._end += _CHECKSUM.size + len(raw)
            self._rows += 1

    def close(self) -> None:
        """Write the offsets, then the header. May be called twice."""
        if self._data.closed:
            return
        try:
            self._offsets.write(_OFFSET.pack(self._end))
            self._offsets.seek(0)
            shutil.copyfileobj(self._offsets, self._data, 1 << 20)
            self._data.flush()
            self._data.seek(0)
            self._data.write(_FIELDS.pack(_MAGIC, FORMAT_VERSION, 0, self._rows, self._end))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; without close() before, it is refused."""
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
    """The payloads of one generation, on disk, behind one descriptor. n: rows.

    Threads: any number at once; close() after the last call.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path, self._fd = folder, folder / PAYLOAD_FOLDER / DATA_NAME, -1
        self.n = self._offsets_at = 0

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
        """Close the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> PayloadFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _record(self, row: int) -> bytes | None:
        if not 0 <= row < self.n:
            raise IndexError(f"row {row} was asked for, {self._path} has rows 0 to {self.n - 1}")
        offset = self._offsets_at + row * _OFFSET.size
        first, second = _SPAN.unpack(self._read(offset, _SPAN.size))
        begin, end = max(first, ~first), max(second, ~second)
        fits = begin + _CHECKSUM.size < end if first >= 0 else begin == end
        if not fits or begin < _FIELDS.size or end > self._offsets_at:
            raise self._corrupt(CorruptReason.HEADER, "ascending offsets", f"{first}, {second}", offset)
        if first < 0:
            return None
        record = self._read(begin, end - begin)
        raw = record[_CHECKSUM.size :]
        (expected,), found = _CHECKSUM.unpack_from(record), xxhash.xxh32_intdigest(raw)
        if expected != found:
            raise self._corrupt(CorruptReason.CHECKSUM, expected, found, begin)
        return raw

    def _read(self, offset: int, n_bytes: int) -> bytes:
        try:
            raw = os.pread(self._fd, n_bytes, offset)
        except OSError as error:
            raise ReadFailedError(path=self._path, offset_bytes=offset, error_number=error.errno or 0) from error
        if len(raw) < n_bytes:
            raise self._corrupt(CorruptReason.SIZE, offset + n_bytes, os.fstat(self._fd).st_size, offset)
        return raw

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self._corrupt(CorruptReason.MISSING, "a file", "nothing", 0) from None
        magic, version, _, self.n, self._offsets_at = _FIELDS.unpack(self._read(0, _FIELDS.size))
        require_version((magic, version), _MAGIC, FORMAT_VERSION, self._path, folder=self._folder)
        size, needed = os.fstat(self._fd).st_size, self._offsets_at + _OFFSET.size * (self.n + 1)
        if size != needed:
            raise self._corrupt(CorruptReason.SIZE, needed, size, 0)

    def _corrupt(self, reason: CorruptReason, expected: int | str, found: int | str, offset: int) -> CorruptIndexError:
        return CorruptIndexError(
            path=self._path,
            offset_bytes=offset,
            reason=reason,
            expected=expected,
            found=found,
            folder=self._folder,
        )
