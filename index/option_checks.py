"""Checks of single options: each gives the value as plain Python, or raises OptionsError with a sentence.

NumPy's numbers are as good as Python's; booleans are no numbers. Not here: which option has which range (options.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from numbers import Integral, Real

import numpy as np

from index.errors import OptionsError


def one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """A string that is one of the allowed ones."""
    names = [str(each) for each in allowed]
    if not isinstance(value, str) or str(value) not in names:
        raise OptionsError(f"{name} is {value!r}, needed one of {', '.join(names)}")
    return str(value)


def whole(name: str, value: object, *, low: int, high: int) -> int:
    """A whole number from low to high."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionsError(f"{name} is {value!r}, needed a whole number from {low} to {high}")
    given = int(value)
    if not low <= given <= high:
        raise OptionsError(f"{name} is {given}, needed {low} to {high}")
    return given


def share(name: str, value: object, *, whole_too: bool) -> float:
    """A number above 0 and below 1; 1 is accepted where whole_too."""
    most = "at most 1" if whole_too else "below 1"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionsError(f"{name} is {value!r}, needed a number above 0 and {most}")
    given = float(value)
    if not (0.0 < given < 1.0 or (whole_too and given == 1.0)):
        raise OptionsError(
            f"{name} is {given}, needed above 0 and {most}. Exact searches (exact=True) find every true neighbour."
        )
    return given


def number(name: str, value: object) -> float:
    """Any number but NaN."""
    if isinstance(value, bool) or not isinstance(value, Real) or np.isnan(float(value)):
        raise OptionsError(f"{name} is {value!r}, needed a number")
    return float(value)


def yes_or_no(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise OptionsError(f"{name} is {value!r}, needed True or False")
    return bool(value)


def budget(name: str, value: object) -> str | float:
    """Megabytes above 0 and below 10^9, as a number or a string, or a fraction such as "1/4"."""
    if isinstance(value, bool) or not isinstance(value, str | Real):
        raise OptionsError(f'{name} is {value!r}, needed megabytes or a fraction such as "1/4"')
    if isinstance(value, str):
        fraction = fraction_of(name, value)
        if "/" in value:
            if not 0 < fraction <= 4:
                raise OptionsError(f"{name} is {value!r} of the vectors, needed above 0 and at most 4/1")
            return str(value)
    else:
        fraction = float(value)  # type: ignore[assignment]
    if not 0 < fraction < 1e9:
        raise OptionsError(f"{name} is {value} MB, needed above 0 (10^6 bytes each) and below 10^9")
    return str(value) if isinstance(value, str) else float(value)


def fraction_of(name: str, value: str) -> Fraction:
    """What a budget's string says, as a number: of megabytes, or of the vectors where it holds a stroke."""
    try:
        return Fraction(value) if "/" in value else Fraction(float(value))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise OptionsError(f'{name} is {value!r}, needed megabytes or a fraction such as "1/4"') from None
