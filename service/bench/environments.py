"""Each peer's own environment: a venv in the cache folder, made when it is first needed.

cache_folder     where environments lie
environment_of   a contender -> the Python that has it; PeerUnavailableError with the reason where it cannot be had
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path

from service.bench.display import Display, Step
from service.bench.peers import Contender

READY = "ready.json"


class PeerUnavailableError(Exception):
    """A peer that cannot be installed or imported here; the text says why."""


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/fullview/bench, or the same under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fullview" / "bench"


def environment_of(contender: Contender, cache: Path, display: Display) -> Path:
    """The Python to run the contender with. Makes its environment where it is not there yet."""
    if not contender.requirements:
        return Path(sys.executable)
    wanted = json.dumps([contender.requirements, sys.version_info[:2]])
    folder = cache / f"{contender.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:10]}"
    python = folder / "bin" / "python"
    if (folder / READY).is_file():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with display.step(f"{contender.name}: installing {' '.join(contender.requirements)}") as step:
            _run([sys.executable, "-m", "venv", str(folder)], step)
            _run(
                [str(python), "-m", "pip", "install", "--disable-pip-version-check", *contender.requirements],
                step,
            )
        (folder / READY).write_text(wanted, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return python


def _run(command: list[str], step: Step) -> None:
    """Run a command, show its last line; PeerUnavailableError with its last lines where it fails."""
    # hnswlib would be slower on this machine than it can be where it is told to be compiled for any other as well.
    foreign = ("PYTHONPATH", "PYTHONHOME", "HNSWLIB_NO_NATIVE")
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    said: deque[str] = deque(maxlen=8)
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        assert child.stdout is not None
        for line in child.stdout:
            said.append(line.strip())
            step.phase(line.strip()[:60], 0, 1)
        if child.wait() != 0:
            errors = [line for line in said if "error" in line.lower()] or list(said)
            raise PeerUnavailableError(f"`{' '.join(command[1:])}` failed: {' '.join(errors)[-600:]}")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
