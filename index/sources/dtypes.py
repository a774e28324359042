"""Which dtype of an index holds a given one, and the conversion, which never loses anything silently.

given                                   stored     what is checked
float32, float16, int8, uint8           the same   -
float64, longdouble                     float32    a finite value that becomes infinite is a bad row
int16, uint16                           float32    - (all are exact)
int32, uint32, int64, uint64            float32    a value that float32 does not hold exactly is a bad row
bool, complex, string, object, dates    refused

Rounding float64 to float32 is the one loss that is accepted, and the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from index.errors import SourceError
from index.sources.block import Array, BadRow

DType = np.dtype[Any]

_KIND_WORDS = {"O": "object", "U": "string", "S": "bytes", "V": "structured or void", "M": "datetime64", "b": "bool"}


def stored_dtype(given: DType, *, where: str) -> DType:
    """What an index stores vectors of dtype `given` as; `where` names the file in the refusal."""
    if given.kind == "f":
        return np.dtype(np.float16 if given.itemsize == 2 else np.float32)
    if given.kind in "iu":
        return given.newbyteorder("=") if given.itemsize == 1 else np.dtype(np.float32)
    word = _KIND_WORDS.get(given.kind, given.name)
    spelt = "" if word in (given.name, given.str) else f" ({given.str})"
    raise SourceError(
        f"{where}: dtype is {word}{spelt}, needed float16, float32, float64 or an integer type. "
        "Convert it first, for example array.astype(numpy.float32)."
    )


def common_dtype(given: Sequence[DType]) -> tuple[DType, DType] | None:
    """(given, stored) dtypes that hold all of these; None where they do not mix.

    Floats of different widths mix: what is stored is the widest that is needed. Other dtypes mix with nothing.
    """
    native = list(dict.fromkeys(dtype.newbyteorder("=") for dtype in given))
    if len(native) > 1 and any(dtype.kind != "f" for dtype in native):
        return None
    widest = max(native, key=lambda dtype: dtype.itemsize)
    return (native[0] if len(native) == 1 else widest), stored_dtype(widest, where="shards")


def describe_conversion(given: Sequence[DType], stored: DType) -> str | None:
    """What the report says of the conversion; None where vectors are stored as given (byte order aside)."""
    names = list(dict.fromkeys(dtype.newbyteorder("=").name for dtype in given))
    if names == [stored.name]:
        return None
    said = f"{' and '.join(names)} stored as {stored.name}"
    if given[0].kind in "iu" and given[0].itemsize > 2:
        said += " (each value was checked to be exact)"
    return said


def convert(vectors: Array, stored: DType) -> tuple[Array, list[BadRow]]:
    """[m, dim] as given -> [m, dim] of `stored`, C order, native, sharing nothing; and the flaws found on the way."""
    given = vectors.dtype.newbyteorder("=")
    if given == stored and vectors.dtype.isnative and vectors.flags.owndata and vectors.flags.c_contiguous:
        return vectors, []
    # 1e300 becomes infinity on purpose: it is looked for right below.
    with np.errstate(over="ignore", invalid="ignore"):
        out = np.array(vectors, dtype=stored, order="C")
    if given.kind == "f" and given.itemsize > 4:
        return out, _overflowed(vectors, out)
    if given.kind in "iu" and given.itemsize > 2:
        return out, _inexact(vectors, out)
    return out, []


def _overflowed(vectors: Array, out: Array) -> list[BadRow]:
    """Rows where a finite value became infinite."""
    infinite = np.isinf(out)
    if not infinite.any():
        return []
    return _first_of_each_row(infinite & np.isfinite(vectors), vectors, "is beyond the float32 range")


def _inexact(vectors: Array, out: Array) -> list[BadRow]:
    """Rows where an integer is not what float32 made of it."""
    if vectors.size == 0 or (int(vectors.max()) <= 1 << 24 and int(vectors.min()) >= -(1 << 24)):
        return []
    above = np.float32(float(np.iinfo(vectors.dtype).max))  # rounds up to a power of two: one more than the dtype holds
    too_large = out >= above
    back = np.where(too_large, np.float32(0), out).astype(vectors.dtype)
    return _first_of_each_row(
        too_large | (back != vectors), vectors, "is an integer that float32 does not hold exactly"
    )


def _first_of_each_row(wrong: Array, vectors: Array, what: str) -> list[BadRow]:
    rows = np.flatnonzero(wrong.any(axis=1))
    columns = np.argmax(wrong[rows], axis=1)
    return [BadRow(int(row), int(column), f"{vectors[row, column]!s} {what}") for row, column in zip(rows, columns)]
