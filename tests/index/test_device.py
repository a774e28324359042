"""The device measurement: it runs briefly, cleans up, and says what it measured. Rates are never asserted."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from index.errors import DiskFullError, OptionsError
from index.fullview import device
from index.fullview.device import DeviceReads, measure_checksum, measure_reads


@pytest.mark.parametrize("mode", ["auto", "threads", "buffered"])
def test_it_measures_and_cleans_up(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    found = measure_reads(tmp_path, 0.2, 4, io_mode=mode, scratch_pages=512)
    assert found.reader > 0
    assert found.threads > 0
    assert found.fio is None
    assert found.share == found.reader / found.threads
    assert mode in ("auto", found.mode)
    assert list(tmp_path.iterdir()) == []


def test_fio_is_asked_for_the_same_reads(tmp_path, monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command)
        answer = {"jobs": [{"read": {"iops": 50_000.0}}]}
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(answer))

    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/fio")
    monkeypatch.setattr(device.subprocess, "run", run)
    found = measure_reads(tmp_path, 0.2, 8, scratch_pages=512)
    assert found.fio == 50_000.0
    assert found.share == found.reader / 50_000.0
    assert {"--bs=4k", "--direct=1", "--iodepth=8", "--output-format=json", "--readonly"} <= set(asked[0])


@pytest.mark.parametrize("answer", [(1, ""), (0, "no JSON"), (0, "{}")])
def test_a_failing_fio_is_as_none(tmp_path, monkeypatch, answer):
    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/fio")
    monkeypatch.setattr(device.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, *answer))
    assert measure_reads(tmp_path, 0.1, 2, scratch_pages=256).fio is None


def test_no_room_and_nonsense_are_refused(tmp_path):
    too_many = shutil.disk_usage(tmp_path).total // 4096
    with pytest.raises(DiskFullError):
        measure_reads(tmp_path, scratch_pages=too_many)
    for seconds, depth in [(0.0, 32), (1.0, 0)]:
        with pytest.raises(OptionsError):
            measure_reads(tmp_path, seconds, depth)


def test_share_prefers_fio():
    found = DeviceReads(depth=32, seconds=1, reader=80, threads=50, fio=100, mode="linux_aio", reason=None, direct=True)
    assert found.share == 0.8


def test_the_checksum_is_timed():
    assert measure_checksum(pages=64) > 0
