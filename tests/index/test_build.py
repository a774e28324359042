"""Builds: what is refused at the door, what the report says, what replaces what."""

from __future__ import annotations

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brute_force import recall_by_scores, require_reference

from index import BuildOptions, SearchOptions, build, check_build, open_index
from index.errors import (
    BudgetTooSmallError,
    DuplicateIdError,
    IndexExistsError,
    OptionsError,
    ShapeMismatchError,
    SourceError,
)

ROWS = np.random.default_rng(0).normal(size=(500, 12)).astype(np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"metric": "manhattan"},
        {"preview": "tree"},
        {"bits": 3},
        {"recall": 0.0},
        {"recall": 1.0},
        {"recall": float("nan")},
        {"threads": 0},
        {"on_bad_rows": "ignore"},
        {"memory_budget": "lots"},
    ],
)
def test_options_that_make_no_sense_are_refused_at_the_door(tmp_path, options):
    for attempt in (check_build, lambda source, options: build(source, tmp_path / "out", options=options)):
        with pytest.raises(OptionsError, match=next(iter(options))):
            attempt(ROWS, options=BuildOptions(**options))
    assert list(tmp_path.iterdir()) == []


def test_what_comes_beside_the_rows_must_fit_them(tmp_path):
    for beside in ({"ids": [1, 2]}, {"payload": [{"a": 1}]}):
        with pytest.raises(SourceError, match="one for each row"):
            build(ROWS, tmp_path / "out", **beside)
    with pytest.raises(DuplicateIdError):
        build(ROWS, tmp_path / "out", ids=[7, 7, *range(8, 506)])
    with pytest.raises(ShapeMismatchError):
        build(ROWS, tmp_path / "out", queries=np.ones((50, 11)))
    with pytest.raises(OptionsError, match="sample queries"):
        build(ROWS, tmp_path / "out", queries=ROWS[:5])
    assert list(tmp_path.iterdir()) == []


def test_columns_of_a_file(tmp_path):
    names = [f"n{i}" for i in range(500)]
    table = pa.table(
        {"key": names, "v": pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 12), "x": range(500)}
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    build(tmp_path / "rows.parquet", tmp_path / "out", vector="v", ids="key", payload=["x"])
    with open_index(tmp_path / "out") as index:
        hits = index.search(ROWS[:30], k=5, options=SearchOptions(exact=True))
        require_reference(hits, ROWS, ROWS[:30], "cosine", 5, ids=names)
        raw = index.payload.get(hits.rows[:, 0])
        assert [json.loads(one) for one in raw] == [{"x": i} for i in range(30)]


def test_payload_follows_its_row_through_skipped_and_equal_rows(tmp_path):
    rows = ROWS.copy()
    rows[[3, 70, 71]] = np.nan
    rows[100:140] = rows[10]
    payload = [{"n": i} if i % 4 else None for i in range(500)]
    ids = [f"id{i}" for i in range(500)]
    options = BuildOptions(metric="l2", on_bad_rows="skip")
    report = build(rows, tmp_path / "out", ids=ids, payload=payload, options=options)
    assert (report.rows, report.distinct_rows) == (497, 457)
    assert any("3 bad rows" in warning for warning in report.warnings)
    with open_index(tmp_path / "out") as index:
        kept = [i for i in range(500) if i not in (3, 70, 71)]
        at = index.ids.rows_of([ids[i] for i in kept])
        assert (index.ids.rows_of(["id3", "id70", "id71"]) == -1).all()
        np.testing.assert_array_equal(index.vectors(at), rows[kept])
        found = [json.loads(raw) if raw else None for raw in index.payload.get(at)]
        assert found == [payload[i] for i in kept]


def test_replacing_keeps_whoever_has_the_old_one_open(tmp_path):
    build(ROWS[:100], tmp_path / "out", options=BuildOptions(metric="l2"))
    with pytest.raises(IndexExistsError):
        build(ROWS, tmp_path / "out")
    with open_index(tmp_path / "out") as old:
        build(ROWS, tmp_path / "out", options=BuildOptions(metric="l2"), replace=True)
        require_reference(old.search(ROWS[:20], k=5), ROWS[:100], ROWS[:20], "l2", 5)
        exact = SearchOptions(exact=True)
        require_reference(old.search(ROWS[:20], k=5, options=exact), ROWS[:100], ROWS[:20], "l2", 5)
    with open_index(tmp_path / "out") as new:
        assert new.n == 500
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_report_is_in_the_folder_and_says_what_the_promise_covers(tmp_path, wordnet):
    few, samples = wordnet.vectors[:3000], wordnet.sample_queries[:600]
    plain = build(few, tmp_path / "plain", options=BuildOptions(preview="graph"))
    tuned = build(few, tmp_path / "tuned", options=BuildOptions(preview="graph"), queries=samples)
    assert "like the rows only" in plain.promise_covers and "queries=" in plain.promise_covers
    assert "sample queries" in tuned.promise_covers
    for folder, report in (("plain", plain), ("tuned", tuned)):
        kept = json.loads((tmp_path / folder / "report.json").read_text())
        assert kept["rows"] == 3000 and kept["seed"] == 0 and kept["curve"] == report.curve
        assert kept["measured_recall"]["low"] >= 0.95 and kept["promise_kept"]
        assert sum(report.resident_bytes.values()) <= report.budget_bytes
        assert report.disk_bytes > few.nbytes and report.seconds > 0 and report.peak_bytes >= 0
    with open_index(tmp_path / "tuned") as index:
        held_back = wordnet.queries.astype(np.float32)
        assert recall_by_scores(index.search(held_back, k=10), few, held_back, "cosine", 10) >= 0.94


def test_threads_default_to_the_cores_and_are_told(tmp_path):
    assert build(ROWS, tmp_path / "one").threads == (os.cpu_count() or 1)
    assert build(ROWS, tmp_path / "two", options=BuildOptions(threads=2)).threads == 2


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("preview", ["flat", "graph"])
def test_bits_and_preview_asked_for_are_built(tmp_path, preview, bits):
    report = build(ROWS, tmp_path / "out", options=BuildOptions(preview=preview, bits=bits, metric="l2"))
    assert (report.preview, report.bits) == (preview, bits)
    with open_index(tmp_path / "out") as index:
        stats = index.stats()
        assert (stats["preview"], stats["bits"], stats["rows"]) == (preview, bits, 500)
        assert np.load(tmp_path / "out" / "codes.npy").shape == (500, 2 * bits)


def test_a_budget_below_the_least_is_refused_before_the_first_row(tmp_path):
    seen = []
    with pytest.raises(BudgetTooSmallError, match="the least that works"):
        build(ROWS, tmp_path / "out", options=BuildOptions(memory_budget=0.01), on_progress=seen.append)
    assert not seen and list(tmp_path.iterdir()) == []
