"""Searching: any rows, ids and k against brute force; threads; recalls asked for; what is refused."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from brute_force import recall_by_scores, require_reference, same_hits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index import BuildOptions, OpenOptions, SearchOptions, build, open_index
from index.errors import IndexClosedError, OptionsError, ShapeMismatchError, UnknownIndexError

EXACT = SearchOptions(exact=True)


@st.composite
def collections(draw):
    """Rows of some dtype, some of them equal, with ids of some kind."""
    n, dim = draw(st.integers(1, 60)), draw(st.integers(1, 24))
    dtype = draw(st.sampled_from(["float64", "float32", "float16", "int8", "uint8"]))
    generator = np.random.default_rng(draw(st.integers(0, 2**20)))
    if dtype in ("int8", "uint8"):
        rows = generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (n, dim), endpoint=True).astype(dtype)
    else:
        rows = (generator.normal(size=(n, dim)) * draw(st.sampled_from([0.01, 1.0, 100.0]))).astype(dtype)
    for copy in range(draw(st.integers(0, n // 2))):
        rows[generator.integers(n)] = rows[copy]
    numbers = [int(i) * 2**44 + 7 for i in generator.choice(2**20, n, replace=False)]  # up to 64 bits
    kind = draw(st.sampled_from(["none", "numbers", "strings", "both"]))
    ids = {
        "none": None,
        "numbers": numbers,
        "strings": [f"id {i:x}" for i in numbers],
        "both": [i if i // 2**44 % 2 else f"é{i}" for i in numbers],
    }[kind]
    return rows, ids, generator


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    made=collections(),
    metric=st.sampled_from(["cosine", "dot", "l2"]),
    preview=st.sampled_from(["auto", "flat", "graph"]),
    k=st.integers(1, 70),
)
def test_small_collections_equal_brute_force(made, metric, preview, k):
    rows, ids, generator = made
    queries = np.concatenate([rows[:3].astype(np.float32), generator.normal(size=(3, rows.shape[1]))]).astype(
        np.float32
    )
    if metric == "cosine":
        queries = queries[queries.any(axis=1)]
    with tempfile.TemporaryDirectory() as folder:
        build(rows, Path(folder) / "out", ids=ids, options=BuildOptions(metric=metric, preview=preview, threads=1))
        with open_index(Path(folder) / "out") as index:
            stored = rows.astype(np.float32) if rows.dtype == np.float64 else rows
            wanted = list(range(len(rows))) if ids is None else ids
            np.testing.assert_array_equal(index.vectors(index.ids.rows_of(wanted)), stored)
            for options in (None, EXACT):
                require_reference(index.search(queries, k=k, options=options), stored, queries, metric, k, ids=ids)


@pytest.fixture(scope="module")
def real(wordnet, tmp_path_factory):
    """An index of 12,000 real rows, walked."""
    out = tmp_path_factory.mktemp("real") / "out"
    report = build(wordnet.vectors[:12_000], out, ids=wordnet.ids[:12_000], queries=wordnet.sample_queries)
    assert report.preview == "graph"
    return out, report


def test_recall_asked_for_is_recall_given(real, wordnet):
    out, _ = real
    queries = wordnet.queries.astype(np.float32)
    rows = wordnet.vectors[:12_000]
    with open_index(out) as index:
        pages = []
        for asked in (0.8, 0.9, 0.95, 0.98):
            hits = index.search(queries, k=10, options=SearchOptions(recall=asked))
            assert recall_by_scores(hits, rows, queries, "cosine", 10) >= asked - 0.01
            pages.append(hits.work.pages_read.mean() + hits.work.rows_scored.mean() / 80)
        assert pages == sorted(pages)
        promised = index.search(queries, k=10)
        assert recall_by_scores(promised, rows, queries, "cosine", 10) >= 0.95


def test_work_is_what_was_done(real, wordnet):
    out, _ = real
    with open_index(out) as index:
        work = index.search(wordnet.queries[:40], k=10, options=SearchOptions(beam=64, rerank=30)).work
        assert (work.candidates == 30).all() and (work.hops >= 64).all() and (work.rows_scored > 64).all()
        assert (work.pages_read <= 30).all() and (work.bytes_read == 4096 * work.pages_read).all()
        assert (work.rows_reranked >= 30).all()
        exact = index.search(wordnet.queries[:2], k=10, options=EXACT).work
        assert (exact.hops == 0).all() and (exact.rows_reranked == 12_000).all()
        assert set(work.of(0)) >= {"rows_scored", "pages_read", "microseconds"}


def test_a_wider_beam_and_a_deeper_rerank_find_no_less(real, wordnet):
    out, _ = real
    queries, rows = wordnet.queries[:200].astype(np.float32), wordnet.vectors[:12_000]
    with open_index(out) as index:
        found = [
            recall_by_scores(
                index.search(queries, k=10, options=SearchOptions(beam=beam, rerank=beam)), rows, queries, "cosine", 10
            )
            for beam in (10, 40, 160, 640)
        ]
    assert found == sorted(found) and found[-1] > 0.99


def test_any_number_of_threads_at_once(real, wordnet):
    out, _ = real
    queries = wordnet.queries.astype(np.float32)
    with open_index(out) as index:
        expected = index.search(queries, k=10)
        results: list[object] = []

        def search(start: int) -> None:
            try:
                for q in range(start, len(queries), 8):
                    hits = index.search(queries[q], k=10)
                    results.append(
                        (hits.ids[0] == expected.ids[q]).all() and (hits.scores[0] == expected.scores[q]).all()
                    )
            except Exception as error:
                results.append(error)

        threads = [threading.Thread(target=search, args=(start,)) for start in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == len(queries) and all(result is np.True_ or result is True for result in results)
        assert index.stats()["scratch_bytes"] > 0


def test_closing_while_threads_search_ends_them_in_order(real, wordnet):
    out, _ = real
    index = open_index(out)
    ends: list[object] = []
    started = threading.Barrier(5)

    def search() -> None:
        started.wait()
        try:
            while True:
                index.search(wordnet.queries[:32], k=10)
        except Exception as error:
            ends.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    index.close()
    for thread in threads:
        thread.join(timeout=10)
    assert [type(end) for end in ends] == [IndexClosedError] * 4
    index.close()


def test_what_is_refused_when_opening_and_searching(real, wordnet, tmp_path):
    with pytest.raises(UnknownIndexError, match="nothing"):
        open_index(tmp_path / "nothing")
    with pytest.raises((OptionsError, ValueError), match="io_mode"):
        open_index(real[0], options=OpenOptions(io_mode="telepathy"))
    with open_index(real[0]) as index:
        with pytest.raises(ShapeMismatchError, match="384"):
            index.search(wordnet.queries[:1, :100])
        assert index.search(np.zeros((0, 384), np.float32), k=3).ids.shape == (0, 3)
        assert len(index.search(np.zeros((0, 384), np.float32), k=3, options=EXACT)) == 0
    with pytest.raises(IndexClosedError):
        index.search(wordnet.queries[:1])


def test_arrays_returned_are_the_caller_s(real, wordnet):
    with open_index(real[0]) as index:
        first = index.search(wordnet.queries[:5], k=10)
        kept = first.ids.copy(), first.scores.copy()
        first.ids[:], first.scores[:] = 0, 0
        again = index.search(wordnet.queries[:5], k=10)
        index.search(wordnet.queries[5:60], k=10)
    assert (again.ids == kept[0]).all() and (again.scores == kept[1]).all()


def test_ordinary_pages_answer_as_huge_ones(real, wordnet):
    with open_index(real[0], options=OpenOptions(huge_pages=False)) as one, open_index(real[0]) as two:
        assert same_hits(one.search(wordnet.queries, k=10), two.search(wordnet.queries, k=10))


def test_many_hits_are_a_scan_unless_an_effort_was_asked_for(real, wordnet):
    with open_index(real[0]) as index:
        queries = wordnet.queries[:4]
        few, many = index.search(queries, k=100), index.search(queries, k=1000)
        assert (few.work.hops > 0).all() and (many.work.hops == 0).all()
        assert same_hits(many, index.search(queries, k=1000, options=EXACT))
        kept = index.search(queries, k=1000, options=SearchOptions(beam=1200))
        assert (kept.work.hops >= 1000).all() and (kept.counts == 1000).all()


def test_efforts_that_the_preview_does_not_know_are_refused(tmp_path, wordnet):
    rows = wordnet.vectors[:400]
    for preview, wrong, right in (("graph", "probes", "beam"), ("flat", "probes", "beam"), ("ivf", "beam", "probes")):
        if preview == "ivf":
            pytest.importorskip("faiss")
        build(rows, tmp_path / preview, options=BuildOptions(preview=preview))
        with open_index(tmp_path / preview) as index:
            with pytest.raises(OptionsError, match=rf"{wrong} was given.* is {preview}.*Give {right}"):
                index.search(rows[:1], options=SearchOptions(**{wrong: 4}))
            assert index.search(rows[:1], k=1, options=SearchOptions(**{right: 4})).ids[0, 0] == 0


def test_hits_say_which_point_was_used_and_whether_it_reaches_the_recall(real, wordnet):
    with open_index(real[0]) as index:
        promised = index.search(wordnet.queries[:3])
        assert promised.reached and promised.point == index.point(10)
        asked = index.search(wordnet.queries[:3], options=SearchOptions(recall=1.0))
        assert not asked.reached and asked.point.low < 1.0
        assert asked.point.low == max(point.low for point in index.generation.points if point.k == 10)
        for options in (SearchOptions(exact=True), SearchOptions(beam=30), SearchOptions(rerank=5)):
            own = index.search(wordnet.queries[:3], options=options)
            assert own.reached and own.point is None
        assert not index.search(wordnet.queries[:3], options=SearchOptions(recall=0.9, rerank=5)).reached


def test_payloads_of_rows_with_and_without(tmp_path, wordnet):
    rows = wordnet.vectors[:3]
    build(rows, tmp_path / "with", payload=[{"t": "x"}, None, {"t": [1]}])
    build(rows, tmp_path / "without")
    with open_index(tmp_path / "with") as index:
        hits = index.search(rows, k=1)
        assert index.payloads(hits.rows[:, 0]) == [{"t": "x"}, None, {"t": [1]}]
        assert index.payloads([]) == []
        with pytest.raises(ShapeMismatchError, match="rows"):
            index.payloads([3])
    with pytest.raises(IndexClosedError):
        index.payloads([0])
    with open_index(tmp_path / "without") as index:
        assert index.payload is None and index.payloads([0, 2]) == [None, None]
