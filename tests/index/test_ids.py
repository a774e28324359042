"""Ids: what counts as one, exact digits, duplicates, look-up against a dict, order against sorted()."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index import id_lookup
from index.errors import BadIdError, CorruptIndexError, CorruptReason, DuplicateIdError, UnsupportedFormatError
from index.ids import ID_MAX, IdTable, canonical_id, write_ids

EDGE_IDS = [0, 1, 2**53 + 1, 2637283987631399372, 2**63, ID_MAX]
UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"
UUID_SPELLINGS = [
    UUID_TEXT,
    UUID_TEXT.upper(),
    UUID_TEXT.replace("-", ""),
    "urn:uuid:" + UUID_TEXT,
    "{" + UUID_TEXT.upper() + "}",
]

texts = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=12
) | st.sampled_from(["z" * 255, "\U0010ffff" * 255, "\uffff", "\U00010000", "123", UUID_TEXT])
integer_ids = st.integers(0, ID_MAX) | st.sampled_from(EDGE_IDS)
id_lists = st.lists(integer_ids | texts, max_size=40).map(lambda ids: list(dict.fromkeys(map(canonical_id, ids))))


def in_id_order(ids):
    return sorted(ids, key=lambda value: (isinstance(value, str), value))


def written(folder: Path, ids, seed=0):
    """The table of ids whose rows are shuffled, with its codes and {id: row}."""
    order = np.random.default_rng(seed).permutation(len(ids)).astype(np.int64)
    codes = write_ids(folder, ids, order)
    return codes, {canonical_id(ids[source]): row for row, source in enumerate(order.tolist())}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=id_lists, others=st.lists(integer_ids | texts, max_size=10), start=integer_ids | texts, limit=st.integers(1, 9)
)
def test_table_agrees_with_a_dict(tmp_path, ids, others, start, limit):
    codes, row_of = written(tmp_path, ids)
    with IdTable.open(tmp_path) as table:
        assert table.n == len(ids)
        assert table.kind == ("mixed" if any(isinstance(value, str) for value in ids) else "integers")
        asked = ids + others
        assert table.rows_of(asked).tolist() == [row_of.get(canonical_id(value), -1) for value in asked]
        by_row = sorted(row_of, key=row_of.__getitem__)
        assert table.ids_of_codes(codes).tolist() == by_row
        assert np.array_equal(table.codes(), codes)
        # Ascending id code is ascending id.
        assert [by_row[row] for row in np.argsort(codes)] == in_id_order(by_row)
        ordered = in_id_order(ids)
        begin = canonical_id(start)
        expected = in_id_order([*ids, begin]).index(begin)
        got, rows = table.in_order(start, limit)
        assert got.tolist() == ordered[expected : expected + limit]
        assert rows.tolist() == [row_of[value] for value in got.tolist()]
        assert table.in_order(None, 1000)[0].tolist() == ordered


def test_s9_ids_keep_every_digit(tmp_path):
    written(tmp_path, EDGE_IDS)
    with IdTable.open(tmp_path) as table:
        ids, rows = table.in_order(None, 100)
        assert ids.dtype == np.uint64
        assert [str(value) for value in ids] == ["0", "1", "9007199254740993", "2637283987631399372",
                                                 "9223372036854775808", "18446744073709551615"]  # fmt: skip
        assert table.rows_of(EDGE_IDS).tolist() == rows.tolist()
        assert table.rows_of([2**53, 2**53 + 2, ID_MAX - 1]).tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    "value", [True, np.True_, -1, ID_MAX + 1, 1.5, 1.0, None, b"x", "", "x" * 256, "a\0b", "\ud800", [1], np.int64(-3)]
)
def test_refused_ids_are_named(value):
    with pytest.raises(BadIdError) as caught:
        canonical_id(value)
    named = str(value) if isinstance(value, int | float | np.integer) else repr(value)[:20]
    assert named.rstrip("'") in str(caught.value)


def test_a_bad_id_in_a_list_is_counted(tmp_path):
    with pytest.raises(BadIdError, match=r"id -1 is out of range.*number 2 of the ids"):
        write_ids(tmp_path, [1, 2, -1], np.arange(3))
    with pytest.raises(BadIdError, match=r"id -5 is negative.*number 1 of the ids"):
        write_ids(tmp_path, np.array([3, -5]), np.arange(2))
    with pytest.raises(BadIdError, match=r"1\.5"):
        write_ids(tmp_path, np.array([1.5]), np.arange(1))
    with pytest.raises(BadIdError, match="True"):
        write_ids(tmp_path, np.array([True]), np.arange(1))
    assert not (tmp_path / "ids").exists()


@pytest.mark.parametrize("spelling", [*UUID_SPELLINGS, UUID(UUID_TEXT)])
def test_spellings_of_a_uuid_are_one_id(tmp_path, spelling):
    assert canonical_id(spelling) == UUID_TEXT
    written(tmp_path, [7, spelling, "plain"])
    with IdTable.open(tmp_path) as table:
        rows = table.rows_of(UUID_SPELLINGS)
        assert rows.min() >= 0
        assert len(set(rows.tolist())) == 1
        assert table.in_order(None, 3)[0].tolist() == [7, UUID_TEXT, "plain"]


@pytest.mark.parametrize(
    "text", ["550e8400-e29b-41d4-a716-44665544000", "550e8400e29b-41d4-a716-446655440000-", "g" * 32]
)
def test_what_only_resembles_a_uuid_stays(text):
    assert canonical_id(text) == text


@pytest.mark.parametrize(
    "ids, named, rows",
    [
        ([5, 6, 5], 5, (0, 2)),
        (np.array([9, 8, 8, 9], np.uint64), 8, (1, 2)),
        (["a", 1, "b", "a"], "a", (0, 3)),
        ([UUID_TEXT, UUID_TEXT.upper()], UUID_TEXT, (0, 1)),
    ],
)
def test_duplicates_name_the_id_and_both_rows(tmp_path, ids, named, rows):
    with pytest.raises(DuplicateIdError) as caught:
        write_ids(tmp_path, ids, np.arange(len(ids)))
    assert (caught.value.id, caught.value.rows) == (named, rows)
    assert repr(named) in str(caught.value)


def test_an_integer_and_its_digits_as_a_string_are_two_ids(tmp_path):
    _, row_of = written(tmp_path, [123, "123"])
    with IdTable.open(tmp_path) as table:
        assert table.rows_of([123, "123"]).tolist() == [row_of[123], row_of["123"]]


def test_many_ids_take_the_long_search(tmp_path):
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(0, 2**64, 5000, dtype=np.uint64))
    rng.shuffle(ids)
    order = rng.permutation(len(ids)).astype(np.int64)
    codes = write_ids(tmp_path, ids, order, codes_file=False)
    assert np.array_equal(codes, ids[order])
    with IdTable.open(tmp_path) as table:
        assert np.array_equal(table.rows_of(ids[order]), np.arange(len(ids)))
        absent = ids + np.uint64(1)
        assert np.array_equal(table.rows_of(absent) >= 0, np.isin(absent, ids))
        with pytest.raises(CorruptIndexError, match=r"codes\.npy"):
            table.codes()


def test_padding_codes_of_a_mixed_table_are_none(tmp_path):
    written(tmp_path, ["a", 4])
    with IdTable.open(tmp_path) as table:
        found = table.ids_of_codes(np.array([[1, ID_MAX], [0, 2]], np.uint64))
        assert found.tolist() == [["a", None], [4, None]]


@pytest.mark.parametrize("ids", [["a", "b", 4], [3, 4]])
def test_a_damaged_file_is_refused_by_name(tmp_path, ids):
    written(tmp_path, ids)
    path = tmp_path / "ids" / "table.bin"
    whole = path.read_bytes()
    for damaged, error in [
        (whole[:-1], CorruptIndexError),
        (whole + b"x", CorruptIndexError),
        (whole[:20], CorruptIndexError),
        (b"X" + whole[1:], CorruptIndexError),
        (whole[:8] + b"\x02" + whole[9:], UnsupportedFormatError),
        (whole[:12] + bytes([3 - whole[12]]) + whole[13:], CorruptIndexError),  # the other kind
    ]:
        path.write_bytes(damaged)
        with pytest.raises(error, match=r"table\.bin"):
            IdTable.open(tmp_path)
        assert path.read_bytes() == damaged
    path.unlink()
    with pytest.raises(CorruptIndexError, match=r"table\.bin") as caught:
        IdTable.open(tmp_path)
    assert caught.value.reason is CorruptReason.MISSING
    assert f"fullview check {tmp_path}`" in str(caught.value)


def test_damage_inside_is_found_where_it_can_be(tmp_path):
    written(tmp_path, ["a", 4])
    path = tmp_path / "ids" / "table.bin"
    whole = path.read_bytes()
    row_of_a, begin_of_a = 64 + 8 + 8, 64 + 8 + 16  # after the header and one integer; after both rows
    for place, damage, words in [
        (row_of_a + 7, b"\x7f", "expected a row below 2"),
        (begin_of_a, b"\xf0\xff", "impossible length"),
    ]:
        path.write_bytes(whole[:place] + damage + whole[place + len(damage) :])
        with IdTable.open(tmp_path) as table, pytest.raises(CorruptIndexError, match=words):
            table.rows_of(["a"])
    path.write_bytes(whole[:-1] + b"\xff")
    with IdTable.open(tmp_path) as table, pytest.raises(CorruptIndexError, match="UTF-8"):
        table.in_order(None, 5)


def test_a_file_cut_while_open_is_an_error_not_an_answer(tmp_path):
    ids = np.arange(5000, dtype=np.uint64)
    write_ids(tmp_path, ids, np.arange(5000))
    with IdTable.open(tmp_path) as table:
        with (tmp_path / "ids" / "table.bin").open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(CorruptIndexError, match="wrong size"):
            table.rows_of([4000])
    assert id_lookup.read_words(-1, 0, np.zeros(1, np.int64), np.zeros(1, np.int64)) == -9  # EBADF
