"""How much of a write-ahead log is no whole transaction: what a torn write left, which SQLite passes over.

Format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_EXAMINED_BYTES_MAX = 16_000_000
"""Of a longer log only its length is looked at: a second for each 20 MB is too much for a line in the log."""
_MAGIC = 0x377F0682  # the lowest bit tells the byte order of checksums


def dropped_bytes(path: Path) -> int:
    """Bytes at the end of a log that SQLite will not read, frames of an earlier round of the log left out; 0: none."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return 0
    if len(raw) < _HEADER.size:
        return len(raw)
    if len(raw) > _EXAMINED_BYTES_MAX:
        return (len(raw) - _HEADER.size) % (_FRAME.size + int(_HEADER.unpack_from(raw)[2]))
    magic, _, page_bytes, _, salt1, salt2, sum1, sum2 = (int(word) for word in _HEADER.unpack_from(raw))
    order = ">" if magic & 1 else "<"
    if magic & ~1 != _MAGIC or _sums(raw[:24], (0, 0), order) != (sum1, sum2):
        return len(raw)
    sums, at, whole = (sum1, sum2), _HEADER.size, _HEADER.size
    while at + _FRAME.size + page_bytes <= len(raw):
        _, commit, frame_salt1, frame_salt2, *expected = _FRAME.unpack_from(raw, at)
        if (frame_salt1, frame_salt2) != (salt1, salt2):
            # Written before the log began anew: no loss, as long as it goes on in whole frames.
            return (len(raw) - at) % (_FRAME.size + page_bytes) + at - whole
        body = raw[at + _FRAME.size : at + _FRAME.size + page_bytes]
        sums = _sums(body, _sums(raw[at : at + 8], sums, order), order)
        if sums != tuple(expected):
            break
        at += _FRAME.size + page_bytes
        if commit:
            whole = at
    return len(raw) - whole


def _sums(raw: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    one, two = sums
    words = struct.unpack(f"{order}{len(raw) // 4}I", raw)
    for x, y in zip(words[::2], words[1::2], strict=True):
        one = (one + x + two) & 0xFFFFFFFF
        two = (two + y + one) & 0xFFFFFFFF
    return one, two
