"""Ids of rows: unsigned 64-bit integers and strings, exactly as they came, found by binary search on disk.

canonical_id()   what counts as an id, and the one spelling of a UUID
write_ids()      the files of ids/ from the ids in source order
IdTable          id -> row, id code -> id, ids in order

An id code is a uint64: the integer itself in a table of integers, else the id's rank in the order "integers ascending,
then strings by code point". So ascending codes are ascending ids, always. docs/format.md describes the files.

Not here: where a row's code is kept when pages have room for it (fullview/layout.py).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt

from index import id_lookup
from index.descriptor import Descriptor
from index.disk import save_array
from index.errors import BadIdError, CorruptIndexError, CorruptReason, DuplicateIdError, ReadFailedError
from index.fullview.headers import require_version

ID_MAX = 2**64 - 1
STRING_LENGTH_MAX = 255
FORMAT_VERSION = 1

IDS_FOLDER = "ids"
TABLE_NAME = "table.bin"
CODES_NAME = "codes.npy"

_MAGIC = b"FVIDTABL"
_FIELDS = struct.Struct("<8sIIQQQQ16x")
_KINDS: dict[int, Literal["integers", "mixed"]] = {1: "integers", 2: "mixed"}  # stored in byte 12; never renumber

_HEX = "[0-9a-fA-F]"
_HYPHENATED = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_UUID = re.compile(rf"(?:(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}}|{_HEX}{{32}})", re.ASCII | re.IGNORECASE)
_UUID_LENGTHS = frozenset((32, 36, 38, 45))

Id = int | str
IdArray = npt.NDArray[Any]  # uint64, or object where strings are
UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]


def canonical_id(value: object) -> Id:
    """The id that a value stands for: an int of 0 to 2^64 - 1, or a string of 1 to 255 characters without NUL.

    UUIDs come back hyphenated in lower case, whatever their spelling. Raises BadIdError naming the value.
    """
    if isinstance(value, str):
        return _canonical_string(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if 0 <= number <= ID_MAX:
            return number
        raise BadIdError(f"id {number} is out of range: an integer id is 0 to {ID_MAX}. Use a string for others.")
    if isinstance(value, UUID):
        return str(value)
    raise BadIdError(
        f"id {value!r} is a {type(value).__name__}: an id is an unsigned 64-bit integer or a string of 1 to "
        f"{STRING_LENGTH_MAX} characters."
    )


def _canonical_string(text: str) -> str:
    if not 1 <= len(text) <= STRING_LENGTH_MAX:
        raise BadIdError(
            f"id {text[:40]!r} has {len(text)} characters, a string id has 1 to {STRING_LENGTH_MAX}. "
            "Use a shorter name, or a hash of it."
        )
    if "\0" in text:
        raise BadIdError(f"id {text!r} contains a NUL character, which a string id must not. Remove it.")
    if len(text) in _UUID_LENGTHS and _UUID.fullmatch(text):
        return str(UUID(text))
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadIdError(f"id {text!r} contains half of a surrogate pair: a string id is valid Unicode.") from None
    return str(text)


def write_ids(
    folder: Path | str,
    ids: npt.NDArray[Any] | Sequence[object],
    disk_order: Int64Array,
    *,
    codes_file: bool = True,
) -> UInt64Array:
    """Write ids/ of the generation in `folder`, and return each row's id code, uint64 [n], in disk order.

    ids: integers or strings, mixed as they please, in source order. disk_order: int64 [n], disk row -> source row.
    codes_file: also write ids/codes.npy, which a layout without ids in its pages needs.
    Raises BadIdError naming the first bad id and its row, DuplicateIdError (counted after UUIDs are made one).
    Memory: 24 bytes a row beside the ids themselves; strings are sorted in memory.
    """
    integers, integer_rows, strings, string_rows = _split(ids)
    n = len(integers) + len(strings)
    assert len(disk_order) == n, f"{n} ids, but {len(disk_order)} rows in disk order"
    disk_row = np.full(n, -1, np.int64)
    disk_row[disk_order] = np.arange(n)
    assert n == 0 or disk_row.min() >= 0, "disk_order is not a permutation"

    order = np.argsort(integers, kind="stable")
    integers, integer_rows = integers[order], integer_rows[order]
    _refuse_duplicates(integers, integer_rows)
    ranked = sorted(range(len(strings)), key=strings.__getitem__)
    strings, string_rows = [strings[i] for i in ranked], string_rows[ranked]
    _refuse_duplicates(strings, string_rows)

    rows = disk_row[np.concatenate([integer_rows, string_rows])]  # rank -> disk row
    codes = np.empty(n, np.uint64)
    codes[rows] = np.arange(n, dtype=np.uint64) if strings else integers

    place = Path(folder) / IDS_FOLDER
    place.mkdir(exist_ok=True)
    raw = [text.encode() for text in strings]
    ends = np.fromiter(accumulate(map(len, raw), initial=0), np.dtype("<i8"), len(raw) + 1)
    kind = 2 if strings else 1
    with (place / TABLE_NAME).open("wb") as file:
        file.write(_FIELDS.pack(_MAGIC, FORMAT_VERSION, kind, n, len(integers), len(strings), int(ends[-1])))
        file.write(integers.astype("<u8", copy=False).data)
        file.write(rows.astype("<i8", copy=False).data)
        if strings:
            file.write(ends.data)
            file.writelines(raw)
    if codes_file:
        save_array(place / CODES_NAME, codes.astype("<u8", copy=False))
    return codes


class IdTable:
    """The ids of one generation, on disk, behind one descriptor. Nothing is resident that grows with n.

    kind: "integers" or "mixed" (strings occur). n: ids. Threads: any number at once; close() waits for running calls.
    All calls may raise ReadFailedError, CorruptIndexError and, after close(), IndexClosedError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / IDS_FOLDER / TABLE_NAME
        self._file: Descriptor | None = None
        self.kind: Literal["integers", "mixed"] = "integers"
        self.n = self._n_integers = self._n_strings = 0
        self._rows_at = self._offsets_at = self._strings_at = 0

    @classmethod
    def open(cls, folder: Path | str) -> IdTable:
        """Open ids/ in a generation's folder. Raises CorruptIndexError, UnsupportedFormatError."""
        table = cls(Path(folder))
        try:
            table._open()
        except BaseException:
            table.close()
            raise
        return table

    def rows_of(self, ids: npt.NDArray[Any] | Iterable[object]) -> Int64Array:
        """Ids [m] -> rows int64 [m], -1 where an id is not there. Raises BadIdError for what is no id."""
        integers, integer_places, strings, string_places = _split(ids)
        rows = np.full(len(integers) + len(strings), -1, np.int64)
        rows[integer_places] = self._rows_at_ranks(*self._integer_ranks(integers))
        rows[string_places] = self._rows_at_ranks(*self._string_ranks(strings))
        return rows

    def ids_of_codes(self, codes: UInt64Array) -> IdArray:
        """Id codes uint64 [...] -> ids of the same shape: uint64, or object (int, str) in a mixed table.

        In a mixed table a code that no id has (padding) gives None.
        """
        codes = np.asarray(codes, np.uint64)
        if self.kind == "integers":
            return codes
        found = np.full(codes.size, None, object)
        flat = codes.ravel()
        known = np.flatnonzero(flat < self.n)
        ranks = flat[known].astype(np.int64)
        low = ranks < self._n_integers
        found[known[low]] = self._integers_at(ranks[low]).tolist()
        found[known[~low]] = self._strings_of(ranks[~low] - self._n_integers)
        return found.reshape(codes.shape)

    def in_order(self, start_id: Id | None, limit: int) -> tuple[IdArray, Int64Array]:
        """The first `limit` ids that are not below start_id (None: from the first on), ascending, and their rows.

        Returns ids [m] (uint64, or object in a mixed table) and rows int64 [m], m <= limit.
        """
        start = 0 if start_id is None else self._rank_of(canonical_id(start_id))
        ranks = np.arange(start, max(start, min(self.n, start + limit)))
        if self.kind == "integers":
            return self._integers_at(ranks), self._rows_at_ranks(ranks)
        return self.ids_of_codes(ranks.astype(np.uint64)), self._rows_at_ranks(ranks)

    def codes(self) -> UInt64Array:
        """All rows' id codes, uint64 [n], in disk order, into memory (8 bytes a row). Only where ids/codes.npy is."""
        path = self._folder / IDS_FOLDER / CODES_NAME
        with self._reading():
            pass  # a closed table reads no file
        try:
            codes = np.load(path, allow_pickle=False)
        except FileNotFoundError:
            raise self._corrupt(path, CorruptReason.MISSING, "a file", "nothing") from None
        except ValueError as error:
            raise self._corrupt(path, CorruptReason.HEADER, "an array of uint64", str(error)) from None
        if codes.shape != (self.n,) or codes.dtype != np.dtype("<u8"):
            found = f"{codes.dtype} {codes.shape}"
            raise self._corrupt(path, CorruptReason.HEADER, f"uint64 ({self.n},)", found)
        return np.asarray(codes, np.uint64)

    def close(self) -> None:
        """Wait for running calls and close the file. May be called twice."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> IdTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- looking up ---------------------------------------------------------------------------------------------

    def _integer_ranks(self, integers: UInt64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        ranks, present = np.empty(len(integers), np.int64), np.zeros(len(integers), np.bool_)
        with self._reading() as fd:
            code = id_lookup.lower_bound_integers(fd, _FIELDS.size, self._n_integers, integers, ranks, present)
        self._raise_unless_ok(code)
        return ranks, present

    def _string_ranks(self, strings: list[str]) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        ranks, present = np.zeros(len(strings), np.int64), np.zeros(len(strings), np.bool_)
        if self._n_strings and strings:
            raw = [text.encode() for text in strings]
            ends = np.fromiter(accumulate(map(len, raw), initial=0), np.int64, len(raw) + 1)
            wanted = np.frombuffer(b"".join(raw), np.uint8)
            with self._reading() as fd:
                code = id_lookup.lower_bound_strings(
                    fd, self._offsets_at, self._strings_at, self._n_strings, wanted, ends, ranks, present
                )
            self._raise_unless_ok(code)
        return ranks + self._n_integers, present

    def _rank_of(self, value: Id) -> int:
        if isinstance(value, str):
            return int(self._string_ranks([value])[0][0])
        return int(self._integer_ranks(np.array([value], np.uint64))[0][0])

    def _rows_at_ranks(self, ranks: Int64Array, present: npt.NDArray[np.bool_] | None = None) -> Int64Array:
        """Rows int64 [m] of ids at ranks int64 [m]; -1 where not present."""
        rows = np.full(len(ranks), -1, np.int64)
        here = np.arange(len(ranks)) if present is None else np.flatnonzero(present)
        found = self._words_at(self._rows_at, ranks[here])
        outside = np.flatnonzero((found < 0) | (found >= self.n))
        if len(outside):
            offset = self._rows_at + 8 * int(ranks[here][outside[0]])
            found_text = f"row {found[outside[0]]}"
            raise self._corrupt(self._path, CorruptReason.HEADER, f"a row below {self.n}", found_text, offset=offset)
        rows[here] = found
        return rows

    def _integers_at(self, ranks: Int64Array) -> UInt64Array:
        return self._words_at(_FIELDS.size, ranks).view(np.uint64)

    def _words_at(self, offset: int, positions: Int64Array) -> Int64Array:
        words = np.empty(len(positions), np.int64)
        with self._reading() as fd:
            code = id_lookup.read_words(fd, offset, positions, words)
        self._raise_unless_ok(code)
        return words

    def _strings_of(self, ranks: Int64Array) -> list[str]:
        raw = np.empty((len(ranks), id_lookup.STRING_BYTES_MAX), np.uint8)
        lengths = np.empty(len(ranks), np.int64)
        with self._reading() as fd:
            code = id_lookup.read_strings(fd, self._offsets_at, self._strings_at, ranks, raw, lengths)
        self._raise_unless_ok(code)
        try:
            return [row[:length].tobytes().decode() for row, length in zip(raw, lengths, strict=True)]
        except UnicodeDecodeError as error:
            raise self._corrupt(self._path, CorruptReason.HEADER, "UTF-8", str(error)) from None

    # --- opening ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        path = self._path
        try:
            self._file = Descriptor(path)
        except FileNotFoundError:
            raise self._corrupt(path, CorruptReason.MISSING, "a file", "nothing") from None
        with self._reading() as fd:
            size, header = os.fstat(fd).st_size, os.pread(fd, _FIELDS.size, 0)
        if len(header) < _FIELDS.size:
            raise self._corrupt(path, CorruptReason.SIZE, _FIELDS.size, size)
        magic, version, kind, n, n_integers, n_strings, n_bytes = _FIELDS.unpack(header)
        require_version((magic, version), _MAGIC, FORMAT_VERSION, path, folder=self._folder)
        if kind not in _KINDS or n != n_integers + n_strings or (kind == 2) != (n_strings > 0):
            found = f"kind {kind}, {n} = {n_integers} + {n_strings} ids"
            raise self._corrupt(path, CorruptReason.HEADER, "kind 1 or 2 and a sum", found, offset=12)
        self.kind, self.n, self._n_integers, self._n_strings = _KINDS[kind], n, n_integers, n_strings
        self._rows_at = _FIELDS.size + 8 * n_integers
        self._offsets_at = self._rows_at + 8 * n
        self._strings_at = self._offsets_at + (8 * (n_strings + 1) if n_strings else 0)
        if size != self._strings_at + n_bytes:
            raise self._corrupt(path, CorruptReason.SIZE, self._strings_at + n_bytes, size)

    def _reading(self) -> AbstractContextManager[int]:
        assert self._file is not None, "open() comes first"
        return self._file.reading()

    def _raise_unless_ok(self, code: int | np.int64) -> None:
        if code == id_lookup.READ_OK:
            return
        path = self._path
        if code < 0:
            raise ReadFailedError(path=path, offset_bytes=0, error_number=-int(code))
        if code == id_lookup.READ_SHORT:
            raise self._corrupt(path, CorruptReason.SIZE, "the size it had when it was opened", "less")
        raise self._corrupt(path, CorruptReason.HEADER, "ascending offsets", "an impossible length")

    def _corrupt(
        self, path: Path, reason: CorruptReason, expected: int | str, found: int | str, *, offset: int = 0
    ) -> CorruptIndexError:
        return CorruptIndexError(
            path=path, offset_bytes=offset, reason=reason, expected=expected, found=found, folder=self._folder
        )


def _split(
    ids: npt.NDArray[Any] | Iterable[object],
) -> tuple[UInt64Array, Int64Array, list[str], Int64Array]:
    """Canonical integers uint64 [a] with their places int64 [a], strings [b] with theirs."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "ui":
        negative = np.flatnonzero(ids < 0)
        if negative.size:
            place = int(negative[0])
            raise _numbered(BadIdError(f"id {ids[place]} is negative: an integer id is 0 to {ID_MAX}."), place)
        known_integers: UInt64Array = np.ascontiguousarray(ids, np.uint64)
        return known_integers, np.arange(ids.size), [], np.empty(0, np.int64)
    integers: list[int] = []
    strings: list[str] = []
    places: tuple[list[int], list[int]] = ([], [])
    for place, value in enumerate(ids):
        try:
            known = canonical_id(value)
        except BadIdError as error:
            raise _numbered(error, place) from None
        if isinstance(known, str):
            strings.append(known)
            places[1].append(place)
        else:
            integers.append(known)
            places[0].append(place)
    return np.array(integers, np.uint64), np.array(places[0], np.int64), strings, np.array(places[1], np.int64)


def _numbered(error: BadIdError, place: int) -> BadIdError:
    return BadIdError(f"{error} It is number {place:,} of the ids, counted from 0.")


def _refuse_duplicates(ids: UInt64Array | list[str], rows: Int64Array) -> None:
    if isinstance(ids, list):
        again = [i for i in range(len(ids) - 1) if ids[i] == ids[i + 1]][:1]
    else:
        again = np.flatnonzero(ids[1:] == ids[:-1])[:1].tolist()
    for i in again:
        value = ids[i]
        pair = sorted((int(rows[i]), int(rows[i + 1])))
        raise DuplicateIdError(id=value if isinstance(value, str) else int(value), rows=(pair[0], pair[1]))
