"""Scenarios S30, S35, S54, S55 and S56: damaged files, versions, ways of reading, other processors, descriptors."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
from brute_force import require_reference, same_hits

from index import BuildOptions, IoMode, OpenOptions, SearchOptions, build, open_index
from index.check import check_folder
from index.errors import CorruptIndexError, UnsupportedFormatError, VectorIndexError


def random_rows(n: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


ROWS = random_rows(900, 48)
ROWS[100:103] = ROWS[5]  # equal rows: groups.npy is there
IDS = [f"name-{i}" if i % 3 else i for i in range(900)]
PAYLOAD = [{"n": i, "text": f"row {i}"} for i in range(900)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An index with every kind of file."""
    out = tmp_path_factory.mktemp("whole") / "out"
    build(ROWS, out, ids=IDS, payload=PAYLOAD, options=BuildOptions(preview="graph"))
    return out


def use(folder: Path) -> None:
    """Open, search, retrieve: whatever touches a file."""
    with open_index(folder) as index:
        exact = index.search(ROWS[:3], k=len(ROWS), options=SearchOptions(exact=True))
        assert index.search(ROWS[:200], k=10).counts.min() == 10
        assert (index.ids.rows_of(IDS) >= 0).all()
        index.payload.get(exact.rows[0])


# --- S30 --------------------------------------------------------------------------------------------------------


def test_s30_every_file_is_covered_by_the_manifest(whole):
    assert {"vectors.bin", "vectors.sum", "codes.npy", "links.npy", "groups.npy"} <= set(files_of(whole))
    manifest = msgspec.json.decode((whole / "manifest.json").read_bytes())["manifest"]
    assert set(manifest["files"]) == set(files_of(whole)) - {"manifest.json"}
    assert check_folder(whole) == []
    use(whole)


def flipped_bytes(size: int) -> list[int]:
    return sorted({0, size // 3, size // 2, size - 1})


def test_s30_one_flipped_byte_in_any_file_is_found_by_check(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    for name in files_of(whole):
        raw = (whole / name).read_bytes()
        for at in flipped_bytes(len(raw)):
            (copy / name).write_bytes(raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :])
            try:
                problems = check_folder(copy)
            except UnsupportedFormatError as error:
                problems = [error]  # the byte of a version number
            assert problems and any(name in str(problem) for problem in problems), (name, at)
        (copy / name).write_bytes(raw)
    assert check_folder(copy) == []


def test_s30_a_damaged_page_is_an_error_that_names_file_and_page_not_a_made_up_score(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    raw = bytearray((copy / "vectors.bin").read_bytes())
    for page in (2, 7):
        raw[page * 4096 + 100] ^= 1
    (copy / "vectors.bin").write_bytes(raw)
    problems = check_folder(copy)
    assert sorted(problem.offset_bytes for problem in problems if "vectors.bin" in str(problem)) == [8192, 28672]
    with open_index(copy) as index:
        for options in (SearchOptions(exact=True), SearchOptions(rerank=900)):
            with pytest.raises(CorruptIndexError, match=r"vectors\.bin at byte (8,192|28,672) \(page [27]\)"):
                index.search(ROWS[:5], k=10, options=options)
        # Rows on other pages are still answered, again and again.
        good = index.search(ROWS[:1], k=1, options=SearchOptions(rerank=1))
        assert good.scores[0, 0] == 1.0


@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_s30_a_missing_or_short_file_is_named_when_opening(whole, tmp_path, damage):
    for name in files_of(whole):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(whole, copy)
        if damage == "missing":
            (copy / name).unlink()
        else:
            raw = (copy / name).read_bytes()
            (copy / name).write_bytes(raw[:-1] if damage == "cut" else b"")
        if (name, damage) == ("manifest.json", "cut"):
            use(copy)  # the last byte is a line feed
            continue
        with pytest.raises(VectorIndexError, match=Path(name).name):
            use(copy)


# --- S35 --------------------------------------------------------------------------------------------------------


def digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files_of(folder)}


def test_s35_a_newer_format_is_refused_and_left_untouched(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    raw = (copy / "manifest.json").read_bytes()
    assert raw.count(b'"format_version":1,') == 1 or raw.count(b'"format_version": 1,') >= 1
    stamped = raw.replace(b'"format_version":1', b'"format_version":2').replace(
        b'"format_version": 1', b'"format_version": 2'
    )
    (copy / "manifest.json").write_bytes(stamped)
    before = digests(copy)
    for attempt in (open_index, check_folder):
        with pytest.raises(UnsupportedFormatError, match=r"(?s)2.*1"):
            attempt(copy)
    with pytest.raises(VectorIndexError):
        build(ROWS, copy, replace=True)
    assert digests(copy) == before


def test_s35_opening_and_searching_change_no_file(whole):
    before = digests(whole)
    use(whole)
    check_folder(whole)
    assert digests(whole) == before


# --- S54 --------------------------------------------------------------------------------------------------------


def test_s54_every_way_of_reading_gives_the_same_results(whole):
    expected = None
    for mode in IoMode:
        with open_index(whole, options=OpenOptions(io_mode=mode)) as index:
            hits = index.search(ROWS[:100] + 0.05, k=10)
            assert index.stats()["io_mode"] == mode
        expected = expected or hits
        assert same_hits(hits, expected)
        assert (hits.work.pages_read == expected.work.pages_read).all()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs to write to")
def test_s54_a_file_system_without_direct_reads_is_told_once(whole, caplog):
    place = Path("/dev/shm") / f"fullview-test-{os.getpid()}"
    shutil.copytree(whole, place)
    try:
        with caplog.at_level(logging.DEBUG), open_index(place) as index:
            for start in range(0, 100, 10):
                index.search(ROWS[start : start + 10], k=10)
            hits, stats = index.search(ROWS[:100], k=10), index.stats()
        with open_index(whole) as index:
            assert same_hits(hits, index.search(ROWS[:100], k=10))
        if stats["io_mode"] != "linux_aio":
            assert stats["io_reason"]
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 1
    finally:
        shutil.rmtree(place)


# --- S55 --------------------------------------------------------------------------------------------------------

PLAIN_CPU = """
import sys
import numpy as np
from index import build, open_index

rows = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
build(rows, sys.argv[1])
with open_index(sys.argv[1]) as index:
    hits = index.search(rows[:50], k=10)
    print([x for x in hits.ids.ravel().tolist()], [round(float(s), 5) for s in hits.scores.ravel()])
"""


@pytest.mark.long
def test_s55_code_for_a_processor_without_vector_extensions_gives_the_same_results(tmp_path):
    """Numba compiles for the processor it is told of. Running on an emulated one is left to scripts/try_image.sh."""
    answers = {}
    for cpu in ("", "nehalem"):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / f"cache-{cpu}")}
        if cpu:
            environment |= {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ""}
        command = [sys.executable, "-c", PLAIN_CPU, str(tmp_path / f"out-{cpu}")]
        answers[cpu] = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    # Sums run in another order there, so estimates may differ in the last bit; at this size the results do not.
    assert answers[""] == answers["nehalem"]


# --- S56 --------------------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc to count descriptors in")
@pytest.mark.parametrize("io_mode", ["auto", "threads", "buffered"])
def test_s56_an_idle_index_holds_at_most_three_descriptors(whole, io_mode):
    use(whole)  # what opens lazily is open now
    before = descriptors()
    with ExitStack() as stack:
        opened = [stack.enter_context(open_index(whole, options=OpenOptions(io_mode=io_mode))) for _ in range(10)]
        assert descriptors() - before <= 3 * len(opened)  # vectors, ids, payload
        for index in opened:
            hits = index.search(ROWS[:20], k=10)
            index.search(ROWS[:2], k=10, options=SearchOptions(exact=True))
            index.payload.get(hits.rows[0])
            index.vectors(hits.rows[0])
            index.ids.rows_of(hits.ids[0])
        assert descriptors() - before <= 3 * len(opened)
    assert descriptors() == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc to count descriptors in")
def test_s34_running_searches_give_back_what_they_add(whole):
    peak, ended = [0], threading.Event()
    with open_index(whole) as index, ThreadPoolExecutor(4) as pool:

        def search(seed: int) -> None:
            queries = random_rows(40, 48, seed)
            for _ in range(5):
                index.search(queries, k=10)
                index.search(queries, k=10, options=SearchOptions(exact=True))

        def watch() -> None:
            while not ended.is_set():
                peak[0] = max(peak[0], descriptors())

        list(pool.map(search, range(4)))
        before = descriptors()
        watcher = threading.Thread(target=watch)
        watcher.start()
        list(pool.map(search, range(4, 8)))
        ended.set()
        watcher.join()
        assert descriptors() == before
        # One for each scan that runs, and the folder that is listed.
        assert peak[0] <= before + 4


def test_s56_small_indexes_answer_beside_each_other(tmp_path):
    for i in range(12):
        build(ROWS[i * 30 : i * 30 + 100], tmp_path / str(i))
    with ExitStack() as stack:
        opened = [stack.enter_context(open_index(tmp_path / str(i))) for i in range(12)]
        for i, index in enumerate(opened):
            rows = ROWS[i * 30 : i * 30 + 100]
            require_reference(index.search(rows[:3], k=4), rows, rows[:3], "cosine", 4)
