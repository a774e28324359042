"""What a cell of a column is."""

from __future__ import annotations

from enum import IntEnum

Names = tuple[str, ...]
"""Keys of objects from the payload's top to a value: the path of a column."""


Scalar = bool | int | str
"""What cells can be compared with."""


class Kind(IntEnum):
    """Stored in payload/columns.bin, a byte a cell. Never renumber; add at the end.

    value of a cell: 0 or 1 of a BOOL, the number of an INT, the 64 bits of a FLOAT, of a STRING its code (its place among the
    column's strings, or its hash), of a LIST of scalars the number of its elements; 0 of all others. OTHER: integers beyond
    64 bits, arrays that hold objects or arrays. MISSING: the row has nothing there.
    """

    MISSING = 0
    NULL = 1
    BOOL = 2
    INT = 3
    FLOAT = 4
    STRING = 5
    LIST = 6
    OBJECT = 7
    OTHER = 8


SCALARS = (Kind.NULL, Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.STRING)
COLUMNS_MAX = 256
DEPTH_MAX = 4
"""Columns of one set of payloads, and keys in the path of one; what lies beyond is spilled: read from the JSON."""
