"""`fullview doctor`: what this machine is, which ways of reading work in a folder, and how fast each is.

examine()     findings as a dict; a file is made in the folder and removed

The yardstick is fio where it is installed, else a plain pool of threads: 4 KiB random reads past the
page cache, 32 at once.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from index.errors import DiskFullError, OptionsError, VectorIndexError
from index.fullview import PAGE_BYTES, PageLayout, VectorFile, VectorFileWriter, aligned_pages
from index.options import IoMode

DEPTH = 32
"""Reads in flight: what one search thread with a full queue has."""

_DIM = PAGE_BYTES // 4
_WRITE_ROWS = 4096


def examine(folder: Path, *, size_mb: int, seconds: float) -> dict[str, Any]:
    """Findings about the machine and about reading in `folder`.

    reads: one dict for each way, with reads_per_s (None where it does not work) and a remark.
    percent_of_yardstick: the rate of the way that is chosen, in percent of the yardstick's. Raises DiskFullError,
    OptionsError, OSError.
    """
    if size_mb < 1:
        raise OptionsError(f"size_mb is {size_mb}, needed at least 1")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder. Name the folder that indexes shall lie in.")
    reads = []
    with _file_to_read(folder, size_mb=size_mb) as (place, layout):
        yardstick = _fio(place / "vectors.bin", seconds) or _plain_threads(place / "vectors.bin", seconds)
        reads.append(yardstick)
        reads += [_measure(place, layout, mode, seconds) for mode in IoMode]
        chosen = VectorFile.open(place, layout)
        mode, reason = chosen.mode.value, chosen.reason
        chosen.close()
    rates = {way["way"]: way["reads_per_s"] for way in reads[1:]}
    known, measured = yardstick["reads_per_s"], rates.get(mode)
    return {
        **_machine(),
        "folder": str(folder.resolve()),
        "io_mode": mode,
        "io_reason": reason or "the best way there is",
        "percent_of_yardstick": round(100 * measured / known, 1) if known and measured else None,
        "reads": reads,
    }


def _machine() -> dict[str, Any]:
    import numba

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_limit_mb": round(_memory_limit_bytes() / 1e6),
    }


def _cpu_name() -> str:
    import llvmlite.binding

    name: str = llvmlite.binding.get_host_cpu_name()
    return name


def _memory_limit_bytes() -> int:
    """What this process may use: the control group's limit where it is lower than the machine's memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            return min(machine, int(file.read_text()))
        except (OSError, ValueError):
            continue
    return machine


@contextmanager
def _file_to_read(folder: Path, *, size_mb: int) -> Iterator[tuple[Path, PageLayout]]:
    """A vector file of about size_mb, one vector a page, in a folder that is removed at the end."""
    rows = max(_WRITE_ROWS, size_mb * 1_000_000 // PAGE_BYTES)
    layout = PageLayout(rows, _DIM, np.dtype(np.float32))
    free = shutil.disk_usage(folder).free
    if free < 2 * layout.file_bytes:
        raise DiskFullError(path=folder, needed_bytes=2 * layout.file_bytes, free_bytes=free)
    place = Path(tempfile.mkdtemp(prefix=".fullview-doctor-", dir=folder))
    try:
        rng = np.random.default_rng(0)
        with VectorFileWriter(place / "vectors.bin", layout) as writer:
            for start in range(0, rows, _WRITE_ROWS):
                count = min(_WRITE_ROWS, rows - start)
                block = rng.random((count, _DIM), dtype=np.float32)
                writer.append(block, np.arange(start, start + count, dtype=np.uint64))
        yield place, layout
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _measure(place: Path, layout: PageLayout, mode: IoMode, seconds: float) -> dict[str, Any]:
    """Reads a second by one thread that keeps two requests of DEPTH pages going, as a search does, checksums too."""
    try:
        file = VectorFile.open(place, layout, io_mode=mode.value)
    except (VectorIndexError, OSError) as error:
        return {"way": mode.value, "reads_per_s": None, "remark": str(error)}
    try:
        _forget(place / "vectors.bin")
        rng = np.random.default_rng(1)
        readers = [file.reader(), file.reader()]
        buffers = [aligned_pages(DEPTH), aligned_pages(DEPTH)]
        done, begun = 0, time.perf_counter()
        readers[0].begin(rng.integers(1, layout.file_pages, DEPTH), buffers[0])
        while (spent := time.perf_counter() - begun) < seconds:
            turn = (done // DEPTH + 1) % 2
            readers[turn].begin(rng.integers(1, layout.file_pages, DEPTH), buffers[turn])
            readers[1 - turn].finish()
            done += DEPTH
        readers[(done // DEPTH) % 2].finish()
    finally:
        file.close()
    remark = "through the page cache" if mode is IoMode.BUFFERED else "past the page cache"
    return {"way": mode.value, "reads_per_s": round(done / spent), "remark": remark}


def _fio(path: Path, seconds: float) -> dict[str, Any] | None:
    """fio's random-read rate; None where fio is missing or refuses."""
    program = shutil.which("fio")
    if program is None:
        return None
    command = [
        program, "--name=doctor", f"--filename={path}", "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=libaio",
        f"--iodepth={DEPTH}", "--time_based", f"--runtime={max(1, round(seconds))}", "--readonly",
        "--output-format=json",
    ]  # fmt: skip
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True)
        rate = json.loads(ran.stdout)["jobs"][0]["read"]["iops"]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return None
    return {"way": "fio", "reads_per_s": round(rate), "remark": "the yardstick: libaio, direct, depth 32"}


def _plain_threads(path: Path, seconds: float) -> dict[str, Any]:
    """preadv in DEPTH threads, past the page cache where the file system allows it."""
    try:
        descriptor, remark = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)), "direct"
    except OSError:
        descriptor, remark = os.open(path, os.O_RDONLY), "through the page cache: direct reads are refused"
    pages = path.stat().st_size // PAGE_BYTES

    def read(seed: int) -> int:
        rng, buffer, done = np.random.default_rng(seed), aligned_pages(1), 0
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for page in rng.integers(0, pages, 64).tolist():
                os.preadv(descriptor, [buffer.data], page * PAGE_BYTES)
            done += 64
        return done

    try:
        _forget(path)
        with ThreadPoolExecutor(DEPTH) as pool:
            done = sum(pool.map(read, range(DEPTH)))
    finally:
        os.close(descriptor)
    return {
        "way": "plain threads",
        "reads_per_s": round(done / seconds),
        "remark": f"the yardstick: 32 threads, {remark}",
    }


def _forget(path: Path) -> None:
    """Drop the file's pages from the page cache, so that buffered reads start as cold as they can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
