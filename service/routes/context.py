"""What every route needs of its request: the application's parts, when it started, its deadline."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from fastapi import Request

from service.decoders import Decoders
from service.engine import Engine
from service.errors import MalformedError, OutOfRangeError
from service.jobs.runner import JobRunner
from service.metrics import Metrics
from service.settings import Settings

TIMEOUT_MAX_S = 24 * 3600.0


@dataclass(slots=True)
class AppParts:
    """The parts of one application, as `app.state.parts`."""

    settings: Settings
    engine: Engine
    decoders: Decoders
    runner: JobRunner
    metrics: Metrics
    completions: asyncio.Semaphore
    """Held by each completion that is under way."""
    draining: bool = False
    """True after SIGTERM: readiness says so, and streams end."""


def parts(request: Request) -> AppParts:
    """The application's parts."""
    found: AppParts = request.app.state.parts
    return found


def started(request: Request) -> float:
    """time.perf_counter() when the request came."""
    value: float = request.scope["state"]["started"]
    return value


def timeout_s(request: Request) -> float:
    """`timeout` of the query string, or the setting. Raises MalformedError, OutOfRangeError."""
    given = request.query_params.get("timeout")
    return (
        parts(request).settings.query_timeout_s
        if given is None
        else number(given, "timeout", low=0, high=TIMEOUT_MAX_S)
    )


def number(text: str, name: str, *, low: float, high: float) -> float:
    """A decimal number above low, at most high, from the query string. Raises MalformedError, OutOfRangeError."""
    try:
        value = float(text)
    except ValueError:
        raise MalformedError(f"{name} is {text!r}; a number is needed.") from None
    if not math.isfinite(value) or not low < value <= high:
        raise OutOfRangeError(f"{name} is {text}; it must be above {low:g} and at most {high:g}.")
    return value


def whole(text: str, name: str) -> int:
    """An integer from the query string. Raises MalformedError."""
    try:
        return int(text)
    except ValueError:
        raise MalformedError(f"{name} is {text!r}; an integer is needed.") from None


def flag(text: str, name: str) -> bool:
    """`true` or `false` from the query string. Raises MalformedError."""
    if text.lower() not in {"true", "false"}:
        raise MalformedError(f"{name} is {text!r}; true or false is needed.")
    return text.lower() == "true"
