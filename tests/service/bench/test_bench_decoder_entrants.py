"""Every entrant finds the tokens of exact search where it looks at enough, and says what it looked at."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from bench_heads import DIM, VOCAB_SIZE, small_head

from decoder import DecoderOptions
from service.bench.decoder.code_scan import CodeScan
from service.bench.decoder.entrant import Kind, MissingEntrantError, best_of
from service.bench.decoder.exact_paths import NumpyExact, TorchExact
from service.bench.decoder.graphs import FaissGraph, HnswlibGraph, paper_rows, paper_states
from service.bench.decoder.kept import is_kept, keep, note_of
from service.bench.decoder.ours import DecoderOf, ours
from service.bench.decoder.quality import Truth, measure
from service.bench.decoder.svd_softmax import SvdSoftmax


@pytest.fixture(scope="module")
def head():
    return small_head()


@pytest.fixture(scope="module")
def truth(head):
    return Truth.of(head.layer, head.states, 10, threads=1)


@pytest.fixture(scope="module")
def shared(head, tmp_path_factory):
    made = DecoderOf(DecoderOptions(recall=0.95))
    made.open(head, tmp_path_factory.mktemp("decoder"), lambda *_: None)
    yield made
    made.close()


def prepared(entrant, head, folder):
    events = []
    entrant.prepare(head, folder, lambda *event: events.append(event))
    return events


def test_best_of_puts_the_largest_first():
    logits = np.array([[0.0, 5.0, 2.0, 3.0], [9.0, 1.0, 8.0, 7.0]], np.float32)
    assert best_of(logits, 3).tolist() == [[1, 3, 2], [0, 2, 3]]
    assert best_of(logits, 4).tolist() == [[1, 3, 2, 0], [0, 2, 3, 1]]


def test_numpy_is_exact_alone_and_in_a_batch(head, truth, tmp_path):
    entrant = NumpyExact()
    prepared(entrant, head, tmp_path)
    assert entrant.kind is Kind.EXACT and entrant.settings() == [{}]
    assert entrant.memory_bytes == VOCAB_SIZE * (DIM + 1) * 4
    assert measure(entrant, truth, {}).precision_k > 0.999
    alone = entrant.answer(head.states[:1], 10, {}, 1).token_ids
    assert (alone == truth.token_ids[:1]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("single", [False, True])
def test_torch_is_exact_as_far_as_its_dtype_goes(dtype, single, head, truth, tmp_path):
    pytest.importorskip("torch", reason="torch is not part of the ordinary environment")
    entrant = TorchExact(dtype, single=single)
    prepared(entrant, head, tmp_path)
    assert entrant.largest_batch == (1 if single else 1 << 20)
    assert entrant.memory_bytes == VOCAB_SIZE * (DIM + 1) * (4 if dtype == "float32" else 2)
    assert measure(entrant, truth, {}).precision_k > (0.999 if dtype == "float32" else 0.9)


def test_without_torch_its_ways_say_so(head, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingEntrantError, match="torch is not installed; the extra hf"):
        TorchExact("float32", single=False).prepare(head, tmp_path, lambda *_: None)


def test_ours_share_one_decoder_and_say_how_sure_they_are(head, truth, shared, tmp_path):
    entrants = {entrant.name: entrant for entrant in ours(shared)}
    for entrant in entrants.values():
        assert prepared(entrant, head, tmp_path) == []
        best = measure(entrant, truth, entrant.settings()[-1])
        assert best.precision_k > 0.9 and best.logprob_error < 0.5 and best.rows_scored <= VOCAB_SIZE
    walk, exact = entrants["fullview walk"], entrants["fullview exact"]
    assert walk.build_seconds > 0 and walk.memory_bytes > exact.memory_bytes == VOCAB_SIZE * (DIM * 2 + 4)
    assert exact.kind is Kind.EXACT and exact.build_seconds == 0.0 and walk.kind is Kind.OURS
    recalls = [setting["recall"] for setting in walk.settings()]
    assert recalls == sorted(set(recalls))
    found = [walk.answer(head.states, 10, setting, 1).rows_scored.mean() for setting in walk.settings()]
    assert found == sorted(found)
    topk = measure(entrants["fullview walk, topk"], truth, walk.settings()[-1])
    assert topk.covered is None and topk.half_width is None and topk.logprob_error > 1e-4
    assert measure(exact, truth, {}).precision_k == 1.0 and measure(exact, truth, {}).logprob_error < 1e-5
    assert entrants["fullview"].batch_matters and not walk.batch_matters
    assert entrants["fullview"].answer(head.states, 10, {"recall": 0.9}, 2).mode in ("walk", "screen", "exact")


def test_the_code_scan_looks_at_all_rows(head, truth, shared, tmp_path):
    entrant = CodeScan(shared)
    prepared(entrant, head, tmp_path)
    quality = measure(entrant, truth, {"rerank": 64})
    assert quality.precision_k > 0.98 and quality.rows_scored == VOCAB_SIZE and quality.logprob_error is None
    one, two = (entrant.answer(head.states, 10, {"rerank": 64}, threads).token_ids for threads in (1, 2))
    assert (one == two).all() and one.shape == truth.token_ids.shape


def test_the_papers_transform_makes_the_nearest_row_the_largest_logit(head, truth):
    rows, states = paper_rows(head).astype(np.float64), paper_states(head.states).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    assert np.abs(lengths / lengths[0] - 1).max() < 1e-6
    squared = ((states[:, None] - rows[None]) ** 2).sum(axis=2)
    assert (squared.argmin(axis=1) == truth.token_ids[:, 0]).all()


@pytest.mark.parametrize("made", [HnswlibGraph, FaissGraph])
def test_graphs_find_with_effort_and_are_taken_up_again(made, head, truth, tmp_path):
    if made is FaissGraph:
        pytest.importorskip("faiss", reason="faiss comes with the extra cpu")
    entrant = made()
    assert prepared(entrant, head, tmp_path)[-1] == ("build", VOCAB_SIZE, VOCAB_SIZE)
    settings = entrant.settings()
    little, much = (measure(entrant, truth, setting).precision_k for setting in (settings[0], settings[-1]))
    assert little < much > 0.95
    again = made()
    assert prepared(again, head, tmp_path) == [] and again.build_seconds == entrant.build_seconds > 0
    assert again.memory_bytes == (tmp_path / made.file).stat().st_size
    assert measure(again, truth, settings[-1]).precision_k == much


def test_without_faiss_its_graph_says_so(head, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingEntrantError, match="faiss is not installed; the extra cpu"):
        FaissGraph().prepare(head, tmp_path, lambda *_: None)


def test_svd_softmax_is_exact_with_all_rows_and_better_with_more_width(head, truth, tmp_path):
    entrant = SvdSoftmax()
    prepared(entrant, head, tmp_path)
    assert entrant.settings()[0] == {"width": 4, "rerank": 50} and entrant.settings()[-1] == {
        "width": 16,
        "rerank": 800,
    }
    assert measure(entrant, truth, {"width": 4, "rerank": VOCAB_SIZE}).precision_k > 0.999
    found = [measure(entrant, truth, {"width": width, "rerank": 50}).precision_k for width in (4, 8, 16)]
    assert found == sorted(found) and found[0] < found[2]
    alone = entrant.answer(head.states[:1], 10, {"width": 8, "rerank": 50}, 1).token_ids
    assert (alone == entrant.answer(head.states, 10, {"width": 8, "rerank": 50}, 1).token_ids[:1]).all()


def test_what_is_kept_is_known_by_head_and_options(head, tmp_path):
    place = tmp_path / "thing"
    assert not is_kept(place, head, "a") and note_of(place) == {}
    keep(place, head, "a", seconds=2.5)
    assert not is_kept(place, head, "a"), "it is not there itself"
    place.touch()
    assert is_kept(place, head, "a") and not is_kept(place, head, "b") and note_of(place) == {"seconds": 2.5}
    assert not is_kept(place, small_head(vocab_size=VOCAB_SIZE + 1), "a")
