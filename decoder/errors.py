"""The errors that decoder/ raises on purpose.

DecoderError                base of everything below
    DecoderOptionsError     also ValueError: an option, k, a mode ... that makes no sense
    BadHiddenError          also ValueError: hidden states: wrong shape, NaN or infinity; .rows names the latter
    BadWeightsError         also ValueError: weight or bias: wrong shape or dtype, NaN or infinity; .token_ids
    ConstraintError         also ValueError: ids outside the vocabulary, or no token allowed; .row of the batch
    StaleDecoderError       the weights are not those that the decoder was built for; .expected and .found are their hashes,
                            .differences what else differs
    UnknownDecoderError     also FileNotFoundError: no decoder there
    CorruptDecoderError     a file contradicts the manifest; both checksums are named
    DecoderClosedError      used after close()

Reading files may also raise index.errors: SourceError, MissingExtraError, DiskFullError, BuildCancelledError and
UnsupportedFormatError. A message says what, what came, what was needed and what to do, in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SHOWN = 5


class DecoderError(Exception):
    """Base of everything that decoder/ raises on purpose."""


class DecoderOptionsError(DecoderError, ValueError):
    """An option, k, a mode or a seed that makes no sense."""


class BadHiddenError(DecoderError, ValueError):
    """Hidden states that cannot be answered. rows: those with NaN or infinity; empty where the shape or dtype is wrong."""

    def __init__(self, message: str, *, rows: Sequence[int] = ()) -> None:
        self.rows = list(rows)
        super().__init__(message)


class BadWeightsError(DecoderError, ValueError):
    """An output layer that cannot be used. token_ids: rows with NaN or infinity; empty where a shape or dtype is wrong."""

    def __init__(self, message: str, *, token_ids: Sequence[int] = ()) -> None:
        self.token_ids = list(token_ids)
        super().__init__(message)


class ConstraintError(DecoderError, ValueError):
    """Constraints that leave no token, or name one that is not there. row: the state's place in the batch."""

    def __init__(self, message: str, *, row: int) -> None:
        self.row = row
        super().__init__(message)


class StaleDecoderError(DecoderError):
    """The weights changed since the decoder was built. expected, found: hashes of the weights. differences: lines that say
    what differs beside the numbers in the weights, such as the dtype."""

    def __init__(self, *, expected: str, found: str, differences: Sequence[str] = ()) -> None:
        self.expected, self.found, self.differences = expected, found, list(differences)
        known = f" ({'; '.join(differences)})" if differences else ""
        super().__init__(
            f"stale index: the output layer's weights have hash {found}, the decoder was built for {expected}{known}. "
            "Build the decoder again from these weights, or give it the ones it was built from."
        )


class UnknownDecoderError(DecoderError, FileNotFoundError):
    """No decoder there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        DecoderError.__init__(
            self,
            f"{path}: no decoder is there, needed a folder that build_decoder() wrote. Build one, or mend the path.",
        )


class CorruptDecoderError(DecoderError):
    """A file of a decoder contradicts the manifest."""

    def __init__(self, *, path: Path, expected: str, found: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(
            f"{path}: expected {expected}, found {found}. The file is damaged; restore the folder from a copy or build "
            "the decoder again."
        )


class DecoderClosedError(DecoderError):
    """The decoder was closed."""


def named(numbers: Sequence[int]) -> str:
    """The first of these numbers, and how many more there are: "3, 4, 9, 12, 40 and 7 more"."""
    shown = ", ".join(str(number) for number in numbers[:SHOWN])
    return shown + (f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else "")
