"""Filters over payloads and ids: parsed, evaluated plainly, evaluated by columns.

parse_filter()    JSON -> Filter, or an error that names the place
matches()         one point, plainly
mask_of()         every row of a target at once, by its columns
refuse_filter()   for routes that cannot evaluate filters yet: an empty one passes, any other is 501
"""

from service.filters.grammar import parse_filter
from service.filters.masks import FilterTarget, mask_of
from service.filters.matching import matches
from service.filters.refusal import refuse_filter
from service.filters.tree import Filter

__all__ = ["Filter", "FilterTarget", "mask_of", "matches", "parse_filter", "refuse_filter"]
