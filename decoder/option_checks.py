"""Checks of single options: each gives the value as plain Python, or raises DecoderOptionsError with a sentence.

NumPy's numbers are as good as Python's; booleans are no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real

from decoder.errors import DecoderOptionsError


def one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """A string that is one of the allowed ones."""
    names = [str(each) for each in allowed]
    if not isinstance(value, str) or str(value) not in names:
        raise DecoderOptionsError(f"{name} is {value!r}, needed one of {', '.join(names)}")
    return str(value)


def whole(name: str, value: object, *, low: int, high: int | None = None) -> int:
    """A whole number from low to high, or without an upper bound."""
    wanted = f"of at least {low}" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise DecoderOptionsError(f"{name} is {value!r}, needed a whole number {wanted}")
    given = int(value)
    if given < low or (high is not None and given > high):
        raise DecoderOptionsError(f"{name} is {given}, needed a whole number {wanted}")
    return given


def number(name: str, value: object, *, low: float, high: float = math.inf, above: bool = False) -> float:
    """A finite number from low to high; above low where `above`."""
    wanted = f"above {low:g}" if above else f"of at least {low:g}"
    wanted += "" if high == math.inf else f" and at most {high:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise DecoderOptionsError(f"{name} is {value!r}, needed a number {wanted}")
    given = float(value)
    if not math.isfinite(given) or given < low or given > high or (above and given == low):
        raise DecoderOptionsError(f"{name} is {given}, needed a finite number {wanted}")
    return given
