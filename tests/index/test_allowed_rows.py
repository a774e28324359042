"""Searches among allowed rows against brute force: any share, any correlation with the query, all previews; scenario S20."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from brute_force import all_scores, require_reference, same_hits

from index import AllowedRows, BuildOptions, SearchOptions, build, open_index
from index.errors import ShapeMismatchError
from index.preview.groups import Groups

PROMISE = 0.95
KINDS = {"flat": "auto", "graph": "auto", "ivf": 4, "pq": "pq"}
CASES = [
    (metric, kind, dtype)
    for metric, dtypes in (
        ("cosine", ("float32", "int8", "float16", "float32")),
        ("dot", ("float16", "float32", "int8", "float32")),
        ("l2", ("uint8", "float32", "float32", "float16")),
    )
    for kind, dtype in zip(KINDS, dtypes)
]
SHARES = (0.001, 0.01, 0.1, 0.5, 0.99, 1.0)


def made_rows(dtype: str, n: int = 2500, dim: int = 16) -> np.ndarray:
    """Clustered rows; one of them 60 times over, some others twice."""
    generator = np.random.default_rng(5)
    rows = generator.normal(size=(40, dim))[generator.integers(0, 40, n)] + 0.6 * generator.normal(size=(n, dim))
    rows[generator.choice(n, 60, replace=False)] = rows[7]
    rows[generator.choice(n, 100, replace=False)] = rows[generator.choice(n, 100)]
    scale, shift = {"int8": (30, 0), "uint8": (30, 128)}.get(dtype, (1, 0))
    if dtype in ("int8", "uint8"):
        rows = np.clip(np.rint(rows * scale + shift), np.iinfo(dtype).min, np.iinfo(dtype).max)
    return rows.astype(dtype)


class Made:
    """An index, its rows in the order of its own rows, and queries."""

    def __init__(self, index, rows: np.ndarray, metric: str) -> None:
        self.index, self.metric = index, metric
        self.ids = np.empty(len(rows), np.int64)
        own = index.ids.rows_of(np.arange(len(rows)))
        self.ids[own] = np.arange(len(rows))
        self.rows = rows[self.ids]
        generator = np.random.default_rng(8)
        some = rows[generator.choice(len(rows), 12)].astype(np.float32)
        self.queries = some + generator.normal(size=some.shape).astype(np.float32) * 0.3 * some.std()

    def require(self, hits, mask: np.ndarray, k: int) -> float:
        """Complete, allowed rows only, right scores, right order; returns the recall."""
        wanted = min(k, int(mask.sum()))
        assert hits.counts.tolist() == [wanted] * len(hits)
        scores = all_scores(self.rows, self.queries, self.metric)
        sign = -1.0 if self.metric == "l2" else 1.0
        size = 1.0 + np.abs(scores).max()
        found = []
        for q in range(len(hits)):
            mine, got = hits.rows[q, :wanted], hits.scores[q, :wanted]
            assert mask[mine].all() and len(set(mine.tolist())) == wanted
            assert hits.ids[q, :wanted].tolist() == self.ids[mine].tolist()
            assert np.abs(got - scores[q, mine]).max(initial=0) < 3e-6 * size
            order = sorted(range(wanted), key=lambda j: (-sign * got[j], hits.ids[q, j]))
            assert order == list(range(wanted))
            if wanted:
                limit = np.sort(sign * scores[q, mask])[-wanted]
                found.append((sign * got >= limit - 3e-6 * size).mean())
        return float(np.mean(found)) if found else 1.0


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def made(request, tmp_path_factory):
    metric, kind, dtype = request.param
    if kind in ("ivf", "pq"):
        pytest.importorskip("faiss")
    rows = made_rows(dtype)
    options = BuildOptions(metric=metric, preview="ivf" if kind == "pq" else kind, bits=KINDS[kind], threads=2)
    out = tmp_path_factory.mktemp("allowed") / "out"
    build(rows, out, options=options)
    with open_index(out) as index:
        yield Made(index, rows, metric)


def masks_of(made: Made) -> dict[str, np.ndarray]:
    """Random masks of every share, and masks that follow the first query: its nearest, its farthest, all but its nearest."""
    n, generator = len(made.rows), np.random.default_rng(1)
    masks = {str(share): generator.random(n) < share for share in SHARES}
    scores = all_scores(made.rows, made.queries, made.metric)[0]
    rank = np.argsort(np.argsort(scores if made.metric == "l2" else -scores))
    masks |= {"nearest": rank < n // 10, "farthest": rank >= n - n // 10, "others": rank >= 60}
    masks["one"], masks["copies"] = (
        rank == n - 1,
        (made.rows == made.rows[np.argmin(rank)]).all(axis=1) | (rank % 97 == 0),
    )
    return masks


@pytest.mark.parametrize("k", [1, 10, 70])
def test_every_mask_gives_complete_and_right_results(made, k):
    recalls = []
    for name, mask in masks_of(made).items():
        allowed = AllowedRows(mask)
        hits = made.index.search(made.queries, k, allowed=allowed)
        recall = made.require(hits, mask, k)
        assert recall >= 0.8, name
        recalls.append(recall)
        exact = made.index.search(made.queries, k, SearchOptions(exact=True), allowed=allowed)
        assert made.require(exact, mask, k) == 1.0
    assert np.mean(recalls) >= PROMISE


def test_one_by_one_is_as_together(made):
    for mask in masks_of(made).values():
        allowed = AllowedRows(mask)
        together = made.index.search(made.queries, 10, allowed=allowed)
        for q, query in enumerate(made.queries):
            alone = made.index.search(query, 10, allowed=allowed)
            assert alone.ids[0].tolist() == together.ids[q].tolist()
            assert alone.scores[0].tobytes() == together.scores[q].tobytes()
            assert alone.work.of(0) | {"microseconds": 0} == together.work.of(q) | {"microseconds": 0}


def test_all_rows_allowed_find_what_a_search_finds(made):
    plain = made.index.search(made.queries, 10)
    everything = made.index.search(made.queries, 10, allowed=AllowedRows(np.ones(made.index.n, np.bool_)))
    better = everything.scores <= plain.scores if made.metric == "l2" else everything.scores >= plain.scores
    assert better.all()


@pytest.mark.parametrize("options", [SearchOptions(rerank=1), SearchOptions(rerank=50), "effort"])
def test_an_effort_of_ones_own_gives_complete_results_too(made, options):
    if options == "effort":
        options = SearchOptions(probes=1) if made.index.generation.preview.kind == "ivf" else SearchOptions(beam=1)
    for mask in masks_of(made).values():
        made.require(made.index.search(made.queries, 10, options, allowed=AllowedRows(mask)), mask, 10)


def test_work_counts_what_was_done(made):
    n, layout = len(made.rows), made.index.generation.layout
    mask = np.random.default_rng(2).random(n) < 0.5
    work = made.index.search(made.queries, 10, allowed=AllowedRows(mask)).work
    assert (work.rows_reranked >= 10).all() and (work.rows_reranked <= work.pages_read * layout.vectors_per_page).all()
    assert (work.candidates >= 1).all() and (work.bytes_read == 4096 * work.pages_read).all()
    exact = made.index.search(made.queries, 10, SearchOptions(exact=True), allowed=AllowedRows(mask)).work
    assert (exact.rows_reranked == mask.sum()).all() and (exact.pages_read <= layout.n_pages).all()
    few = np.zeros(n, np.bool_)
    few[[3, n - 1]] = True
    work = made.index.search(made.queries, 10, SearchOptions(exact=True), allowed=AllowedRows(few)).work
    # Of a file of a few pages, all between the two are read at once.
    assert work.pages_read.tolist() == [2 if layout.n_pages > 16 else layout.n_pages] * 12
    assert work.rows_reranked.tolist() == [2] * 12


def test_nothing_allowed_reads_nothing(made):
    allowed = AllowedRows(np.zeros(len(made.rows), np.bool_))
    for options in (None, SearchOptions(exact=True), SearchOptions(rerank=5)):
        hits = made.index.search(made.queries, 10, options, allowed=allowed)
        assert hits.counts.tolist() == [0] * 12 and not hits.work.pages_read.any() and not hits.work.rows_scored.any()


def test_a_threshold_cuts_what_is_allowed(made):
    mask = np.random.default_rng(2).random(len(made.rows)) < 0.3
    whole = made.index.search(made.queries, 20, allowed=AllowedRows(mask))
    limit = float(whole.scores[0, 7])
    hits = made.index.search(made.queries[0], 20, SearchOptions(score_threshold=limit), allowed=AllowedRows(mask))
    assert hits.counts[0] == int(np.count_nonzero(whole.scores[0] == whole.scores[0, 7])) + int(
        np.count_nonzero(whole.scores[0] < limit if made.metric == "l2" else whole.scores[0] > limit)
    )


def test_masks_that_fit_no_row_are_refused(made):
    with pytest.raises(ShapeMismatchError, match="needed one bool for each row"):
        AllowedRows(np.ones(5, np.int8))
    with pytest.raises(ShapeMismatchError, match="which of 5 rows"):
        made.index.search(made.queries, 10, allowed=AllowedRows(np.ones(5, np.bool_)))


def test_what_is_derived_from_a_mask_is_made_once_for_all_threads():
    groups = Groups.of_sizes(np.array([1, 3, 1, 2, 1], np.int64))
    allowed = AllowedRows(np.array([0, 0, 0, 1, 0, 1, 1, 0], np.bool_))
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(allowed.nodes(groups))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(nodes is seen[0] for nodes in seen)
    nodes = allowed.nodes(groups)
    assert nodes.mask.tolist() == [False, True, False, True, False] and nodes.listed.tolist() == [1, 3]
    assert nodes.list_starts(np.array([0, 2, 5], np.int32)).tolist() == [0, 1, 2]
    assert allowed.places(3).tolist() == [1, 2] and (allowed.count, len(allowed), nodes.count) == (3, 8, 2)


# --- S20, and filters that go against the query, on real rows ------------------------------------------------------


@pytest.fixture(scope="module")
def real(wordnet, tmp_path_factory):
    out = tmp_path_factory.mktemp("allowed-real") / "out"
    report = build(wordnet.vectors, out, queries=wordnet.sample_queries)
    assert report.preview == "graph" and report.promise_kept
    with open_index(out) as index:
        own = index.ids.rows_of(np.arange(index.n))
        scores = all_scores(wordnet.vectors, wordnet.queries[:60], "cosine")
        by_row = np.empty_like(scores)
        by_row[:, own] = scores
        yield index, wordnet.queries[:60].astype(np.float32), by_row


@pytest.mark.parametrize("share", [0.99, 0.5, 0.1, 0.01, 0.001])
def test_s20_a_random_filter_reaches_the_promise_within_what_matches(real, wordnet, share):
    index, _, _ = real
    queries = wordnet.queries.astype(np.float32)
    allowed = AllowedRows(np.random.default_rng(3).random(index.n) < share)
    hits = index.search(queries, 10, allowed=allowed)
    assert hits.counts.tolist() == [10] * len(queries) and allowed.mask[hits.rows].all()
    assert index.recall(queries, 10, allowed=allowed).mean >= PROMISE


def test_s20_the_ten_farthest_points_come_in_the_order_of_the_reference(real, wordnet):
    index, queries, scores = real
    for q in range(10):
        mask = np.zeros(index.n, np.bool_)
        mask[np.argsort(scores[q])[:10]] = True
        hits = index.search(queries[q], 10, allowed=AllowedRows(mask))
        order = np.argsort(index.ids.rows_of(np.arange(index.n)))
        ids = order[np.flatnonzero(mask)]
        require_reference(hits, wordnet.vectors[ids], queries[q], "cosine", 10, ids=ids.tolist())


@pytest.mark.parametrize("name", ["farthest tenth", "farthest hundredth", "all but the nearest 100", "rarer when near"])
def test_s20_a_filter_that_goes_against_the_query_reaches_the_promise_too(real, name):
    index, queries, scores = real
    generator, recalls = np.random.default_rng(4), []
    for q in range(len(queries)):
        rank = np.argsort(np.argsort(-scores[q]))
        mask = {
            "farthest tenth": rank >= 0.9 * index.n,
            "farthest hundredth": rank >= 0.99 * index.n,
            "all but the nearest 100": rank >= 100,
            "rarer when near": generator.random(index.n) < rank / index.n,
        }[name]
        allowed = AllowedRows(mask)
        assert index.search(queries[q], 10, allowed=allowed).counts[0] == 10
        recalls.append(index.recall(queries[q], 10, allowed=allowed).mean)
    assert np.mean(recalls) >= PROMISE


def test_hidden_rows_cost_next_to_nothing(real):
    index, queries, _ = real
    plain = index.search(queries, 10).work
    hidden = index.search(queries, 10, allowed=AllowedRows(np.random.default_rng(5).random(index.n) < 0.99)).work
    assert hidden.rows_scored.mean() <= 1.1 * plain.rows_scored.mean()
    assert hidden.pages_read.mean() <= 1.2 * plain.pages_read.mean()


def test_s21_a_filter_in_batches_of_seven_is_the_filter_in_one_batch(real):
    index, queries, _ = real
    for share in (0.5, 0.02):
        allowed = AllowedRows(np.random.default_rng(6).random(index.n) < share)
        whole = index.search(queries, 10, allowed=allowed)
        again = index.search(queries[::-1].copy(), 10, allowed=allowed)
        assert (again.ids[::-1] == whole.ids).all() and again.scores[::-1].tobytes() == whole.scores.tobytes()
        for start in range(0, len(queries), 7):
            some = slice(start, start + 7)
            part = index.search(queries[some], 10, allowed=allowed)
            assert (part.ids == whole.ids[some]).all() and part.scores.tobytes() == whole.scores[some].tobytes()
    assert same_hits(whole, index.search(queries, 10, allowed=allowed))
