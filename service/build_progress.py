"""The progress of a build or check on a terminal; nothing at all where stderr is not one."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class BuildProgressBar:
    """One bar a phase. A context manager; show() takes events of index.build."""

    def __init__(self, console: Console | None = None) -> None:
        console = console if console is not None else Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> BuildProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Any) -> None:
        """An event with phase, done and total."""
        self._update(event.phase, event.done, event.total)

    def show_bytes(self, done: int, total: int) -> None:
        """Bytes checked of all."""
        self._update("check", done, total)

    def _update(self, phase: str, done: int, total: int) -> None:
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=total)
        self._progress.update(self._tasks[phase], completed=done, total=total)
