"""The bundled output layer is what its README says: sizes, checksums, words and states that belong together."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from service.demo.decoder_data import read_head

FOLDER = Path(__file__).parent / "marian"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def manifest():
    return json.loads((FOLDER / "manifest.json").read_text())


@pytest.fixture(scope="module")
def head():
    return read_head(FOLDER)


def logits(head, states):
    return states.astype(np.float32) @ head.weight.astype(np.float32).T + head.bias


def test_files_are_those_of_the_manifest(manifest):
    assert manifest["files"].keys() == {path.name for path in FOLDER.glob("*.*")} - {
        "README.md",
        "LICENSE.MPL-2.0",
        "manifest.json",
    }
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == entry["sha256"], name


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 10_000_000


def test_shapes_and_types(head, manifest):
    assert head.weight.shape == (manifest["vocab_size"], manifest["dim"]) == (32_000, 256)
    assert head.weight.dtype == np.float16 and head.bias.dtype == np.float32 and head.bias.shape == (32_000,)
    assert len(head.words) == 32_000 and head.words[0] == "</s>"
    assert np.load(FOLDER / "calibration.npy").shape == (manifest["calibration"], 256) == (4000, 256)
    assert head.heldout.shape == (manifest["heldout"], 256) and head.heldout.dtype == np.float16
    assert sum(len(sentence.token_ids) for sentence in head.shown) == manifest["shown"]
    assert manifest["float16_weights_changed"] == 0


def test_no_held_out_state_is_for_calibration(head):
    calibration = {state.tobytes() for state in np.load(FOLDER / "calibration.npy")}
    assert not calibration & {
        state.tobytes() for state in np.concatenate([head.heldout, *(s.states for s in head.shown)])
    }


def test_each_state_of_a_sentence_makes_its_next_token_the_best(head):
    for sentence in head.shown:
        assert logits(head, sentence.states).argmax(axis=1).tolist() == sentence.token_ids
        assert 2 <= sentence.step < len(sentence.token_ids) and sentence.token_ids[-1] == 0


def test_words_make_a_translation(head):
    assert (
        head.text_of(head.shown[0].token_ids[:-1]) == "Ele consertou o relógio com uma mola de um brinquedo quebrado."
    )


def test_sentences_hold_no_word_of_the_list(head):
    words = (REPOSITORY / "scripts" / "left_out_words.txt").read_text().splitlines()
    stems = [word for word in words if word and not word.startswith("#")]
    parts = [re.escape(stem[1:]) + r"\b" if stem.startswith("=") else re.escape(stem) for stem in stems]
    pattern = re.compile(rf"\b(?:{'|'.join(parts)})", re.IGNORECASE)
    assert not [sentence.text for sentence in head.shown if pattern.search(sentence.text)]


def test_readme_and_notice_name_what_is_there(manifest):
    readme, notice = (FOLDER / "README.md").read_text(), (REPOSITORY / "NOTICE").read_text()
    for name in manifest["files"]:
        assert f"| `{name}` |" in readme and name in notice
    assert f"float16 [{manifest['shown']}, 256]" in readme and "LICENSE.MPL-2.0" in notice
