"""The bundled data is what its README says: sizes, checksums, and neighbours that mean something."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

FOLDER = Path(__file__).parent / "wordnet"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def manifest():
    return json.loads((FOLDER / "manifest.json").read_text())


def test_files_are_those_of_the_manifest(manifest):
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == entry["sha256"], name


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 10_000_000


def test_shapes_and_types(wordnet, manifest):
    assert wordnet.vectors.shape == (manifest["rows"], 384) and wordnet.vectors.dtype == np.int8
    assert wordnet.queries.shape == (500, 384) and wordnet.queries.dtype == np.int8
    assert wordnet.sample_queries.shape == (2000, 384) and wordnet.sample_queries.dtype == np.int8
    assert len(wordnet.texts) == len(wordnet.vectors) >= 20_000
    assert wordnet.ids.dtype == np.uint64 and np.all(np.diff(wordnet.ids.astype(np.int64)) > 0)
    assert set(pq.read_schema(wordnet.points).names) == {"id", "text", "pos", "lexname", "lemma_count", "vector"}


def test_one_scale_keeps_vectors_of_unit_length(wordnet, manifest):
    lengths = np.linalg.norm(wordnet.vectors.astype(np.float32), axis=1) / manifest["scale"]
    assert np.abs(lengths - 1).max() < 0.005


def test_no_query_is_a_sample_query(wordnet):
    queries = {row.tobytes() for row in wordnet.queries}
    assert not queries & {row.tobytes() for row in wordnet.sample_queries}


def test_a_sentence_finds_entries_about_its_subject(wordnet):
    query = wordnet.queries[wordnet.query_texts.index("penguins inhabit the polar regions")].astype(np.float32)
    rows = wordnet.vectors.astype(np.float32)
    best = np.argsort(-(rows @ query) / np.linalg.norm(rows, axis=1))[:3]
    assert "penguin" in " ".join(wordnet.texts[row] for row in best)


def test_texts_hold_no_word_of_the_list(wordnet):
    words = (REPOSITORY / "scripts" / "left_out_words.txt").read_text().splitlines()
    stems = [word for word in words if word and not word.startswith("#")]
    parts = [re.escape(stem[1:]) + r"\b" if stem.startswith("=") else re.escape(stem) for stem in stems]
    pattern = re.compile(rf"\b(?:{'|'.join(parts)})", re.IGNORECASE)
    assert not [text for text in wordnet.texts + wordnet.query_texts if pattern.search(text)]


def test_readme_quotes_the_figures_of_the_manifest(manifest):
    readme = (FOLDER / "README.md").read_text()
    assert f"{manifest['top10_kept_by_int8_cosine']:.1%}".replace("%", " %") in readme
    assert f"{manifest['top10_of_whole_set_in_slice']:.1%}".replace("%", " %") in readme
    assert f"{manifest['scale']:.3f}" in readme
