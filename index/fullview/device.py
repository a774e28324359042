"""How fast a device gives 4 KiB pages, and how near our reader comes to it: the figures of `fullview doctor`.

measure_reads()      reads a second of our reader, of plain preadv from threads, and of fio where it is installed
measure_checksum()   nanoseconds for the checksum of a page

All read the same scratch file at random places, past the page cache, with `depth` reads in flight, in turns, so that a
device whose speed drifts treats them alike. The scratch file is removed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.errors import DiskFullError, OptionsError
from index.fullview.checksum import page_checksums
from index.fullview.layout import PAGE_BYTES, PageLayout
from index.fullview.linux_aio import LinuxAioReader
from index.fullview.page_reader import PageReader, aligned_pages
from index.fullview.vector_file import DirectRefusedError, VectorFile, open_direct
from index.fullview.writer import VectorFileWriter
from index.options import IoMode

SCRATCH_PAGES = 65_536
_TURNS = 3


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """4 KiB random reads a second at one depth. Medians over the turns.

    reader: ours, in `mode`, which `reason` explains. threads: preadv from `depth` Python threads. fio: libaio, None
    where fio is not there. direct: False where the file system refuses O_DIRECT, so that the page cache was measured.
    """

    depth: int
    seconds: float
    reader: float
    threads: float
    fio: float | None
    mode: str
    reason: str | None
    direct: bool

    @property
    def share(self) -> float:
        """Our rate by fio's, or by the threads' where there is no fio."""
        return self.reader / (self.fio or self.threads)


def measure_reads(
    folder: Path | str,
    seconds: float = 6.0,
    depth: int = 32,
    *,
    io_mode: str = "auto",
    scratch_pages: int = SCRATCH_PAGES,
) -> DeviceReads:
    """Measure the device under `folder` for about `seconds` in all, with a scratch file of 256 MiB there.

    Raises DiskFullError where it has no room, OptionsError for an io_mode that is refused.
    """
    if depth < 1 or seconds <= 0:
        raise OptionsError(f"depth is {depth} and seconds is {seconds}, both must be above 0")
    free, needed = shutil.disk_usage(folder).free, scratch_pages * PAGE_BYTES
    if free < needed + (64 << 20):
        raise DiskFullError(path=Path(folder), needed_bytes=needed + (64 << 20), free_bytes=free)
    fio = shutil.which("fio")
    turn_s = seconds / _TURNS / (3 if fio else 2)
    rates: dict[str, list[float]] = {"reader": [], "threads": [], "fio": []}
    with tempfile.TemporaryDirectory(prefix=".fullview-doctor-", dir=folder) as scratch:
        layout = _write_scratch(Path(scratch), scratch_pages)
        with VectorFile.open(scratch, layout, io_mode) as file:
            # A context of `depth`: never more in flight than fio has.
            reader = LinuxAioReader(file, depth=depth) if file.mode is IoMode.LINUX_AIO else file.reader()
            _reader_rate(reader, layout, depth, min(0.05, turn_s))  # the first reads find cold structures
            for _ in range(_TURNS):
                rates["reader"].append(_reader_rate(reader, layout, depth, turn_s))
                rates["threads"].append(_threads_rate(file.path, layout.n, depth, turn_s))
                if fio:
                    rate = _fio_rate(fio, file.path, depth, turn_s)
                    if rate is not None:
                        rates["fio"].append(rate)
            reader.close()
            mode, reason, direct = file.mode.value, file.reason, file.direct
    return DeviceReads(
        depth=depth,
        seconds=seconds,
        reader=statistics.median(rates["reader"]),
        threads=statistics.median(rates["threads"]),
        fio=statistics.median(rates["fio"]) if rates["fio"] else None,
        mode=mode,
        reason=reason,
        direct=direct,
    )


def measure_checksum(pages: int = 2048) -> float:
    """Nanoseconds for the checksum of a page, over `pages` of them."""
    block, out = np.ones((pages, PAGE_BYTES), np.uint8), np.empty(pages, np.uint32)
    page_checksums(block, out)
    started = time.perf_counter()
    page_checksums(block, out)
    return (time.perf_counter() - started) / pages * 1e9


def _write_scratch(folder: Path, pages: int) -> PageLayout:
    # Random bytes: some devices answer for zeros without reading.
    layout = PageLayout(pages, PAGE_BYTES, np.dtype(np.uint8))
    block = np.random.default_rng(0).integers(0, 256, (256, PAGE_BYTES), dtype=np.uint8)
    with VectorFileWriter(folder / "vectors.bin", layout) as writer:
        for start in range(0, pages, len(block)):
            count = min(len(block), pages - start)
            writer.append(block[:count], np.arange(count, dtype=np.uint64))
    return layout


def _reader_rate(reader: PageReader, layout: PageLayout, depth: int, seconds: float) -> float:
    """Requests of 64 times `depth` pages, so that running empty at the end of each hardly counts."""
    count = 64 * depth
    rng, out = np.random.default_rng(1), aligned_pages(count)
    requests = [rng.integers(1, layout.file_pages, count) for _ in range(64)]
    done = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        reader.begin(requests[done % len(requests)], out)
        reader.finish()
        done += 1
    return done * count / elapsed


def _threads_rate(path: Path, pages: int, depth: int, seconds: float) -> float:
    try:
        fd = open_direct(path)
    except DirectRefusedError:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stop = threading.Event()

    def read(seed: int) -> int:
        choose, buffer, done = random.Random(seed), [aligned_pages(1).data], 0
        while not stop.is_set():
            os.preadv(fd, buffer, choose.randrange(1, pages) * PAGE_BYTES)
            done += 1
        return done

    try:
        return _rate_of(read, stop, depth, seconds)
    finally:
        os.close(fd)


def _rate_of(read: Callable[[int], int], stop: threading.Event, depth: int, seconds: float) -> float:
    with ThreadPoolExecutor(depth) as pool:
        started = time.perf_counter()
        counts = [pool.submit(read, seed) for seed in range(depth)]
        stop.wait(seconds)
        stop.set()
        return sum(count.result() for count in counts) / (time.perf_counter() - started)


def _fio_rate(fio: str, path: Path, depth: int, seconds: float) -> float | None:
    command = [
        fio,
        "--name=fullview",
        f"--filename={path}",
        "--readonly",
        "--rw=randread",
        "--bs=4k",
        "--direct=1",
        "--ioengine=libaio",
        f"--iodepth={depth}",
        "--time_based",
        f"--runtime={max(1, round(seconds * 1000))}ms",
        "--output-format=json",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
    if result.returncode != 0:
        return None
    try:
        return float(json.loads(result.stdout)["jobs"][0]["read"]["iops"])
    except (ValueError, KeyError, IndexError):
        return None
