"""Lists of numbers as they stand on the command line.

threads_of   "1,N" -> (1, 2) on two cores     batches_of   "1,8,64"
recalls_of   "0.95,0.975"                     target_of    "0.99,0.98" -> P@1 and P@10
"""

from __future__ import annotations

import os

from index.errors import OptionsError


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def threads_of(text: str) -> tuple[int, ...]:
    """Numbers of threads, ascending, each once: "1,N" -> (1, 2) on two cores. Raises OptionsError."""
    found = set()
    for part in (part.strip() for part in text.split(",")):
        if part.upper() == "N":
            found.add(cores())
        elif part.isdigit() and int(part) > 0:
            found.add(int(part))
        else:
            raise OptionsError(f"threads is {text!r}, needed numbers of at least 1, or N, comma-separated")
    return tuple(sorted(found))


def recalls_of(text: str) -> tuple[float, ...]:
    """Recalls above 0 and below 1. Raises OptionsError."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (0.0,)
    if not all(0.0 < value < 1.0 for value in found):
        raise OptionsError(f"recall is {text!r}, needed numbers above 0 and below 1, comma-separated")
    return found


def target_of(text: str) -> tuple[float, float]:
    """Precisions above 0 and at most 1: of the best token, of the ten best. Raises OptionsError."""
    try:
        first, tenth = (float(part) for part in text.split(","))
    except ValueError:
        first = tenth = 0.0
    if not (0.0 < first <= 1.0 and 0.0 < tenth <= 1.0):
        raise OptionsError(f"precision is {text!r}, needed two numbers above 0, at most 1: P@1,P@10, such as 0.99,0.98")
    return first, tenth


def batches_of(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, ascending, each once. Raises OptionsError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise OptionsError(f"batches is {text!r}, needed numbers of at least 1, comma-separated")
    return tuple(sorted({int(part) for part in parts}))
