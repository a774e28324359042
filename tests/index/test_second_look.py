"""The second look of searches among allowed rows: how much may be missed decides what is read."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import same_hits

from index import AllowedRows, BuildOptions, SearchOptions, build, open_index, second_look


@pytest.fixture(scope="module", params=["graph", "flat"])
def opened(request, tmp_path_factory):
    rows = np.random.default_rng(0).normal(size=(4000, 24)).astype(np.float32)
    out = tmp_path_factory.mktemp("second") / "out"
    build(rows, out, options=BuildOptions(metric="l2", preview=request.param, bits=2, threads=1))
    with open_index(out) as index:
        yield index


def test_where_nothing_may_be_missed_nothing_is(opened, monkeypatch):
    queries = np.random.default_rng(1).normal(size=(20, 24)).astype(np.float32)
    allowed = AllowedRows(np.random.default_rng(2).random(opened.n) < 0.4)
    usual = opened.search(queries, 10, allowed=allowed)
    monkeypatch.setattr(second_look, "MISS", 0.0)
    strict = opened.search(queries, 10, allowed=allowed)
    assert same_hits(strict, opened.search(queries, 10, SearchOptions(exact=True), allowed=allowed))
    assert (strict.work.pages_read > usual.work.pages_read).any()


def test_what_was_read_once_is_no_hit_twice(opened, monkeypatch):
    # A copy of a hit would come where a page is read and scored again.
    monkeypatch.setattr(second_look, "READ_AT_ONCE", 12)
    monkeypatch.setattr(second_look, "MISS", 0.01)
    queries = np.random.default_rng(3).normal(size=(20, 24)).astype(np.float32)
    for share in (0.9, 0.3, 0.05):
        allowed = AllowedRows(np.random.default_rng(4).random(opened.n) < share)
        hits = opened.search(queries, 30, allowed=allowed)
        assert all(len(set(row.tolist())) == 30 for row in hits.rows)
        assert opened.recall(queries, 30, allowed=allowed).mean >= 0.99


def test_more_is_read_for_a_higher_recall(opened):
    queries = np.random.default_rng(5).normal(size=(20, 24)).astype(np.float32)
    allowed = AllowedRows(np.linalg.norm(opened.vectors(np.arange(opened.n)), axis=1) > 5.0)
    pages = [
        opened.search(queries, 10, SearchOptions(recall=recall), allowed=allowed).work.pages_read.sum()
        for recall in (0.8, 0.99)
    ]
    assert pages[0] < pages[1]
