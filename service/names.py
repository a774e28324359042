"""Names of collections, aliases, decoders and uploads, and ids of points as they arrive in JSON and in paths.

check_name()      the rule of names; says which part of it was broken
point_id()        JSON value -> id: an integer of 64 bits without sign, or a string (UUIDs in one spelling)
path_id()         the same from a path
"""

from __future__ import annotations

from typing import Any

from index.errors import BadIdError
from index.ids import canonical_id
from service.errors import BadNameError, MalformedError

_FORBIDDEN = frozenset('<>:"/\\|?*\0\x1f')
NAME_LENGTH_MAX = 255
PointId = int | str


def check_name(name: str, what: str) -> str:
    """The name itself where it keeps the rules. what: "collection", "alias", "decoder", "upload". Raises BadNameError."""
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise BadNameError(f"{what} name has {len(name)} characters, allowed are 1 to {NAME_LENGTH_MAX}. Shorten it.")
    if name in {".", ".."}:
        raise BadNameError(f"{what} name is {name!r}, which means a folder. Choose another one.")
    bad = sorted(set(name) & _FORBIDDEN)
    if bad:
        raise BadNameError(
            f'{what} name {name!r} holds {bad[0]!r}. None of < > : " / \\ | ? * NUL and 0x1F may occur in a name.'
        )
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise BadNameError(f"{what} name {name!r} is no valid Unicode. Send it as UTF-8.")
    return name


def point_id(value: Any) -> PointId:
    """A JSON value as an id. Raises MalformedError naming the value."""
    try:
        return canonical_id(value)
    except BadIdError as error:
        raise MalformedError(str(error)) from None


def path_id(text: str, *, as_string: bool) -> PointId:
    """The id in a path: digits are an integer unless `as_string`. Raises MalformedError."""
    if not as_string and text.isascii() and text.removeprefix("-").isdigit():
        # Longer than any 64-bit integer: int() of thousands of digits would take its time.
        return point_id(int(text[:25]))
    return point_id(text)
