"""What would have fitted where a body did not: values of an enumeration, members of an object.

hint()   a sentence for a ValidationError of msgspec, or nothing

msgspec names the place and what came; the types know what may stand there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from service.edits import nearest_name

_PLACE = re.compile(r"`\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
_UNKNOWN = re.compile(r"contains unknown field `([^`]*)`")


def hint(error: msgspec.ValidationError, kind: Any) -> str:
    """` Allowed are ...` for a wrong value of an enumeration or an unknown member; else empty."""
    message = str(error)
    place = _PLACE.search(message)
    steps = [found.group(1) for found in _STEP.finditer(place.group(1))] if place is not None else []
    unknown = _UNKNOWN.search(message)
    if unknown is None and "Invalid enum value" not in message:
        return ""
    there = list(_types_at(inspect.type_info(kind), steps))
    if unknown is None:
        values = [repr(value) for each in there if isinstance(each, inspect.LiteralType) for value in each.values]
        lists = ["a list"] if any(isinstance(each, inspect.ListType) for each in there) else []
        return f" Allowed are {', '.join(values + lists)}."
    names = [field.encode_name for each in there if isinstance(each, inspect.StructType) for field in each.fields]
    near = nearest_name(unknown.group(1), names)
    return (f" Did you mean {near!r}?" if near is not None else "") + f" Allowed are {', '.join(names)}."


def _types_at(kind: inspect.Type, steps: list[str | None]) -> Iterator[inspect.Type]:
    """The types that may stand at a path; a step is the name of a member, None for an element."""
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _types_at(each, steps)
    elif not steps:
        yield kind
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if field.encode_name == steps[0]:
                yield from _types_at(field.type, steps[1:])
    elif isinstance(kind, inspect.ListType):
        yield from _types_at(kind.item_type, steps[1:])
    elif isinstance(kind, inspect.DictType):
        yield from _types_at(kind.value_type, steps[1:])
