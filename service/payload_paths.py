"""Paths into payloads: `a.b`, `a[].b`, `a[0]`, `"quoted.key"`.

parse_path()   text -> steps: a str is a member's name, an int an element's place, ALL every element
names_of()     the names alone, where steps into arrays do not matter

In quotes a key may hold anything; `\\"` there is a quote and `\\\\` a backslash.
"""

from __future__ import annotations

import re
from enum import Enum

from service.errors import MalformedError


class Elements(Enum):
    """The step `[]`."""

    ALL = "[]"


ALL = Elements.ALL
Step = str | int | Elements
Path = tuple[Step, ...]

_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|([^.\[\]"]+)', re.DOTALL)
_ELEMENTS = re.compile(r"\[([0-9]{0,20})\]")
_ESCAPED = re.compile(r'\\(["\\])')


def parse_path(key: str, *, path: str) -> Path:
    """path: where the key stands in the body. Raises MalformedError."""
    if not key:
        raise MalformedError(f"an empty string at {path} is no payload path. The payload with the empty key is '\"\"'.")
    steps: list[Step] = []
    at = 0
    while at < len(key):
        found = _PART.match(key, at)
        if found is None:
            raise _no_path(key, path)
        quoted, bare = found.groups()
        steps.append(bare if quoted is None else _ESCAPED.sub(r"\1", quoted))
        at = found.end()
        while (elements := _ELEMENTS.match(key, at)) is not None:
            steps.append(int(elements[1]) if elements[1] else ALL)
            at = elements.end()
        if at < len(key):
            if key[at] != "." or at + 1 == len(key):
                raise _no_path(key, path)
            at += 1
    return tuple(steps)


def names_of(path: Path) -> tuple[str, ...]:
    """The members' names of a path."""
    return tuple(step for step in path if isinstance(step, str))


def _no_path(key: str, path: str) -> MalformedError:
    return MalformedError(f'{key!r} at {path} is no payload path. Write a.b, a[].b or "quoted.key".')
