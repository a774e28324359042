"""Payloads against a plain list, and what happens to damaged files."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.errors import CorruptIndexError, CorruptReason, IndexClosedError, UnsupportedFormatError
from index.payload import PayloadFile, PayloadWriter

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
payloads = st.lists(st.none() | st.dictionaries(st.text(max_size=5), values, max_size=4), max_size=20)


def test_payloads_come_back(tmp_path):
    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(rows=payloads, cut=st.integers(0, 20), picks=st.lists(st.integers(0, 19)))
    def check(rows, cut, picks):
        with PayloadWriter(tmp_path) as writer:
            writer.append(rows[:cut])
            writer.append(rows[cut:])
        with PayloadFile.open(tmp_path) as file:
            assert file.n == len(rows)
            picks = [pick for pick in picks if pick < len(rows)]
            found = file.get(np.array(picks, np.int64))
            assert [raw if raw is None else json.loads(raw) for raw in found] == [rows[pick] for pick in picks]

    check()


def test_what_json_has_no_number_for_is_null(tmp_path):
    with PayloadWriter(tmp_path) as writer:
        writer.append([{"a": float("inf"), "b": [float("nan"), 1.5]}])
    with PayloadFile.open(tmp_path) as file:
        assert json.loads(file.get(np.array([0]))[0]) == {"a": None, "b": [None, 1.5]}


def test_raw_json_is_kept_byte_for_byte(tmp_path):
    raw = b'{"big": 18446744073709551615, "text": "\xc3\xa9"}'
    with PayloadWriter(tmp_path) as writer:
        writer.append([raw, None, {}])
    with PayloadFile.open(tmp_path) as file:
        assert file.get([2, 0, 1, 0]) == [b"{}", raw, None, raw]
        for row in (-1, 3):
            with pytest.raises(IndexError, match=f"row {row} "):
                file.get([row])


def test_an_unfinished_file_is_refused(tmp_path):
    with pytest.raises(TypeError), PayloadWriter(tmp_path) as writer:
        writer.append([{"a": 1}, {"a": object()}])
    assert [path.name for path in (tmp_path / "payload").iterdir()] == ["data.bin"]
    with pytest.raises(UnsupportedFormatError, match=r"data\.bin has format version 0"):
        PayloadFile.open(tmp_path)


def test_a_writer_that_is_cut_off_leaves_a_file_that_is_refused(tmp_path):
    writer = PayloadWriter(tmp_path)
    writer.append([{"a": "x" * 1000}] * 3000)
    assert (tmp_path / "payload" / "data.bin").stat().st_size > 1 << 20  # what is written streams
    with pytest.raises(UnsupportedFormatError, match="format version 0"):
        PayloadFile.open(tmp_path)
    writer.close()
    writer.close()
    with PayloadFile.open(tmp_path) as file:
        assert (file.n, file.get([2999])) == (3000, [b'{"a":"' + b"x" * 1000 + b'"}'])


def test_a_damaged_file_is_refused_by_name(tmp_path):
    with PayloadWriter(tmp_path) as writer:
        writer.append([{"a": 1}, {"b": 2}])
    path = tmp_path / "payload" / "data.bin"
    whole = path.read_bytes()
    for damaged, error in [
        (whole[:-1], CorruptIndexError),
        (whole + b"x", CorruptIndexError),
        (whole[:9], CorruptIndexError),
        (b"X" + whole[1:], CorruptIndexError),
        (whole[:8] + b"\x02" + whole[9:], UnsupportedFormatError),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(error, match=r"data\.bin"):
            PayloadFile.open(tmp_path)
        assert path.read_bytes() == damaged
    path.unlink()
    with pytest.raises(CorruptIndexError, match=r"data\.bin") as caught:
        PayloadFile.open(tmp_path)
    assert caught.value.reason is CorruptReason.MISSING


def test_each_flipped_bit_of_a_record_is_found(tmp_path):
    with PayloadWriter(tmp_path) as writer:
        writer.append([{"a": 1}, {"title": "x"}])
    path = tmp_path / "payload" / "data.bin"
    whole = path.read_bytes()
    begin = 64 + len(b'{"a":1}')
    for place in range(begin, len(whole) - 2 * 12 - 8):  # two rows of the table and the end follow
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with PayloadFile.open(tmp_path) as file:
            assert file.get([0]) == [b'{"a":1}']
            with pytest.raises(CorruptIndexError, match="checksum mismatch") as caught:
                file.get([1])
        assert (caught.value.path, caught.value.offset_bytes) == (path, begin)


def test_a_flipped_bit_of_the_table_is_refused_and_never_changes_an_answer(tmp_path):
    rows = [{"a": "x" * length} for length in range(12)]
    rows[4:8] = [None, None, {}, None]
    with PayloadWriter(tmp_path) as writer:
        writer.append(rows)
    with PayloadFile.open(tmp_path) as file:
        expected = file.get(np.arange(12))
    path = tmp_path / "payload" / "data.bin"
    whole = path.read_bytes()
    begin = len(whole) - 12 * 12 - 8
    for bit in range(8 * (12 * 12 + 8)):
        damaged = bytearray(whole)
        damaged[begin + bit // 8] ^= 1 << bit % 8
        refused, row_of_bit = [], bit // 96
        path.write_bytes(whole)
        with PayloadFile.open(tmp_path) as file:
            path.write_bytes(damaged)  # while it is open
            for row in range(12):
                try:
                    assert file.get([row]) == [expected[row]]
                except CorruptIndexError:
                    refused.append(row)
        # The checksum of a row without payload says nothing.
        unread = bit % 96 >= 64 and row_of_bit < 12 and rows[row_of_bit] is None
        assert refused or unread, f"bit {bit} went unnoticed"
        assert set(refused) <= {row_of_bit - 1, row_of_bit}
        with pytest.raises(CorruptIndexError, match="checksum mismatch"):
            PayloadFile.open(tmp_path)


def test_damaged_offsets_and_a_file_cut_while_open(tmp_path):
    with PayloadWriter(tmp_path) as writer:
        writer.append([{"a": 1}, {"b": 2}])
    path = tmp_path / "payload" / "data.bin"
    whole = path.read_bytes()
    begin, row_1, end = len(whole) - 32, len(whole) - 20, len(whole) - 8
    for place, offset in [(begin, -1), (begin, 63), (row_1, 64), (row_1, begin + 1), (end, begin + 1)]:
        path.write_bytes(whole)
        with PayloadFile.open(tmp_path) as file:
            path.write_bytes(whole[:place] + offset.to_bytes(8, "little", signed=True) + whole[place + 8 :])
            with pytest.raises(CorruptIndexError, match="ascending offsets"):
                file.get([0, 1])
    path.write_bytes(whole)
    with PayloadFile.open(tmp_path) as file:
        os.truncate(path, 20)
        with pytest.raises(CorruptIndexError, match="wrong size"):
            file.get([1])
        file.close()
        with pytest.raises(IndexClosedError, match=r"data\.bin was closed; open the index again"):
            file.get([1])
