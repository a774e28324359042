"""What happens when the system refuses O_DIRECT, AIO or one more context: the same results, and the reason kept."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from vector_files import plain_pages, read, write_file

from index.errors import OptionsError, ReadFailedError
from index.fullview import PAGE_BYTES, VectorFile, aligned_pages, linux_aio, vector_file
from index.fullview.linux_aio import AioRefusedError
from index.fullview.vector_file import DirectRefusedError

PAGES = 601


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    return folder, write_file(folder, 1200, 500)[0]


def refuse_context(depth):
    raise AioRefusedError("io_setup failed with EAGAIN: /proc/sys/fs/aio-max-nr is used up")


def refuse_direct(path):
    raise DirectRefusedError("the file system refuses O_DIRECT (Invalid argument)")


def test_s54_refusals_fall_back_with_the_reason(written, monkeypatch, caplog):
    folder, layout = written
    plain = plain_pages(folder)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(linux_aio, "create_context", refuse_context)
        with VectorFile.open(folder, layout) as file:
            assert (file.mode, "aio-max-nr" in str(file.reason)) == ("threads", True)
            for _ in range(5):
                assert np.array_equal(read(file.reader(), [7, 8]), plain[[7, 8]])
        assert len(caplog.records) == 1
        with pytest.raises(OptionsError, match="io_mode is linux_aio, but io_setup failed"):
            VectorFile.open(folder, layout, "linux_aio")
    monkeypatch.setattr(vector_file, "open_direct", refuse_direct)
    with VectorFile.open(folder, layout) as file:
        assert (file.mode, "O_DIRECT" in str(file.reason)) == ("buffered", True)
        assert np.array_equal(read(file.reader(), [7, 8]), plain[[7, 8]])
    with VectorFile.open(folder, layout, "threads") as file:
        assert (file.mode, "O_DIRECT" in str(file.reason)) == ("threads", True)
        assert np.array_equal(read(file.reader(), [7, 8]), plain[[7, 8]])
    with pytest.raises(OptionsError, match="O_DIRECT"):
        VectorFile.open(folder, layout, "linux_aio")


def test_s54_contexts_used_up_later(written, monkeypatch, caplog):
    folder, layout = written
    with VectorFile.open(folder, layout) as file:
        if file.mode != "linux_aio":
            pytest.skip(str(file.reason))
        first = file.reader()
        monkeypatch.setattr(linux_aio, "create_context", refuse_context)
        late = [file.reader() for _ in range(3)]
        assert {reader.mode for reader in late} == {"threads"}
        assert "aio-max-nr" in str(file.reason)
        assert len(caplog.records) == 1
        for reader in (first, *late):
            assert np.array_equal(read(reader, [9, 600]), plain_pages(folder)[[9, 600]])


def refuse_to_open_again(fd):
    raise FileNotFoundError(errno.ENOENT, "No such file or directory")


def direct_file(folder, layout):
    file = VectorFile.open(folder, layout)
    if not file.direct:
        file.close()
        pytest.skip(str(file.reason))
    return file


def test_without_proc_a_second_descriptor_is_held_and_told(written, monkeypatch, caplog):
    folder, layout = written
    direct_file(folder, layout).close()
    monkeypatch.setattr(vector_file, "_open_again", refuse_to_open_again)
    with direct_file(folder, layout) as file:
        assert [record.message.partition(" takes two descriptors")[0] for record in caplog.records] == [
            str(folder / "vectors.bin")
        ]
        assert file.reason is None
        reader, out = file.reader(), np.empty((PAGES, PAGE_BYTES), np.uint8)
        reader.sequential(0, PAGES, out)
        assert np.array_equal(out, plain_pages(folder))
        assert np.array_equal(read(reader, [600, 2]), plain_pages(folder)[[600, 2]])
        held = file.page_fd, file._scan_fd
    for fd in held:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_s56_a_scan_goes_on_where_no_descriptor_is_left(written):
    folder, layout = written
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with direct_file(folder, layout) as file:
        reader, out = file.reader(), aligned_pages(PAGES + 1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            reader.sequential(0, PAGES, out)
            with pytest.raises(ReadFailedError, match="EMFILE"):
                reader.sequential(0, 9, out.reshape(-1)[8 : 8 + 9 * PAGE_BYTES].reshape(9, PAGE_BYTES))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert np.array_equal(out[:PAGES], plain_pages(folder))


def test_real_exhaustion_of_contexts(written):
    folder, layout = written
    with VectorFile.open(folder, layout) as file:
        if file.mode != "linux_aio":
            pytest.skip(str(file.reason))
        limit = int(Path("/proc/sys/fs/aio-max-nr").read_text())
        with pytest.raises(AioRefusedError, match="aio-max-nr"):
            linux_aio.create_context(limit + 1)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
@pytest.mark.parametrize("mode", ["linux_aio", "threads", "buffered"])
def test_s54_memory_file_systems(mode):
    folder = Path("/dev/shm") / f"fullview-test-{os.getpid()}-{mode}"
    folder.mkdir()
    try:
        layout, _, _ = write_file(folder, 200, 500)
        for asked in ("auto", mode):
            try:
                file = VectorFile.open(folder, layout, asked)
            except OptionsError:
                continue  # the one asked for is refused there
            with file:
                assert asked in ("auto", file.mode)
                assert np.array_equal(read(file.reader(), np.arange(101)), plain_pages(folder))
    finally:
        shutil.rmtree(folder)


def test_unknown_modes_are_refused(written):
    with pytest.raises(OptionsError, match="io_mode is 'io_uring', it must be auto, linux_aio, threads, buffered"):
        VectorFile.open(*written, "io_uring")


def test_aligned_pages():
    out = aligned_pages(3)
    assert out.shape == (3, PAGE_BYTES)
    assert out.ctypes.data % PAGE_BYTES == 0
    assert not out.any()
    out[:] = 1
    assert aligned_pages(0).shape == (0, PAGE_BYTES)


def test_resident_bytes(written):
    with VectorFile.open(*written) as file:
        assert file.resident_bytes() == 4 * PAGES


def test_a_child_without_a_context_reads_one_by_one(written, monkeypatch):
    folder, layout = written
    with VectorFile.open(folder, layout) as file:
        if file.mode != "linux_aio":
            pytest.skip(str(file.reason))
        reader = file.reader()
        reader._pid = -1  # as in a child
        monkeypatch.setattr(linux_aio, "create_context", refuse_context)
        context = int(reader._state[0])
        assert np.array_equal(read(reader, [3, 1]), plain_pages(folder)[[3, 1]])
        assert reader.mode == "buffered"
        assert "EAGAIN" in str(reader.reason)
        linux_aio.destroy_context(context)


def test_a_context_that_fails_while_waiting_is_replaced(written):
    folder, layout = written
    with VectorFile.open(folder, layout) as file:
        if file.mode != "linux_aio":
            pytest.skip(str(file.reason))
        reader, out = file.reader(), aligned_pages(9)
        reader.begin(np.arange(9), out)
        linux_aio.destroy_context(int(reader._state[0]))
        with pytest.raises(ReadFailedError, match="EINVAL"):
            reader.finish()
        assert reader.mode == "linux_aio"
        assert np.array_equal(read(reader, [600, 2]), plain_pages(folder)[[600, 2]])
