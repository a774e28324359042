"""What a long run shows on stderr: bars on a terminal, one line a step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Step:
    """One step under way."""

    def __init__(self, progress: Progress, task: TaskID, text: str) -> None:
        self._progress, self._task, self._text = progress, task, text

    def advance(self, done: int, total: int) -> None:
        """`done` of `total`."""
        self._progress.update(self._task, completed=done, total=total)

    def phase(self, name: str, done: int, total: int) -> None:
        """The same, with the name of what is being done."""
        self._progress.update(self._task, description=escape(f"{self._text}: {name}"), completed=done, total=total)


class Display:
    """Steps and remarks of a run. A context manager; used by one thread."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console if console is not None else Console(stderr=True, highlight=False, soft_wrap=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Show a step until it is done, then leave a line with the time that it took."""
        begun = time.monotonic()
        task = self._progress.add_task(escape(text), total=None)
        try:
            yield Step(self._progress, task, text)
        finally:
            self._progress.remove_task(task)
        self.say(f"{text} ({time.monotonic() - begun:.1f} s)")

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._console.print(sentence, markup=False)
