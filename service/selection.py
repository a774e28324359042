"""Which parts of a payload are sent, and whether the vector is.

with_payload: true | false | [paths] | {"include": [paths]} | {"exclude": [paths]}; with_vector: true | false | [""].
Paths: payload_paths.py. As in Qdrant a path goes into the elements of an array only by `[]`; a place, `[0]`, selects nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from service.answers import decode, encode
from service.errors import MalformedError, UnsupportedError
from service.payload_paths import ALL, Step, parse_path

Tree = dict[Step, "Tree | None"]
"""Paths by their steps; None: all that lies below."""


class _Selector(msgspec.Struct, forbid_unknown_fields=True):
    include: list[str] | None = None
    exclude: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSelection:
    """wanted: False where no payload has to be read. One of include and exclude may say which parts of it are sent."""

    wanted: bool = False
    include: Tree | None = None
    exclude: Tree | None = None

    def of(self, payload: bytes | None) -> Raw:
        """The selected part of a payload as JSON; the whole of it without decoding."""
        if payload is None:
            return Raw(b"{}")
        if self.include is not None:
            return Raw(encode(_included(msgspec.json.decode(payload), self.include)))
        if self.exclude is not None:
            return Raw(encode(_without(msgspec.json.decode(payload), self.exclude)))
        return Raw(payload)


def parse_payload_selection(raw: Raw, *, path: str, default: bool) -> PayloadSelection:
    """Raises MalformedError."""
    first = bytes(raw)[:1]
    if first == b"n":
        return PayloadSelection(wanted=default)
    if first == b"[":
        return PayloadSelection(wanted=True, include=_tree(decode(raw, list[str], path=path), path))
    if first == b"{":
        selector = decode(raw, _Selector, path=path)
        if (selector.include is None) == (selector.exclude is None):
            raise MalformedError(f"{path} needs either include or exclude. Give one of them.")
        if selector.include is not None:
            return PayloadSelection(wanted=True, include=_tree(selector.include, path))
        return PayloadSelection(wanted=True, exclude=_tree(selector.exclude or [], path))
    return PayloadSelection(wanted=decode(raw, bool, path=path))


def parse_vector_selection(raw: Raw, *, path: str) -> bool:
    """Raises MalformedError, UnsupportedError for a name other than the empty one."""
    first = bytes(raw)[:1]
    if first == b"n":
        return False
    if first == b"[":
        names = decode(raw, list[str], path=path)
        for name in names:
            if name:
                raise UnsupportedError(f"named vectors ({name!r})", 'A point has one vector; its name is "".')
        return bool(names)
    return decode(raw, bool, path=path)


def _tree(keys: list[str], path: str) -> Tree:
    root: Tree = {}
    for key in keys:
        node = root
        *way, last = parse_path(key, path=path)
        for step in way:
            below = node.setdefault(step, {})
            if below is None:  # A shorter path has all of it already.
                break
            node = below
        else:
            node[last] = None
    return root


def _included(value: Any, tree: Tree) -> Any:
    """What of a value the tree names; values that are no objects where it goes on stay as they are."""
    if isinstance(value, dict):
        return {name: _included_below(each, tree[name]) for name, each in value.items() if name in tree}
    if isinstance(value, list):
        return [_included_below(each, tree[ALL]) for each in value] if ALL in tree else []
    return value


def _included_below(value: Any, tree: Tree | None) -> Any:
    return value if tree is None else _included(value, tree)


def _without(value: Any, tree: Tree) -> Any:
    """What of a value the tree does not name."""
    if isinstance(value, dict):
        return {
            name: _without(each, below) if (below := tree.get(name)) is not None else each
            for name, each in value.items()
            if tree.get(name, ALL) is not None
        }
    if isinstance(value, list) and ALL in tree:
        below = tree[ALL]
        return [] if below is None else [_without(each, below) for each in value]
    return value
