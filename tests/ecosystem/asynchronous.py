"""Tests of other people's suites that are coroutines: marked for pytest-asyncio, whatever mode it is in."""

from __future__ import annotations

import inspect

import pytest


def mark_coroutines(*suites: type) -> None:
    """Marks stand on the suites' own functions: a subclass that overrides them would not pass for the suite."""
    for suite in suites:
        for base in suite.__mro__:
            for test in vars(base).values():
                if inspect.iscoroutinefunction(test) and not getattr(test, "pytestmark", None):
                    pytest.mark.asyncio(test)
