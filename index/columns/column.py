"""One column: what rows have at one path of their payloads, as arrays.

Cells       kinds and values, one after the other
Column      the rows' own cells, and the elements of their lists, each with its row
Strings     the column's distinct strings

A test is a function Cells -> bool mask (asking.py); where() makes of it a mask over rows that passes where a row's cell does,
or one element of its list. Cells of the kind OTHER say nothing: who asks must read the JSON of those rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from index.columns.kinds import Kind, Names

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cells:
    """tags uint8 (m,), or None where all are of one kind; values: signed integers (m,), int64 where floats occur; kinds: a
    bit for each kind that may occur."""

    tags: NDArray[np.uint8] | None
    values: NDArray[Any]
    kinds: int

    def __len__(self) -> int:
        return len(self.values)

    def may_have(self, kind: Kind) -> bool:
        """False where no cell is of that kind."""
        return bool(self.kinds >> kind & 1)

    def of(self, kind: Kind) -> Mask:
        """Which cells are of a kind."""
        if not self.may_have(kind):
            return np.zeros(len(self), np.bool_)
        return np.ones(len(self), np.bool_) if self.tags is None else self.tags == kind

    def only(self, kind: Kind, found: Mask) -> Mask:
        """`found` without the cells of other kinds."""
        if not self.may_have(kind):
            return np.zeros(len(self), np.bool_)
        if self.tags is not None:
            found &= self.tags == kind
        return found

    def floats(self) -> NDArray[np.float64]:
        """The values as the floats that FLOAT cells are."""
        return self.values.view(np.float64)


class Strings(Protocol):
    """The distinct strings of a column, each with its code: its place among them."""

    def __len__(self) -> int: ...

    def code_of(self, text: str) -> int:
        """-1 where no cell is that string."""

    def texts(self) -> Iterator[str]:
        """All of them, by code."""

    def text(self, code: int) -> str:
        """One of them."""

    def times(self) -> NDArray[np.int64]:
        """(strings,): microseconds since 1970, NO_TIME for what is no date-time."""


class HashedStrings:
    """Strings that are not kept, in a column with very many: the code is a hash. They can be compared, but not listed.

    A code has 63 bits: that a text which no row has meets another's is as likely as rows in 2^63.
    """

    def __len__(self) -> int:
        return 0

    def code_of(self, text: str) -> int:
        """Of any text."""
        return hash_of(text)

    def texts(self) -> Iterator[str]:
        """None."""
        return iter(())

    def text(self, code: int) -> str:
        """Raises LookupError."""
        raise LookupError(f"code {code} is a hash; its string stands in the row's JSON")

    def times(self) -> NDArray[np.int64]:
        """None; the column has them."""
        return np.zeros(0, np.int64)


def hash_of(text: str) -> int:
    """The code of a string that is not kept: 63 bits of the xxh3 of its UTF-8."""
    return int(xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))) >> 1


@dataclass(frozen=True, slots=True)
class Times:
    """The strings of a column with hashed strings that are date-times. rows int32 (t,), ascending; values int64 (t,):
    microseconds since 1970."""

    rows: NDArray[np.int32]
    values: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Column:
    """n: rows in all. rows int32 (m,), ascending: whose cells these are; None: cell i is of row i. element_rows int32 (e,),
    ascending: the row of each element of `elements`, which are scalars. times: only where strings are hashed."""

    n: int
    rows: NDArray[np.int32] | None
    cells: Cells
    element_rows: NDArray[np.int32]
    elements: Cells
    strings: Strings
    times: Times | None = None

    @property
    def lists_strings(self) -> bool:
        """False where the strings are hashed: what asks for more than equality must read the JSON."""
        return self.times is None

    def where(self, test: Callable[[Cells], Mask]) -> Mask:
        """(n,): rows whose cell passes, or an element of whose list does."""
        found = self.spread(test(self.cells))
        if len(self.elements):
            found[self.element_rows[np.flatnonzero(test(self.elements))]] = True
        return found

    def spread(self, found: Mask, *, missing: bool = False) -> Mask:
        """A mask over cells as a fresh mask over rows; missing: what rows without a cell get."""
        if self.rows is None:
            if missing and self.cells.may_have(Kind.MISSING):
                found |= self.cells.of(Kind.MISSING)
            return found
        spread = np.full(self.n, missing)
        if missing or np.count_nonzero(found) * 8 > len(found):
            spread[self.rows] = found
        else:
            spread[self.rows[np.flatnonzero(found)]] = True
        return spread

    def of(self, kind: Kind) -> Mask:
        """(n,): rows whose own cell is of a kind."""
        return self.spread(self.cells.of(kind))


class PayloadColumns(ABC):
    """The columns of n payloads. Threads: any number at once."""

    n: int

    @abstractmethod
    def column(self, path: Names) -> Column | None:
        """The column of a path; None where there is none: then no row but uncolumned() ones has anything there."""

    @abstractmethod
    def uncolumned(self, path: Names) -> Mask | None:
        """Of a path without column: the rows that may have something there all the same; None: no row has."""

    @abstractmethod
    def paths(self) -> list[Names]:
        """The paths of all columns, in order."""
