"""Running the server: one process, one worker, one port; SIGTERM and SIGINT drain.

serve()     until a signal; returns the exit code
"""

from __future__ import annotations

import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from service.app import create_app
from service.data_lock import DataLock
from service.settings import Settings

# A search thread that wants the interpreter back from the event loop waits this long at most, not Python's 5 ms: longer
# than a whole query takes.
_SWITCH_INTERVAL_S = 0.0005


def serve(settings: Settings, *, announce: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, then finish what runs, up to drain_s seconds.

    announce(url) is called once the port is open. Raises DataFolderInUseError, OSError (the port is taken).
    """
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    _raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    lock = DataLock(settings.data_dir)
    try:
        listening = _listen(settings.host, settings.port)
    except BaseException:
        lock.release()
        raise
    app = create_app(settings, data_lock=lock)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=int(settings.drain_s),
    )
    server = _Server(config, app, announce=lambda: announce(_url(settings.host, listening)))
    server.run(sockets=[listening])
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    """uvicorn that tells the application of a drain, and ends with exit code 0 after one."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, *, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._app, self._announce = app, announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not the parent's: it raises the signal again at the end, which makes a drained server a killed one.
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        own: Any = getattr(self._app.state, "parts", None)
        if own is not None:
            own.draining = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio switches Nagle's delay off only where it is: 40 ms a request otherwise.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}. Choose another port.") from None
    return listening


def _url(host: str, listening: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"


def _raise_descriptor_limit() -> None:
    """As many open files as the system lets us have without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
