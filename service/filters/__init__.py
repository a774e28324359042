"""Filters over payloads and ids: parsed, evaluated plainly, evaluated by columns.

parse_filter()    JSON -> Filter, or an error that names the place
matches()         one point, plainly
mask_of()         every row of a target at once, by its columns
refuse_filter()   for routes that cannot evaluate filters yet: an empty one passes, any other is 501
"""

from msgspec import Raw

from service.errors import UnsupportedError
from service.filters.grammar import parse_filter
from service.filters.masks import FilterTarget, mask_of
from service.filters.matching import matches
from service.filters.tree import Filter

__all__ = ["Filter", "FilterTarget", "mask_of", "matches", "parse_filter", "refuse_filter"]


def refuse_filter(raw: Raw, *, path: str) -> None:
    """Raises MalformedError or OutOfRangeError for what is no filter, UnsupportedError for one that restricts."""
    if parse_filter(raw, path=path) is not None:
        raise UnsupportedError("filters", "Leave the filter out.")
