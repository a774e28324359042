"""Loads the models that completions run in the background, so that a first completion waits only for what is left.

add()     a decoder that serves now
close()   no more loads; the one under way is waited for, but not for ever

One model at a time, and none before all collections and decoders are loaded: readiness never waits for a model. What goes
wrong is only logged: the first completion tries again, and is told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from service.served_decoder import ServedDecoder

log = logging.getLogger("fullview.decoders")

_LOOKS_EVERY_S = 0.2


class ModelLoader:
    """A thread, started by the first decoder that has a model. Threads: add() from any; close() once."""

    def __init__(self, *, may_load: Callable[[], bool]) -> None:
        """may_load: False for as long as a load would be in the way of something."""
        self._may_load = may_load
        self._queue: SimpleQueue[ServedDecoder | None] = SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, opened: ServedDecoder) -> None:
        """Load its model when its turn comes; nothing where it has none."""
        if not opened.has_model:
            return
        with self._lock:
            if self._closing.is_set():
                return
            self._queue.put(opened)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fullview-model-loader", daemon=True)
                self._thread.start()

    def close(self, *, timeout_s: float) -> None:
        """A load cannot be broken off, and the interpreter may not end under it: it is waited for, so long."""
        with self._lock:
            self._closing.set()
            self._queue.put(None)
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            opened = self._queue.get()
            while not self._closing.is_set() and not self._may_load():
                self._closing.wait(_LOOKS_EVERY_S)
            if opened is None or self._closing.is_set():
                return
            if opened.acquire():  # else it was replaced or deleted meanwhile
                try:
                    _load(opened)
                finally:
                    opened.release()


def _load(opened: ServedDecoder) -> None:
    begun = time.monotonic()
    try:
        _ = opened.text
    except Exception as error:
        # Whatever it is: a request is answered with it, and the next model has to get its turn.
        log.warning("no model was loaded in the background: %s", error)
    else:
        log.info("decoder %s: its model is there after %.1f s", opened.name, time.monotonic() - begun)
