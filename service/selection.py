"""Which parts of a payload are sent, and whether the vector is.

with_payload: true | false | [paths] | {"include": [paths]} | {"exclude": [paths]}; with_vector: true | false | [""].
Paths: payload_paths.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from service.answers import decode, encode
from service.errors import MalformedError, UnsupportedError
from service.payload_paths import names_of, parse_path

Path = tuple[str, ...]


class _Selector(msgspec.Struct, forbid_unknown_fields=True):
    include: list[str] | None = None
    exclude: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSelection:
    """whole: all of it, where neither include nor exclude says otherwise. Nothing at all: whole is False, no paths."""

    whole: bool = False
    include: tuple[Path, ...] = ()
    exclude: tuple[Path, ...] = ()

    @property
    def wanted(self) -> bool:
        """False where no payload has to be read."""
        return self.whole or bool(self.include)

    def of(self, payload: bytes | None) -> Raw:
        """The selected part of a payload as JSON; the whole of it without decoding."""
        if payload is None:
            return Raw(b"{}")
        if self.whole and not self.exclude:
            return Raw(payload)
        value = msgspec.json.decode(payload)
        if self.include:
            chosen: dict[str, Any] = {}
            for path in self.include:
                _include(value, path, chosen)
            return Raw(encode(chosen))
        for path in self.exclude:
            _exclude(value, path)
        return Raw(encode(value))


def parse_payload_selection(raw: Raw, *, path: str, default: bool) -> PayloadSelection:
    """Raises MalformedError."""
    first = bytes(raw)[:1]
    if first == b"n":
        return PayloadSelection(whole=default)
    if first == b"[":
        return _including(decode(raw, list[str], path=path), path)
    if first == b"{":
        selector = decode(raw, _Selector, path=path)
        if (selector.include is None) == (selector.exclude is None):
            raise MalformedError(f"{path} needs either include or exclude. Give one of them.")
        if selector.include is not None:
            return _including(selector.include, path)
        return PayloadSelection(whole=True, exclude=tuple(_parts(key, path) for key in selector.exclude or ()))
    return PayloadSelection(whole=decode(raw, bool, path=path))


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


def _including(keys: list[str], path: str) -> PayloadSelection:
    return PayloadSelection(include=tuple(_parts(key, path) for key in keys))


def _parts(key: str, path: str) -> Path:
    return names_of(parse_path(key, path=path))


def _include(value: dict[str, Any], path: Path, chosen: dict[str, Any]) -> None:
    """Copy what lies at `path` of value into chosen, in the same place."""
    name, rest = path[0], path[1:]
    if name not in value:
        return
    if not rest:
        chosen[name] = value[name]
    elif isinstance(value[name], dict):
        inner: dict[str, Any] = dict(chosen.get(name, {}))
        _include(value[name], rest, inner)
        if inner:
            chosen[name] = inner
    elif isinstance(value[name], list):
        elements = [element for element in value[name] if isinstance(element, dict)]
        before = chosen.get(name) or [{} for _ in elements]
        for element, target in zip(elements, before, strict=True):
            _include(element, rest, target)
        chosen[name] = before


def _exclude(value: Any, path: Path) -> None:
    """Remove what lies at `path` of value."""
    if isinstance(value, list):
        for element in value:
            _exclude(element, path)
    elif isinstance(value, dict) and path[0] in value:
        if len(path) == 1:
            del value[path[0]]
        else:
            _exclude(value[path[0]], path[1:])
