"""Golden counters of a decoder: what walks of a fixed width score on the bundled rows, in a file that people can review.

The bundled vectors stand for an output layer, their queries for hidden states. The frame comes out of NumPy's linear
algebra, whose last bits depend on the processor and on how many threads it has: totals may differ by ELSEWHERE, and the exact
answers not at all. To accept new numbers: FULLVIEW_REWRITE_GOLDEN=1 pytest tests/golden, then look at the difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_golden_work import written

from decoder import DecoderOptions, OutputLayer, build_decoder, exact_topk, open_decoder
from decoder.finder import Finder
from decoder.planner import Choice
from decoder.store import read_decoder

PATH = Path(__file__).parent / "decoder.json"
ROWS, STATES, DIM = 4000, 20, 128
WIDTHS = (48, 128)
ELSEWHERE = 0.02
DESCRIPTION = (
    "Twenty states, k 10, with log Z; walks as wide as named, whatever tuning chooses. reranked: rows whose exact logits "
    "were computed, the tail's sample included."
)


@pytest.fixture(scope="module")
def states(wordnet) -> np.ndarray:
    return wordnet.queries[:STATES, :DIM].astype(np.float32)


@pytest.fixture(scope="module")
def layer(wordnet) -> OutputLayer:
    return OutputLayer(wordnet.vectors[:ROWS, :DIM].astype(np.float16) / np.float16(512), scale=0.2)


@pytest.fixture(scope="module")
def folder(wordnet, layer, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("golden") / "decoder"
    calibration = wordnet.sample_queries[:1500, :DIM].astype(np.float32)
    build_decoder(layer, out, calibration=calibration, options=DecoderOptions(threads=1, seed=0))
    return out


def observed(folder: Path, layer: OutputLayer, states: np.ndarray) -> dict:
    parts, _ = read_decoder(folder, layer=layer)
    finder, point = Finder(parts), next(point for point in parts.points if point.mode == "walk")
    found: dict = {"description": DESCRIPTION, "rows": ROWS, "top_ids": exact_topk(layer, states, 3).token_ids.tolist()}
    for width in WIDTHS:
        answer = finder.find(states, Choice("walk", replace(point, width=width), reached=True), k=10, log_z=True)
        found[f"width_{width}_rows_scored"] = answer.scored.tolist()
        found[f"width_{width}_reranked"] = answer.counts.tolist()
    return found


def test_the_work_of_twenty_states_is_as_recorded(folder, layer, states):
    found = observed(folder, layer, states)
    if os.environ.get("FULLVIEW_REWRITE_GOLDEN"):
        PATH.write_text(written(found))
    assert PATH.exists(), f"{PATH.name} is missing: write it with FULLVIEW_REWRITE_GOLDEN=1 and commit it"
    recorded = json.loads(PATH.read_text())
    assert recorded.keys() == found.keys() and recorded["top_ids"] == found["top_ids"]
    for width in WIDTHS:
        scored, reranked = f"width_{width}_rows_scored", f"width_{width}_reranked"
        assert sum(found[scored]) == pytest.approx(sum(recorded[scored]), rel=ELSEWHERE), scored
        assert found[reranked] == recorded[reranked]
    assert written(recorded) == PATH.read_text(), "the file is not as the test writes it"


def test_a_walk_finds_what_was_promised_in_a_part_of_the_rows(folder, layer, states):
    with open_decoder(folder, layer=layer) as head:
        top = head.topk(states, mode="walk")
    assert top.rows_scored.max() < ROWS / 2
    exact = exact_topk(layer, states, 10)
    assert np.mean([len(set(a) & set(b)) for a, b in zip(top.token_ids.tolist(), exact.token_ids.tolist())]) >= 9.8
