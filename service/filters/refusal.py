"""For routes that cannot evaluate filters yet."""

from __future__ import annotations

from msgspec import Raw

from service.errors import UnsupportedError
from service.filters.grammar import parse_filter


def refuse_filter(raw: Raw, *, path: str) -> None:
    """Raises MalformedError or OutOfRangeError for what is no filter, UnsupportedError for one that restricts."""
    if parse_filter(raw, path=path) is not None:
        raise UnsupportedError("filters", "Leave the filter out.")
