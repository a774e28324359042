"""Members of decoded JSON, taken as what they must be or refused by path."""

from __future__ import annotations

from typing import Any

from service.errors import MalformedError


def object_of(value: Any, path: str, allowed: tuple[str, ...] | None) -> dict[str, Any]:
    """A JSON object with no other members than these; None: any. Raises MalformedError."""
    if not isinstance(value, dict):
        raise MalformedError(f"{path} is {type(value).__name__}, a JSON object is needed there.")
    if allowed is not None:
        for name in value:
            if name not in allowed:
                raise MalformedError(f"Unknown member {name!r} at {path}. Allowed are {', '.join(sorted(allowed))}.")
    return value


def string(value: Any, path: str) -> str:
    """Raises MalformedError."""
    if not isinstance(value, str):
        raise MalformedError(f"{path} is {value!r}; it must be a string.")
    return value


def integer(value: Any, path: str) -> int:
    """Raises MalformedError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedError(f"{path} is {value!r}; it must be an integer.")
    return value
