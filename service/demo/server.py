"""A server of the demo's own: `fullview serve` as a child process on a free port of 127.0.0.1.

start_server()       returns once the port is open
Server.ask()         one request over a kept-alive connection
Server.end()         SIGTERM, then SIGKILL to its session; waits until it is gone

Invariant: only the process that was started here is ended, by its id.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

START_S = 120.0
"""A cold disk under a busy machine takes its time to import everything."""
DRAIN_S = 10.0
LAST_LINES = 15


class DemoServerError(ChildProcessError):
    """The server did not start, ended, or refused a request."""


class Server:
    """A running server. Threads: one."""

    def __init__(self, process: subprocess.Popen[str], url: str, folder: Path) -> None:
        self.process, self.url, self.folder = process, url, folder
        self._connection = http.client.HTTPConnection("127.0.0.1", int(url.rsplit(":", 1)[1]), timeout=120)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer to a JSON body. Raises DemoServerError with the server's own sentence."""
        return json.loads(self._send(method, path, None if body is None else json.dumps(body), "application/json"))

    def ask_raw(self, path: str, body: bytes) -> bytes:
        """The octet-stream answer to an octet-stream body. Raises DemoServerError."""
        return self._send("POST", path, body, "application/octet-stream")

    def _send(self, method: str, path: str, body: str | bytes | None, content_type: str) -> bytes:
        headers = {} if body is None else {"content-type": content_type}
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise DemoServerError(f"{method} {path} got no answer ({error!r}).{last_words(self.folder)}") from None
        if answer.status >= 300:
            raise DemoServerError(f"{method} {path} was answered with {answer.status}: {content.decode()}")
        return content

    def end(self) -> int:
        """End it; returns its exit code."""
        self._connection.close()
        return end_process(self.process)


def start_server(folder: Path, *, import_root: Path) -> Server:
    """Start a server that keeps everything below `folder` and may read `import_root`. Raises DemoServerError."""
    # Neither the user's settings file nor variables: the demo is the same for everybody.
    settings = folder / "fullview.toml"
    settings.write_text("")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FULLVIEW_")}
    command = [
        sys.executable, "-m", "service.cli", "serve", "--json", "--config", str(settings), "--host", "127.0.0.1",
        "--port", "0", "--data-dir", str(folder / "data"), "--import-root", str(import_root),
    ]  # fmt: skip
    with log_file(folder).open("w") as log:
        # A session of its own: Ctrl-C reaches the demo only, which then ends the server in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=clean,
            start_new_session=True,
        )
    try:
        return Server(process, _announced(process, folder), folder)
    except BaseException:
        end_process(process)
        raise


def end_process(process: subprocess.Popen[str]) -> int:
    """SIGTERM; SIGKILL to it and what it started where that takes too long, or on a second Ctrl-C. Returns the exit code."""
    process.terminate()
    try:
        return process.wait(timeout=DRAIN_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def log_file(folder: Path) -> Path:
    """Where the server's log goes."""
    return folder / "server.log"


def last_words(folder: Path) -> str:
    """The end of the server's log, as a continuation of a message."""
    lines = log_file(folder).read_text(errors="replace").splitlines()[-LAST_LINES:]
    return " The server's last words:\n" + "\n".join(lines) if lines else " The server said nothing."


def _announced(process: subprocess.Popen[str], folder: Path) -> str:
    """The URL that the server tells on its one line of stdout."""
    assert process.stdout is not None
    with process.stdout as said:
        line = said.readline() if select.select([said], [], [], START_S)[0] else ""
    if not line:
        raise DemoServerError(f"The server did not start.{last_words(folder)}")
    url: str = json.loads(line)["url"]
    return url
