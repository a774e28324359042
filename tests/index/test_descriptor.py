"""Closing while others read: no read meets a closed descriptor, or one that has become another file's."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from index import SearchOptions, build, open_index
from index.descriptor import Descriptor, NotAFileError, open_regular
from index.errors import IndexClosedError

ROWS = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
IDS = [f"name-{i}" if i % 2 else i for i in range(400)]
PAYLOAD = [{"n": i} for i in range(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("closing") / "out"
    build(ROWS, out, ids=IDS, payload=PAYLOAD)
    return out


def test_only_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for place, what in (("fifo", "a FIFO"), (".", "a folder")):
        with pytest.raises(NotAFileError, match=what):
            open_regular(tmp_path / place)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_close_waits_for_who_reads(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    descriptor, closed = Descriptor(tmp_path / "file"), threading.Event()
    closer = threading.Thread(target=lambda: (descriptor.close(), closed.set()))
    with descriptor.reading() as fd:
        closer.start()
        while descriptor._fd >= 0:
            pass
        with pytest.raises(IndexClosedError, match=r"file was closed; open the index again"), descriptor.reading():
            pass
        assert not closed.is_set() and os.pread(fd, 3, 0) == b"abc"
    closer.join()
    assert closed.is_set()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    descriptor.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_closes_without_waiting_for_threads_of_its_parent(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    descriptor = Descriptor(tmp_path / "file")
    with descriptor.reading():
        pid = os.fork()
        if pid == 0:
            with descriptor.reading() as fd:
                same = os.pread(fd, 3, 0) == b"abc"
            descriptor.close()
            os._exit(0 if same else 1)
        assert os.waitpid(pid, 0)[1] == 0
    descriptor.close()


CALLS = {
    "search": lambda index: index.search(ROWS[:4], k=3),
    "exact": lambda index: index.search(ROWS[:2], k=3, options=SearchOptions(exact=True)),
    "vectors": lambda index: index.vectors([1, 2]),
    "rows_of": lambda index: index.ids.rows_of(["name-1", 2]),
    "rows_of nothing": lambda index: index.ids.rows_of([]),
    "ids_of_codes": lambda index: index.ids.ids_of_codes(np.arange(5, dtype=np.uint64)),
    "in_order": lambda index: index.ids.in_order(None, 3),
    "in_order from a string": lambda index: index.ids.in_order("name-1", 0),
    "payload": lambda index: index.payload.get([1, 2]),
    "no payload": lambda index: index.payload.get([]),
}


@pytest.mark.parametrize("name", CALLS)
def test_after_close_every_call_says_so(folder, name):
    index = open_index(folder)
    CALLS[name](index)
    index.close()
    index.close()
    with pytest.raises(IndexClosedError, match="was closed; open the index again"):
        CALLS[name](index)


def test_codes_after_close(tmp_path):
    build(ROWS.repeat(128, axis=1), tmp_path / "wide", ids=IDS)  # 4,096 bytes: no room for ids in the pages
    index = open_index(tmp_path / "wide")
    assert len(index.ids.codes()) == 400
    index.close()
    with pytest.raises(IndexClosedError):
        index.ids.codes()


def test_closing_under_searching_threads_is_right_answers_or_closed(folder):
    with open_index(folder) as index:
        expected = {name: repr(call(index)) for name, call in CALLS.items() if name not in ("search", "exact")}
    with ThreadPoolExecutor(4) as pool:
        for _ in range(15):
            index, begun = open_index(folder), threading.Barrier(5)

            def work(seed: int, index=index, begun=begun) -> int:
                names = list(CALLS)[seed:] + list(CALLS)[:seed]
                begun.wait()
                for turn in range(100_000):
                    name = names[turn % len(names)]
                    try:
                        found = repr(CALLS[name](index))
                    except IndexClosedError:
                        return turn
                    assert name not in expected or found == expected[name]
                raise AssertionError("close() never came")

            running = [pool.submit(work, seed) for seed in range(4)]
            begun.wait()
            index.close()
            # Files opened now take the numbers that were closed.
            others = [os.open("/dev/null", os.O_RDONLY) for _ in range(6)]
            for future in running:
                future.result()
            for fd in others:
                os.close(fd)
