"""Stopping a build from outside: SIGTERM and the first Ctrl-C cancel it, a second Ctrl-C interrupts at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from index.errors import BuildCancelledError


class BuildStoppedError(BuildCancelledError):
    """A build that a signal ended. exit_code: what a shell expects then."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(sentence)


class StopRequest:
    """What a build looks at to see whether it shall end. number: the signal that came, 0 where none did."""

    def __init__(self) -> None:
        self.number = 0

    def is_set(self) -> bool:
        """True once a signal came."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that ended by this signal."""
        return 128 + self.number


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGTERM and SIGINT set the request while this is entered. Signals are the main thread's: elsewhere none comes."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, _frame: Any) -> None:
        request.number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
