"""Numbers and times as JSON has them: no NaN, no infinity, times as RFC 3339 text in UTC."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta

from index.errors import SourceError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def json_float(value: float) -> float | None:
    """NaN and infinities become None."""
    return value if math.isfinite(value) else None


def json_time(value: int, per_second: int, where: str) -> str:
    """RFC 3339 of a time counted from 1970 in units of 1 / per_second seconds."""
    seconds, part = divmod(value, per_second)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError as error:
        raise SourceError(
            f"{where}: the time {value} (1/{per_second} s since 1970) lies outside the years 1 to 9999 of RFC 3339."
        ) from error
    return moment.replace(tzinfo=None).isoformat() + _fraction(part, per_second) + "Z"


def json_clock(value: int, per_second: int) -> str:
    """A time of day, counted from midnight in units of 1 / per_second seconds."""
    seconds, part = divmod(value, per_second)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + _fraction(part, per_second)


def json_date(days: int, where: str) -> str:
    """A date, counted in days from 1970."""
    try:
        return date.fromordinal(days + _EPOCH_DAY).isoformat()
    except (ValueError, OverflowError) as error:
        raise SourceError(f"{where}: day {days} since 1970 lies outside the years 1 to 9999.") from error


def _fraction(part: int, per_second: int) -> str:
    if not part:
        return ""
    return "." + str(part).rjust(len(str(per_second)) - 1, "0").rstrip("0")
