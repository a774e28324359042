"""The ivf preview: what it finds, what its estimates promise, what it costs, and that a build of it is reproducible."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from index import BuildOptions, OpenOptions, SearchOptions, build, open_index
from index.budget import budget_bytes, choose_design
from index.codes import Coder, encode_int8
from index.errors import BudgetTooSmallError, BuildCancelledError, MissingExtraError, OptionsError
from index.folder import open_generation
from index.fullview import PageLayout
from index.graph import GraphRows
from index.options import Metric, PreviewKind
from index.preview import Scratch, clustering, route
from index.preview.ivf import IvfPreview
from index.preview.ivf_build import IvfParts, ListOptions, build_ivf, order_by_lists

pytest.importorskip("faiss", reason="building an ivf preview needs faiss (extra cpu)")

EXACT = SearchOptions(exact=True)
IVF = {"preview": "ivf", "memory_budget": 100}
DIM = 32


def blobs(n: int, *, dim: int = DIM, seed: int = 0) -> np.ndarray:
    """Rows around 50 centres of different lengths."""
    generator = np.random.default_rng(7)
    middle = generator.normal(size=(50, dim)) * generator.uniform(0.5, 2.0, (50, 1))
    generator = np.random.default_rng(seed)
    return (middle[generator.integers(0, 50, n)] + 0.5 * generator.normal(size=(n, dim))).astype(np.float32)


def ivf_of(vectors: np.ndarray, metric: Metric, bits: int | str, *, parts: int = 8) -> tuple[IvfPreview, Coder, float]:
    """The preview of vectors, which are put in its order in place; the coder; the error scale."""
    mean = vectors.mean(axis=0)
    coder = Coder(dim=vectors.shape[1], metric=metric, bits=1 if bits == "pq" else int(bits), mean=mean, seed=0)
    extra = None
    if metric is Metric.DOT:
        lengths = (vectors**2).sum(axis=1)
        extra = np.sqrt(lengths.max() - lengths)
    rows = GraphRows(*encode_int8(coder.rotated(vectors), extra=extra))
    order, offsets = order_by_lists(rows, options=ListOptions(lists=60, page_rows=8, seed=0, threads=2))
    rows = GraphRows(rows.codes[order], rows.scalars[order])
    vectors[:] = vectors[order]
    n = len(vectors)
    room = np.empty((n, coder.stride), np.uint8), np.empty((n, 2), np.float32)
    given = IvfParts(rows, offsets, *room, bits, parts, np.zeros(0, np.int32))
    preview, error_scale = build_ivf(given, coder=coder, seed=0, threads=2)
    return preview, coder, error_scale


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("bits", [1, 2, 4, 8, "pq"])
def test_estimates_are_near_the_distances_and_their_error_is_known(metric, bits):
    vectors = blobs(4000)
    preview, coder, error_scale = ivf_of(vectors, metric, bits, parts=16)
    if metric is Metric.COSINE:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = blobs(50, seed=1)
    prepared = coder.prepare(queries)
    found = preview.candidates(prepared, effort=preview.lists, width=4000, scratch=Scratch())
    assert (found.counts == 4000).all()
    assert (np.diff(found.distances, axis=1) >= 0).all()
    if metric is Metric.COSINE:
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    true = -2 * queries @ vectors.T + (0 if metric is Metric.DOT else (vectors**2).sum(axis=1))
    true = np.take_along_axis(true, found.nodes, axis=1)
    # What is the same for all rows of a query is left out of an estimate.
    wrong = found.distances - true
    wrong -= np.median(wrong, axis=1, keepdims=True)
    predicted = error_scale * prepared.lengths[:, None] * preview.error_scales()[found.nodes, 1]
    assert predicted.min() > 0
    # Of near rows, which the stop rule decides about; a far row's estimate may be further off.
    near = slice(0, 100)
    assert 0.3 < np.sqrt((wrong[:, near] ** 2).mean() / (predicted[:, near] ** 2).mean()) < 3
    if bits == 8:
        assert np.abs(wrong).max() < 0.1 * true.std()


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("bits", [1, 4, "pq"])
def test_more_probes_find_more_until_all_lists_give_the_exact_answer(tmp_path, metric, bits):
    rows, queries = blobs(3000), blobs(40, seed=1)
    report = build(rows, tmp_path / "out", options=BuildOptions(metric=metric, bits=bits, **IVF))
    assert (report.preview, report.bits) == ("ivf", bits)
    with open_index(tmp_path / "out") as index:
        lists = index.stats()["lists"]
        assert 30 <= lists <= 70
        true = index.search(queries, options=EXACT)
        recalls, scored = [], []
        for probes in (1, 8, lists):
            hits = index.search(queries, options=SearchOptions(probes=probes, rerank=300))
            assert (hits.work.hops == probes).all()
            scored.append(hits.work.rows_scored.mean())
            recalls.append(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(hits.rows.tolist(), true.rows.tolist())]))
        assert recalls[0] < recalls[1] <= recalls[2]
        assert recalls[2] > 0.99
        assert scored[0] < scored[1] < scored[2] == 3000
        # A score never comes from a code.
        same = hits.rows == true.rows
        np.testing.assert_array_equal(hits.scores[same], true.scores[same])
        assert (index.search(queries, options=SearchOptions(probes=10**6)).work.hops == lists).all()


def test_the_promise_is_kept_on_real_text_vectors(tmp_path, wordnet):
    """Half of the queries tunes, the other half is told whether it got what was promised."""
    rows, queries = wordnet.vectors[:12000], wordnet.queries
    options = BuildOptions(preview="ivf", bits=2, memory_budget=100, recall=0.9)
    report = build(rows, tmp_path / "out", options=options, queries=queries[:250])
    assert report.promise_kept
    with open_index(tmp_path / "out") as index:
        assert index.recall(queries[250:]).high >= 0.9
        hits = index.search(queries[250:])
        assert hits.work.rows_scored.mean() < 6000
        efforts = {point["effort"] for point in index.stats()["operating_points"]}
        assert min(efforts) < 8
        assert max(efforts) <= index.stats()["lists"]


def test_a_folder_opens_as_what_was_built(tmp_path):
    rows = blobs(2000)
    build(rows, tmp_path / "out", options=BuildOptions(bits="pq", **IVF))
    names = {path.name for path in (tmp_path / "out" / "lists").iterdir()}
    assert names == {"offsets.npy", "centroids.npy", "centroid_scalars.npy", "codebooks.npy"}
    generation = open_generation(tmp_path / "out", OpenOptions())
    preview = generation.preview
    assert (preview.kind, preview.bits, preview.nodes) == (PreviewKind.IVF, "pq", 2000)
    parts = generation.resident_bytes()
    assert {"codes", "scalars", "lists", "centroids", "codebooks"} <= set(parts)
    generation.close()


def test_groups_of_equal_vectors(tmp_path):
    rows = blobs(1000)
    rows[100:400] = rows[100]
    build(rows, tmp_path / "out", options=BuildOptions(metric="l2", bits=4, **IVF))
    with open_index(tmp_path / "out") as index:
        hits = index.search(rows[100], k=400, options=SearchOptions(probes=1000))
        assert (hits.scores[0, :300] == 0).all()
        assert hits.ids[0, :300].tolist() == list(range(100, 400))


@pytest.mark.parametrize("n", [1, 5, 299, 301])
def test_few_rows(tmp_path, n):
    rows = blobs(n)
    build(rows, tmp_path / "out", options=BuildOptions(metric="l2", **IVF))
    with open_index(tmp_path / "out") as index:
        hits = index.search(rows[:5], k=1)
        assert hits.scores[:, 0].tolist() == [0.0] * min(n, 5)
        if n < 300:
            np.testing.assert_array_equal(index.search(rows).rows, index.search(rows, options=EXACT).rows)


# --- the route ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["l2", "dot"])
def test_hnswlib_routes_where_lists_are_many(tmp_path, monkeypatch, metric):
    rows, queries = blobs(10000, dim=16), blobs(50, dim=16, seed=1)
    options = BuildOptions(metric=metric, bits=4, **IVF)
    build(rows, tmp_path / "all", options=options)
    monkeypatch.setattr(route, "COMPARED_LISTS", 50)
    report = build(rows, tmp_path / "hnswlib", options=options)
    assert (tmp_path / "hnswlib" / "lists" / "route.bin").is_file()
    assert report.resident_bytes["route"] > 0
    with open_index(tmp_path / "all") as one, open_index(tmp_path / "hnswlib") as other:
        some = SearchOptions(probes=4)
        a, b = one.search(queries, options=some), other.search(queries, options=some)
        assert (a.rows == b.rows).mean() > 0.9
        # Where nearly all lists are wanted, comparing all of them is less work than walking among them.
        wide = SearchOptions(probes=100)
        np.testing.assert_array_equal(one.search(queries, options=wide).rows, other.search(queries, options=wide).rows)


# --- the same bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, "pq"])
def test_the_same_bytes_whatever_the_threads(tmp_path, monkeypatch, bits):
    monkeypatch.setattr(route, "COMPARED_LISTS", 20)
    monkeypatch.setattr(clustering, "LEAF", 8)
    rows = blobs(3000)
    for threads in (1, 2, 4):
        options = BuildOptions(bits=bits, seed=5, threads=threads, **IVF)
        build(rows, tmp_path / str(threads), options=options)

    def files(folder: Path) -> dict[str, bytes]:
        differing = ("manifest.json", "report.json")
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.name not in differing
        }

    one = files(tmp_path / "1")
    assert "lists/route.bin" in one
    assert files(tmp_path / "2") == one
    assert files(tmp_path / "4") == one


def test_a_build_is_cancelled_among_the_lists(tmp_path):
    cancel = threading.Event()

    def stop(event: object) -> None:
        if event.phase == "lists":
            cancel.set()

    with pytest.raises(BuildCancelledError, match="lists"):
        build(blobs(3000), tmp_path / "out", options=BuildOptions(**IVF), on_progress=stop, cancel=cancel)
    assert list(tmp_path.iterdir()) == []


# --- the budget -----------------------------------------------------------------------------------------------------

LAYOUT = PageLayout(100_000, 384, np.dtype(np.float16))


def design(budget_mb: float, **options: object) -> object:
    budget = budget_bytes(budget_mb, n=LAYOUT.n, dim=LAYOUT.dim)
    return choose_design(LAYOUT, nodes=LAYOUT.n, options=BuildOptions(**options), budget=budget)


def test_auto_takes_ivf_where_no_graph_fits():
    assert design(40).preview is PreviewKind.GRAPH
    small = design(11)
    assert (small.preview, small.bits) == (PreviewKind.IVF, 1)
    assert small.total <= 11e6
    assert "graph" in small.choices[0]
    with pytest.raises(BudgetTooSmallError, match="lists") as refused:
        design(5)
    least = refused.value.needed_bytes / 1e6
    assert design(least + 0.01).preview is PreviewKind.IVF
    with pytest.raises(BudgetTooSmallError):
        design(least - 0.01)


def test_auto_prefers_fine_lists_to_a_coarse_graph(monkeypatch):
    coarse = design(15, preview="graph")
    assert (coarse.preview, coarse.bits) == (PreviewKind.GRAPH, 1)
    fine = design(15)
    assert (fine.preview, fine.bits) == (PreviewKind.IVF, 2)
    assert "graph" in fine.choices[0]
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert design(15).preview is PreviewKind.GRAPH


def test_auto_without_faiss_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert design(40).preview is PreviewKind.GRAPH
    with pytest.raises(BudgetTooSmallError, match=r"lists .*fullview\[cpu\]"):
        design(11)
    with pytest.raises(MissingExtraError, match="ivf"):
        design(40, preview="ivf")


@pytest.mark.parametrize("preview", ["auto", "graph", "flat"])
def test_product_quantisers_are_for_ivf_only(preview):
    with pytest.raises(OptionsError, match=r'preview="ivf"'):
        design(40, preview=preview, bits="pq")


def test_a_larger_budget_buys_more_sub_quantisers():
    parts = [design(mb, preview="ivf", bits="pq").parts for mb in (6, 10, 20, 60)]
    assert parts == sorted(parts)
    assert all(384 % each == 0 for each in parts)
    assert parts[-1] == 192


@pytest.mark.parametrize("bits", ["auto", "pq"])
def test_what_is_resident_is_what_was_expected_and_within_the_budget(tmp_path, bits):
    rows = blobs(8000, dim=16)
    budget = budget_bytes(3.5, n=8000, dim=16)
    report = build(rows, tmp_path / "out", options=BuildOptions(preview="ivf", bits=bits, memory_budget=3.5))
    assert sum(report.resident_bytes.values()) <= budget
    layout = PageLayout(8000, 16, np.dtype(np.float32))
    options = BuildOptions(preview="ivf", bits=bits, memory_budget=3.5)
    expected = choose_design(layout, nodes=8000, options=options, budget=budget).resident
    for part in ("codes", "scalars", "codebooks"):
        assert report.resident_bytes.get(part, 0) == expected.get(part, 0)
    for part in ("lists", "centroids"):
        assert report.resident_bytes[part] == pytest.approx(expected[part], rel=0.3)
