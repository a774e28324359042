"""docs/format.md tells the truth: its worked example is built here and compared byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

import index
from index.columns import ColumnsWriter
from index.fullview import PageLayout, VectorFileWriter, reference
from index.ids import write_ids
from index.manifest import write_manifest
from index.payload import PayloadWriter

DOCUMENT = Path(index.__file__).parents[1] / "docs" / "format.md"
NAMES = [
    "vectors.bin",
    "vectors.sum",
    "ids/table.bin",
    "ids/codes.npy",
    "payload/data.bin",
    "payload/columns.bin",
]
IDS = ["b", 9007199254740993, "550E8400-E29B-41D4-A716-446655440000", 7]  # in source order
DISK_ORDER = np.array([2, 0, 3, 1])  # disk row -> source row
PAYLOADS = [{"title": "é"}, None, {"year": 2018, "tags": ["a"]}, {}]  # in disk order


def build_example(folder: Path) -> None:
    """Four uint8 vectors of 1,300 components, three to a page, mostly zeros."""
    vectors = np.zeros((4, 1300), np.uint8)
    vectors[:, 0] = [0xA0, 0xA1, 0xA2, 0xA3]
    vectors[:, 1299] = 0xFF
    codes = write_ids(folder, IDS, DISK_ORDER)
    with VectorFileWriter(folder / "vectors.bin", PageLayout(4, 1300, vectors.dtype)) as writer:
        writer.append(vectors, codes)
    with PayloadWriter(folder) as payload_writer:
        payload_writer.append(PAYLOADS)
    with ColumnsWriter(folder) as columns_writer:
        columns_writer.append(None if payload is None else msgspec.json.encode(payload) for payload in PAYLOADS)


def hex_dump(data: bytes) -> str:
    """16 bytes a line with offset and text; a line equal to the one before is replaced by one *."""
    lines: list[str] = []
    before = None
    for offset in range(0, len(data), 16):
        row = data[offset : offset + 16]
        if row == before:
            if lines[-1] != "*":
                lines.append("*")
            continue
        before = row
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{offset:06x}  {row.hex(' '):<47}  {text}")
    lines.append(f"{len(data):06x}")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example")
    build_example(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_worked_example_is_what_is_written(example, name):
    found = re.search(rf"^Example, `{re.escape(name)}`:\n\n```text\n(.*?)\n```$", DOCUMENT.read_text(), re.S | re.M)
    assert found, f"docs/format.md has no example of {name}"
    assert found[1] == hex_dump((example / name).read_bytes())


def test_the_example_is_complete(example):
    written = {path.relative_to(example).as_posix() for path in example.rglob("*") if path.is_file()}
    assert written == set(NAMES)


def test_the_checksums_of_the_example_follow_from_the_description(example):
    pages = np.fromfile(example / "vectors.bin", np.uint8).reshape(-1, 4096)
    sums = np.empty(len(pages), np.uint32)
    reference.page_checksums(pages, sums)
    assert (example / "vectors.sum").read_bytes()[32:] == sums.astype("<u4").tobytes()
    text = DOCUMENT.read_text()
    for value in sums.tolist():
        assert f"`{value:#010x}`" in text


def test_the_manifest_has_the_described_members(example, tmp_path):
    build_example(tmp_path)
    manifest = write_manifest(
        tmp_path, n=4, dim=1300, dtype="uint8", metric="l2", preview="flat", preview_parameters={}, operating_points=[],
        promise={},
    )  # fmt: skip
    text = DOCUMENT.read_text()
    for member in ("format_version", "xxh3", "manifest", *manifest.__struct_fields__):
        assert f"`{member}`" in text, member
