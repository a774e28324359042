"""Where a row's vector and id lie in the vector file: arithmetic only, no I/O.

PageLayout        n rows of dim components of one dtype, and what follows from that
first_page()      rows -> index of the page in the file where the row's vector begins
vector_offset()   rows -> byte of that page where the vector begins
id_offset()       rows -> byte, counted from the same page, of the row's id code

Page 0 is the header. A vector that fits into a page never straddles two; a larger one takes whole pages of its own.
Ids lie at the end of a page, where the vectors leave room for them. docs/format.md describes each byte.

Invariant: everything here follows from (n, dim, dtype), so a reader needs no table of places.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from index.errors import ShapeMismatchError

PAGE_BYTES = 4096
ID_BYTES = 8
DIM_MAX = 65_536

Int64Array = npt.NDArray[np.int64]


class DtypeCode(IntEnum):
    """Component type of stored vectors. Stored in byte 28 of vectors.bin. Never renumber; add at the end."""

    FLOAT32 = 1
    FLOAT16 = 2
    INT8 = 3
    UINT8 = 4


_CODES = {
    np.dtype(np.float32): DtypeCode.FLOAT32,
    np.dtype(np.float16): DtypeCode.FLOAT16,
    np.dtype(np.int8): DtypeCode.INT8,
    np.dtype(np.uint8): DtypeCode.UINT8,
}


@dataclass(frozen=True)
class PageLayout:
    """The places of n vectors of `dim` components of `dtype` in 4,096-byte pages.

    n: rows, >= 0. dim: 1 to 65,536. dtype: float32, float16, int8 or uint8 in native byte order.
    Raises ShapeMismatchError (a ValueError) for anything else.
    """

    n: int
    dim: int
    dtype: np.dtype[np.generic]

    def __post_init__(self) -> None:
        # np.float32 and "float32" are welcome too; the field is always a dtype afterwards.
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        if self.n < 0:
            raise ShapeMismatchError(f"n is {self.n}, a vector file holds 0 rows or more")
        if not 1 <= self.dim <= DIM_MAX:
            raise ShapeMismatchError(f"dim is {self.dim}, a vector file holds vectors of 1 to {DIM_MAX:,} components")
        if self.dtype not in _CODES:
            raise ShapeMismatchError(
                f"dtype is {self.dtype}, a vector file holds float32, float16, int8 or uint8: convert the vectors"
            )

    @property
    def dtype_code(self) -> DtypeCode:
        """How the header names the dtype."""
        return _CODES[self.dtype]

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector."""
        return self.dim * self.dtype.itemsize

    @property
    def vectors_per_page(self) -> int:
        """Vectors that share a page; 1 where a vector takes a page or several."""
        return max(1, PAGE_BYTES // self.vector_bytes)

    @property
    def pages_per_vector(self) -> int:
        """Pages that one vector takes; 1 where it fits into a page."""
        return -(-self.vector_bytes // PAGE_BYTES)

    @property
    def group_bytes(self) -> int:
        """Bytes of the page, or of the run of pages, that is read for one row."""
        return self.pages_per_vector * PAGE_BYTES

    @property
    def ids_in_pages(self) -> bool:
        """True where the vectors leave 8 bytes a row free, so that the id codes lie in the pages."""
        free_bytes = self.group_bytes - self.vectors_per_page * self.vector_bytes
        return free_bytes >= self.vectors_per_page * ID_BYTES

    @property
    def n_pages(self) -> int:
        """Pages of vectors, the header page not counted."""
        return -(-self.n // self.vectors_per_page) * self.pages_per_vector

    @property
    def file_pages(self) -> int:
        """Pages of the file, the header page counted."""
        return 1 + self.n_pages

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.file_pages * PAGE_BYTES

    def first_page(self, rows: npt.ArrayLike) -> Int64Array:
        """Rows int64 [...] -> int64 [...]: the file page where each row's vector begins (the header is page 0)."""
        return 1 + np.asarray(rows, np.int64) // self.vectors_per_page * self.pages_per_vector

    def vector_offset(self, rows: npt.ArrayLike) -> Int64Array:
        """Rows int64 [...] -> int64 [...]: the byte of its first page where each row's vector begins."""
        return np.asarray(rows, np.int64) % self.vectors_per_page * self.vector_bytes

    def id_offset(self, rows: npt.ArrayLike) -> Int64Array:
        """Rows int64 [...] -> int64 [...]: the byte of each row's uint64 id code, counted from its first page's start.

        With several pages to a vector it lies in the last of them, so it can be above 4,096. Only where ids_in_pages.
        """
        assert self.ids_in_pages, "the ids of this layout are not in its pages"
        ids_start = self.group_bytes - self.vectors_per_page * ID_BYTES
        return ids_start + np.asarray(rows, np.int64) % self.vectors_per_page * ID_BYTES
