"""What every run stands in: a folder that is gone afterwards, and an end in order however it is ended.

working_folder             a temporary folder inside another
terminated_like_interrupted    SIGTERM unwinds as Ctrl-C does
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def working_folder(place: Path) -> Iterator[Path]:
    """A temporary folder that is gone afterwards."""
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that children end and folders go. Only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
