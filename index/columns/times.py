"""Date-times as microseconds since 1970, from RFC 3339 and what is near to it.

`2023-01-01`, `2023-01-01T12:30`, `2023-01-01 12:30:00.25`, `...Z`, `...+01:00`, `...+01`, `... UTC`. Without an offset it is
UTC. Digits of a second beyond the sixth are cut off.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

NO_TIME = -(2**63)
"""What stands for a text that is no time; no time of the years 1 to 9999 is near to it."""

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_FORM = re.compile(
    r"\s*(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:(?:[Tt]|\s+)(\d{1,2}):(\d{1,2})"
    r"(?::(\d{1,2})(?:\.(\d{1,6})\d*)?(?:\s?([Zz]|[+-]\d\d(?::?[0-5]\d(?::?[0-5]\d)?)?)| (UTC))?)?)?",
    re.ASCII,
)


def parse_time(text: str) -> int | None:
    """Microseconds since 1970-01-01T00:00:00Z, or None for what is no date-time."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, offset, _ = found.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0),
            int((fraction or "0").ljust(6, "0")),
        )  # fmt: skip
    except ValueError:
        return None
    shift = _offset(offset) if offset is not None and offset not in "Zz" else 0
    if shift is None:
        return None
    return (moment - _EPOCH) // _MICROSECOND - shift


def time_text(microseconds: int) -> str:
    """RFC 3339 in UTC, of a time that parse_time() gave."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).isoformat()


def _offset(text: str) -> int | None:
    """Microseconds east of UTC; None for a day and more."""
    digits = text[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4] or 0) * 60 + int(digits[4:] or 0)
    if seconds >= 86_400:
        return None
    return (-seconds if text[0] == "-" else seconds) * 1_000_000
