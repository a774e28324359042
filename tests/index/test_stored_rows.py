"""Rows streamed from a generation, as a fold and a rebuild see them."""

from __future__ import annotations

import numpy as np
import pytest

from index import BuildOptions, build, open_index, stored_rows
from index.fold_plan import Changes, Given, match_rows, place
from index.passes import row_hashes
from index.stored_rows import KeptRows, stored_blocks


@pytest.fixture(params=[("float32", 24), ("float16", 100), ("int8", 24), ("float32", 1500)], ids=str)
def opened(request, tmp_path):
    dtype, dim = request.param
    rows = np.random.default_rng(0).integers(-50, 50, (333, dim)).astype(dtype)
    build(rows, tmp_path / "out", options=BuildOptions(metric="l2", threads=1))
    with open_index(tmp_path / "out") as index:
        yield index, index.vectors(np.arange(333))


@pytest.mark.parametrize("first,last", [(0, None), (0, 1), (7, 8), (100, 333), (40, 41)])
def test_blocks_are_the_rows_in_order(opened, monkeypatch, first, last):
    index, rows = opened
    monkeypatch.setattr(stored_rows, "BLOCK_PAGES", 2)
    at = first
    for begin, vectors in stored_blocks(index.generation, first=first, last=last):
        assert begin == at and vectors.dtype == rows.dtype
        np.testing.assert_array_equal(vectors, rows[begin : begin + len(vectors)])
        at += len(vectors)
    assert at == (333 if last is None else last)


@pytest.mark.parametrize("start,each", [(0, 1000), (0, 50), (119, 7), (125, 4)])
def test_kept_rows_then_new_ones_are_a_shard(opened, start, each):
    index, rows = opened
    kept = np.sort(np.random.default_rng(1).choice(333, 120, replace=False))
    new = (rows[:9] + 1).astype(np.float32)
    shard = KeptRows(index.generation, kept, new, lambda numbers: [b"%d" % n for n in numbers])
    expected = np.concatenate([rows[kept].astype(np.float32), new])
    chunks = list(shard.chunks(start, each))
    assert shard.n == 129 and [len(c.vectors) for c in chunks[:-1]] == [min(each, 129 - start)] * (len(chunks) - 1)
    np.testing.assert_array_equal(np.concatenate([c.vectors for c in chunks]), expected[start:])
    assert [p for c in chunks for p in c.payload] == [b"%d" % n for n in range(start, 129)]


def test_equal_rows_become_one_node_wherever_they_come_from(tmp_path):
    rows = np.eye(8, dtype=np.float32)[[0, 1, 2, 2, 3]]
    build(rows, tmp_path / "out", ids=[4, 3, 9, 7, 1], options=BuildOptions(metric="l2", preview="flat"))
    with open_index(tmp_path / "out") as index:
        old = index.generation
        keep = np.ones(5, np.bool_)
        keep[index.ids.rows_of([4, 7])] = False
        # Again row 4 under another id; a copy of 9; two equal new ones.
        new = np.eye(8, dtype=np.float32)[[0, 2, 5, 5]]
        changes = Changes(keep=keep, vectors=new, ids=[20, 8, 31, 30], payloads=[None] * 4, new_payloads={})
        given = Given(old, changes)
        nodes = np.arange(old.preview.nodes)
        matched = match_rows(old, row_hashes(index.vectors(old.places.groups.first_rows(nodes))), row_hashes(new))
        assert len(matched.firsts) == 1
        placing = place(given, matched, np.array([1]), np.array([0]))
        assert (
            (placing.old_places >= 0).all() and placing.new_places.tolist() == [2] and placing.new_rows.tolist() == [2]
        )
        assert sorted(placing.sizes.tolist()) == [1, 1, 1, 2, 2]
        ids = given.ids_of(placing.sources).tolist()
        assert (
            ids.index(9) == ids.index(8) + 1
            and ids.index(31) == ids.index(30) + 1
            and sorted(ids) == [1, 3, 8, 9, 20, 30, 31]
        )
