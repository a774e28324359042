"""Every way of reading pages gives what numpy reads, finds damage, and survives forks, threads and refusals."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from vector_files import flip, plain_pages, read, write_file

from index.errors import (
    CorruptIndexError,
    CorruptReason,
    IndexClosedError,
    OptionsError,
    ReadFailedError,
    ShapeMismatchError,
    UnknownIndexError,
    UnsupportedFormatError,
)
from index.fullview import PAGE_BYTES, PageLayout, VectorFile, aligned_pages
from index.fullview.linux_aio import LinuxAioReader

MODES = ["linux_aio", "threads", "buffered"]
OPEN_FILES = Path("/proc/self/fd")
PAGES = 601


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    return folder, write_file(folder, 1200, 500)[0]


@pytest.fixture
def copied(written, tmp_path):
    """A folder of one's own to damage."""
    shutil.copytree(written[0], tmp_path / "copy")
    return tmp_path / "copy", written[1]


@pytest.fixture(params=MODES)
def mode(request, written):
    if request.param == "linux_aio":
        try:
            VectorFile.open(*written, "linux_aio").close()
        except OptionsError as error:
            pytest.skip(f"this machine refuses it: {error}")
    return request.param


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("dim", [1, 3, 1023, 1024, 1025, 1536, 4096])
def test_s18_vectors_of_any_size_come_back(tmp_path, mode, dim, dtype):
    layout, vectors, ids = write_file(tmp_path, 300, dim, dtype)
    rows = np.random.default_rng(0).integers(0, 300, 40)
    per_vector = layout.pages_per_vector
    pages = (layout.first_page(rows)[:, None] + np.arange(per_vector)).ravel()
    with VectorFile.open(tmp_path, layout, mode) as file:
        assert (file.mode, file.reason) == (mode, None)
        groups = read(file.reader(), pages).reshape(40, per_vector * PAGE_BYTES)
    for group, row, offset in zip(groups, rows, layout.vector_offset(rows), strict=True):
        assert np.array_equal(group[offset : offset + layout.vector_bytes].view(dtype), vectors[row])
    if layout.ids_in_pages:
        for group, row, offset in zip(groups, rows, layout.id_offset(rows), strict=True):
            assert group[offset : offset + 8].view(np.uint64) == ids[row]


@pytest.mark.parametrize("count", [0, 1, 2, 15, 255, 256, 257, 1000, 5000])
def test_any_number_of_pages_with_repeats(written, mode, count):
    folder, layout = written
    pages = np.random.default_rng(count).integers(0, PAGES, count)
    plain = plain_pages(folder)
    with VectorFile.open(folder, layout, mode) as file:
        reader = file.reader()
        for _ in range(2):
            assert np.array_equal(read(reader, pages), plain[pages])


@pytest.mark.parametrize(
    "pages",
    [np.arange(PAGES), np.arange(PAGES)[::-1], np.arange(0, PAGES, 2), np.repeat([7, 8], 40), np.tile([3, 4, 5], 99)],
)
def test_runs_of_neighbours(written, mode, pages):
    folder, layout = written
    with VectorFile.open(folder, layout, mode) as file:
        assert np.array_equal(read(file.reader(), pages), plain_pages(folder)[pages])


def test_a_small_context_takes_many_pages(written):
    folder, layout = written
    pages = np.random.default_rng(1).permutation(PAGES)
    with VectorFile.open(folder, layout) as file:
        if file.mode != "linux_aio":
            pytest.skip(str(file.reason))
        reader = LinuxAioReader(file, depth=3)
        assert np.array_equal(read(reader, pages), plain_pages(folder)[pages])
        reader.close()


def test_the_buffer_may_be_larger_and_only_its_pages_change(written, mode):
    folder, layout = written
    out = aligned_pages(8)
    out[:] = 99
    with VectorFile.open(folder, layout, mode) as file:
        reader = file.reader()
        reader.begin(np.array([5, 1, 5]), out)
        reader.finish()
    assert np.array_equal(out[:3], plain_pages(folder)[[5, 1, 5]])
    assert (out[3:] == 99).all()


def test_sequential_reads_verify_too(copied, mode):
    folder, layout = copied
    plain = plain_pages(folder)
    with VectorFile.open(folder, layout, mode) as file:
        reader = file.reader()
        out = np.empty((400, PAGE_BYTES), np.uint8)
        for start, count in [(0, 1), (0, 400), (201, 400), (600, 1), (5, 0)]:
            reader.sequential(start, count, out)
            assert np.array_equal(out[:count], plain[start : start + count])
        for start, count in [(-1, 2), (600, 2)]:
            with pytest.raises(IndexError, match="has pages 0 to 600"):
                reader.sequential(start, count, out)
        flip(folder / "vectors.bin", 300 * PAGE_BYTES + 17)
        with pytest.raises(CorruptIndexError) as caught:
            reader.sequential(290, 20, out)
        assert caught.value.offset_bytes == 300 * PAGE_BYTES
        os.truncate(folder / "vectors.bin", 250 * PAGE_BYTES + 100)
        with pytest.raises(CorruptIndexError, match="wrong size"):
            reader.sequential(240, 20, out)


# --- the caller's mistakes ----------------------------------------------------------------------------------------


def test_wrong_calls_are_named(written, mode):
    folder, layout = written
    with VectorFile.open(folder, layout, mode) as file:
        reader, out, pages = file.reader(), aligned_pages(4), np.array([1, 2])
        for page in (-1, PAGES, 2**40):
            with pytest.raises(IndexError, match=f"page {page} was asked for"):
                reader.begin(np.array([1, page]), out)
        unaligned = aligned_pages(2).reshape(-1)[100 : 100 + PAGE_BYTES].reshape(1, PAGE_BYTES)
        with pytest.raises(ShapeMismatchError, match="aligned_pages"):
            reader.begin(pages[:1], unaligned)
        for bad_pages, bad_out in [
            (pages.astype(np.int32), out),
            (pages[None], out),
            (pages, out[:1]),
            (pages, out[::2]),
        ]:
            with pytest.raises(ShapeMismatchError):
                reader.begin(bad_pages, bad_out)
        with pytest.raises(RuntimeError, match="without begin"):
            reader.finish()
        reader.begin(pages, out)
        with pytest.raises(RuntimeError, match="call finish"):
            reader.begin(pages, out)
        reader.finish()
        assert np.array_equal(out[:2], plain_pages(folder)[pages])
        assert np.array_equal(read(reader, np.arange(8)[::2]), plain_pages(folder)[:8:2])


# --- damage -------------------------------------------------------------------------------------------------------


def test_flipped_bits_are_named_and_the_reader_goes_on(copied, mode):
    folder, layout = copied
    with VectorFile.open(folder, layout, mode) as file:
        reader = file.reader()
        flip(folder / "vectors.bin", 123 * PAGE_BYTES + 4095)
        flip(folder / "vectors.bin", 400 * PAGE_BYTES)
        for pages, bad in [([5, 400, 7, 123], 400), (np.arange(PAGES), 123)]:
            with pytest.raises(CorruptIndexError) as caught:
                read(reader, pages)
            error = caught.value
            assert (error.path, error.offset_bytes) == (folder / "vectors.bin", bad * PAGE_BYTES)
            assert error.reason is CorruptReason.CHECKSUM
            assert error.expected == int(file.checksums[bad]) != error.found
            assert f"{error.expected:#010x}" in str(error)
            assert f"{error.found:#010x}" in str(error)
        assert np.array_equal(read(reader, [1, 2]), plain_pages(folder)[[1, 2]])


def test_a_file_cut_while_open_is_named(copied, mode):
    folder, layout = copied
    with VectorFile.open(folder, layout, mode) as file:
        reader = file.reader()
        os.truncate(folder / "vectors.bin", 300 * PAGE_BYTES + 1000)
        for pages, bad in [([5, 450, 7], 450), (np.arange(PAGES), 300), ([300], 300)]:
            with pytest.raises(CorruptIndexError) as caught:
                read(reader, pages)
            assert caught.value.reason is CorruptReason.SIZE
            assert caught.value.offset_bytes == bad * PAGE_BYTES
            assert (caught.value.expected, caught.value.found) == (layout.file_bytes, 300 * PAGE_BYTES + 1000)
        assert np.array_equal(read(reader, [299, 2]), plain_pages_cut(folder)[[299, 2]])


def plain_pages_cut(folder: Path) -> np.ndarray:
    return np.fromfile(folder / "vectors.bin", np.uint8, 300 * PAGE_BYTES).reshape(-1, PAGE_BYTES)


def test_s54_a_refusing_device_is_named(copied, mode):
    folder, layout = copied
    with VectorFile.open(folder, layout, mode) as file:
        # A descriptor that is not open stands for any errno that reads give; the first reader has the good one.
        file.reader().close()
        good, file.page_fd = file.page_fd, 9999
        reader = file.reader()
        with pytest.raises(ReadFailedError, match="EBADF") as caught:
            read(reader, [17, 3])
        assert caught.value.errno == errno.EBADF
        assert caught.value.offset_bytes == 17 * PAGE_BYTES
        assert caught.value.path == folder / "vectors.bin"
        file.page_fd = good
        assert np.array_equal(read(file.reader(), [17]), plain_pages(folder)[[17]])


@pytest.mark.parametrize("name", ["vectors.bin", "vectors.sum"])
def test_files_that_do_not_fit_are_refused_at_open(copied, name, mode):
    folder, layout = copied
    path = folder / name
    whole = path.read_bytes()
    for damaged, error, words in [
        (whole[:-1], CorruptIndexError, "wrong size"),
        (whole + b"x", CorruptIndexError, "wrong size"),
        (b"X" + whole[1:], CorruptIndexError, None),
        (b"", CorruptIndexError, "wrong size"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(error, match=words) as caught:
            VectorFile.open(folder, layout, mode)
        assert caught.value.path == path
    path.unlink()
    with pytest.raises(CorruptIndexError, match="missing"):
        VectorFile.open(folder, layout, mode)
    with pytest.raises(UnknownIndexError):
        VectorFile.open(folder / "absent", layout)


def test_s35_headers_of_another_version_are_refused(copied, monkeypatch):
    folder, layout = copied
    path = folder / "vectors.sum"
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + b"\x02" + whole[9:])
    with pytest.raises(
        UnsupportedFormatError, match=r"vectors\.sum has format version 2, this program reads version 1"
    ):
        VectorFile.open(folder, layout)
    path.write_bytes(whole)
    # A whole file of version 2, its checksums right.
    monkeypatch.setattr("index.fullview.headers.FORMAT_VERSION", 2)
    write_file(folder, 1200, 500)
    monkeypatch.undo()
    header = (folder / "vectors.sum").read_bytes()
    (folder / "vectors.sum").write_bytes(header[:8] + b"\x01" + header[9:])
    with pytest.raises(UnsupportedFormatError, match=r"vectors\.bin has format version 2"):
        VectorFile.open(folder, layout)


def test_a_file_of_another_layout_is_refused(copied):
    folder, layout = copied
    other = PageLayout(layout.n, 501, layout.dtype)  # as many pages, other vectors
    assert other.file_bytes == layout.file_bytes
    with pytest.raises(CorruptIndexError, match="expected dim 501, found dim 500") as caught:
        VectorFile.open(folder, other)
    assert caught.value.offset_bytes == 24
    assert caught.value.reason is CorruptReason.HEADER


# --- life of files and readers ------------------------------------------------------------------------------------


def test_a_folder_replaced_or_deleted_while_open_keeps_working(copied, mode):
    folder, layout = copied
    plain = plain_pages(folder)
    with VectorFile.open(folder, layout, mode) as file:
        reader = file.reader()
        shutil.rmtree(folder)
        folder.mkdir()
        write_file(folder, 40, 8)
        assert np.array_equal(read(reader, np.arange(PAGES)), plain)
        assert np.array_equal(read(file.reader(), [600, 1]), plain[[600, 1]])
        out = np.empty((PAGES, PAGE_BYTES), np.uint8)
        reader.sequential(0, PAGES, out)
        assert np.array_equal(out, plain)


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="no /proc to count descriptors in")
def test_an_open_file_holds_one_descriptor(written, mode):
    folder, layout = written
    before = len(list(OPEN_FILES.iterdir()))
    with VectorFile.open(folder, layout, mode) as file:
        readers = [file.reader() for _ in range(5)]
        for reader in readers:
            reader.begin(np.arange(9), aligned_pages(9))
        assert len(list(OPEN_FILES.iterdir())) == before + 1
        for reader in readers:
            reader.finish()
            reader.sequential(0, 9, aligned_pages(9))
            with pytest.raises(IndexError):
                reader.sequential(600, 9, aligned_pages(9))
        assert len(list(OPEN_FILES.iterdir())) == before + 1
    assert len(list(OPEN_FILES.iterdir())) == before


def test_close_waits_for_reads_in_flight(written, mode):
    folder, layout = written
    file = VectorFile.open(folder, layout, mode)
    readers = [file.reader() for _ in range(4)]
    buffers = [aligned_pages(PAGES) for _ in readers]
    for reader, out in zip(readers, buffers, strict=True):
        reader.begin(np.arange(PAGES), out)
    file.close()
    before = [out.copy() for out in buffers]
    for reader, out, kept in zip(readers, buffers, before, strict=True):
        with pytest.raises(IndexClosedError):
            reader.finish()
        with pytest.raises(IndexClosedError):
            reader.begin(np.array([1]), out)
        with pytest.raises(IndexClosedError):
            reader.sequential(0, 1, out)
        assert np.array_equal(out, kept)
        reader.close()
    file.close()


def test_a_dropped_reader_waits_too(written, mode):
    folder, layout = written
    with VectorFile.open(folder, layout, mode) as file:
        for _ in range(20):
            reader = file.reader()
            assert reader.mode == mode
            reader.begin(np.arange(20), aligned_pages(20))
            del reader
        gc.collect()
        assert len(list(file._readers)) == 0


def test_threads_at_once(written, mode):
    folder, layout = written
    plain = plain_pages(folder)

    def search(seed: int) -> int:
        rng = np.random.default_rng(seed)
        reader, out = file.reader(), aligned_pages(30)
        for _ in range(60):
            pages = rng.integers(0, PAGES, rng.integers(1, 30))
            reader.begin(pages, out)
            reader.finish()
            assert np.array_equal(out[: len(pages)], plain[pages])
        return seed

    with VectorFile.open(folder, layout, mode) as file, ThreadPoolExecutor(6) as pool:
        assert list(pool.map(search, range(6))) == list(range(6))


def test_signals_do_not_end_a_read(written, mode):
    folder, layout = written
    plain, seen = plain_pages(folder), []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        with VectorFile.open(folder, layout, mode) as file:
            reader, pages = file.reader(), np.random.default_rng(3).permutation(PAGES)
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            for _ in range(20):
                assert np.array_equal(read(reader, pages), plain[pages])
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen


def test_closing_while_others_read(written, mode):
    folder, layout = written
    plain = plain_pages(folder)
    for _ in range(5):
        file = VectorFile.open(folder, layout, mode)
        started = threading.Barrier(4)

        def search(file=file, started=started) -> str:
            reader, out, pages = file.reader(), aligned_pages(16), np.arange(0, 320, 20)
            started.wait()
            try:
                while True:
                    reader.begin(pages, out)
                    reader.finish()
                    assert np.array_equal(out, plain[pages])
            except IndexClosedError:
                return "closed"

        with ThreadPoolExecutor(3) as pool:
            ends = [pool.submit(search) for _ in range(3)]
            started.wait()
            file.close()
            assert [end.result(timeout=30) for end in ends] == ["closed"] * 3


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside threads is what is tested
def test_s17_a_forked_child_reads_and_the_parent_goes_on(written, mode):
    folder, layout = written
    plain = plain_pages(folder)
    with VectorFile.open(folder, layout, mode) as file:
        reader, out = file.reader(), aligned_pages(100)
        read(reader, [1, 2, 3])
        open_pages = np.arange(100)[::-1].copy()
        reader.begin(open_pages, out)  # in flight across the fork

        def child(results) -> None:
            reader.finish()
            same = np.array_equal(out, plain[open_pages])
            reader.sequential(0, 100, out)
            same = same and np.array_equal(out, plain[:100])
            again = np.array_equal(read(reader, [600, 4]), plain[[600, 4]])
            fresh = np.array_equal(read(file.reader(), [9]), plain[[9]])
            file.close()
            results.put((same, again, fresh))

        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        process = context.Process(target=child, args=(results,))
        process.start()
        process.join(timeout=10)
        assert process.exitcode == 0
        assert results.get() == (True, True, True)
        reader.finish()
        assert np.array_equal(out, plain[open_pages])
        assert np.array_equal(read(reader, np.arange(50)), plain[:50])
