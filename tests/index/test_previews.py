"""Flat and graph previews, groups of equal rows, resident arrays, scratch: index/preview/ but for ivf."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.codes import Coder, encode_int8
from index.graph import GraphOptions, GraphRows, build_graph
from index.options import Metric, PreviewKind
from index.preview import Preview, Scratch
from index.preview.base import Candidates
from index.preview.flat import FlatPreview
from index.preview.graph import GraphPreview
from index.preview.groups import Groups
from index.resident import HUGE_PAGE_BYTES, load_resident, resident_array


def previews(n: int = 500, bits: int = 4) -> tuple[Coder, np.ndarray, dict[str, Preview]]:
    rows = np.random.default_rng(0).normal(size=(n, 24)).astype(np.float32)
    coder = Coder(dim=24, metric=Metric.L2, bits=bits, mean=rows.mean(axis=0), seed=0)
    codes, scalars = coder.encode_block(coder.rotated(rows))
    graph_rows = GraphRows(*encode_int8(coder.rotated(rows), extra=None))
    links, entries = build_graph(graph_rows, options=GraphOptions(degree=16), threads=1)
    flat, graph = FlatPreview(codes, scalars, bits), GraphPreview(codes, scalars, links, entries, bits)
    return coder, rows, {"flat": flat, "graph": graph}


@pytest.mark.parametrize("kind", ["flat", "graph"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_candidates_are_distinct_and_nearest_first(kind, bits):
    coder, rows, kinds = previews(bits=bits)
    preview = kinds[kind]
    found = preview.candidates(coder.prepare(rows[:20]), effort=64, width=10, scratch=Scratch())
    assert isinstance(found, Candidates) and found.nodes.shape == (20, 64)
    for q in range(20):
        mine = found.nodes[q, : found.counts[q]].tolist()
        assert len(set(mine)) == len(mine) and q in mine
        assert (np.diff(found.distances[q, : found.counts[q]]) >= 0).all()
    if kind == "flat":
        assert (found.scored == 500).all() and (found.hops == 0).all()
    else:
        assert (found.scored < 500).all() and (found.hops >= 64).all()


def test_a_beam_of_all_rows_is_a_scan():
    coder, rows, kinds = previews()
    prepared = coder.prepare(rows[:10] * 0.9)
    flat, graph = (kinds[k].candidates(prepared, effort=10**6, width=10, scratch=Scratch()) for k in ("flat", "graph"))
    assert (graph.counts == 500).all() and (flat.counts == 500).all()
    np.testing.assert_array_equal(flat.distances, graph.distances)


@pytest.mark.parametrize("kind", ["flat", "graph"])
def test_width_is_a_floor_and_all_nodes_are_the_ceiling(kind):
    coder, rows, kinds = previews()
    prepared = coder.prepare(rows[:3])
    for effort, width, expected in ((1, 1, 1), (5, 30, 30), (30, 5, 30), (600, 5, 500), (5, 600, 500)):
        found = kinds[kind].candidates(prepared, effort=effort, width=width, scratch=Scratch())
        assert found.nodes.shape == (3, expected) and (found.counts == expected).all()


@pytest.mark.parametrize("kind", ["flat", "graph"])
def test_saved_and_loaded(kind, tmp_path):
    coder, rows, kinds = previews()
    preview = kinds[kind]
    names = preview.save(tmp_path)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    again = type(preview).load(tmp_path, bits=4, huge_pages=True)
    assert again.kind is PreviewKind(kind) and again.nodes == 500 and again.bits == 4
    assert again.resident_bytes() == preview.resident_bytes()
    prepared = coder.prepare(rows[:10])
    for a, b in zip(*(p.candidates(prepared, effort=32, width=10, scratch=Scratch()) for p in (preview, again))):
        np.testing.assert_array_equal(a, b)


def test_scratch_grows_and_its_marks_start_again_before_they_overflow():
    scratch = Scratch()
    assert len(scratch.visited_table(64)) == 64
    scratch.mark = 7
    small = scratch.visited_table(32)
    assert len(small) == 32 and scratch.mark == 7 and small.base is scratch.visited
    scratch.visited[:] = 1
    assert len(scratch.visited_table(128)) == 128 and scratch.mark == 0 and not scratch.visited.any()
    scratch.visited[:], scratch.mark = 1, 2**31 + 1
    assert not scratch.visited_table(64).any() and scratch.mark == 0
    assert scratch.resident_bytes >= 128 * 8


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_groups_know_the_rows_of_each_node(sizes):
    groups = Groups.of_sizes(np.array(sizes, np.int64))
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    assert groups.first_rows(np.arange(len(sizes))).tolist() == first.tolist()
    assert groups.nodes.tolist() == [i for i, size in enumerate(sizes) if size > 1]
    assert groups.resident_bytes == 12 * len(groups.nodes)


@pytest.mark.parametrize("size", [0, 5, HUGE_PAGE_BYTES // 4 + 3])
@pytest.mark.parametrize("huge_pages", [False, True])
def test_resident_arrays_hold_what_the_file_holds(tmp_path, size, huge_pages):
    array = np.random.default_rng(0).integers(-100, 100, (size, 1)).astype(np.int32)
    np.save(tmp_path / "a.npy", array)
    loaded = load_resident(tmp_path / "a.npy", huge_pages=huge_pages)
    np.testing.assert_array_equal(loaded, array)
    assert loaded.flags.writeable and loaded.flags.c_contiguous
    assert not resident_array((3, 4), np.dtype(np.float32), huge_pages=huge_pages).any()


def test_a_file_that_ends_too_early_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000))
    raw = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(raw[:-16])
    with pytest.raises(EOFError, match=r"a\.npy ends after"):
        load_resident(tmp_path / "a.npy", huge_pages=False)
