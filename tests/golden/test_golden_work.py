"""Golden counters: the work of twenty searches on the bundled rows, query by query, in a file that people can review.

A change that makes searches score more rows or read more pages shows here, however fast the machine is. To accept new
numbers: FULLVIEW_REWRITE_GOLDEN=1 pytest tests/golden, then look at the difference before it is committed.

Compiled sums of floats run in the order that suits the processor, so codes differ in a bit here and there between kinds
of processors. On the kind that is recorded every number must be the same; on another the totals may differ by ELSEWHERE.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import llvmlite.binding
import numpy as np
import pytest
from numba.core import config

from index import BuildOptions, SearchOptions, build, open_index

FOLDER = Path(__file__).parent
ROWS, QUERIES = 12_000, 20
COUNTERS = ("rows_scored", "hops", "candidates", "pages_read")
ELSEWHERE = {"promised": 0.5, "beam_64_rerank_20": 0.15, "exact": 0.0}
"""Rows that fall on the other side of one cut change the pages of twenty queries by some 6 %; a promise may choose the
next operating point."""
PROCESSOR = config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
CASES = {
    "promised": SearchOptions(),
    "beam_64_rerank_20": SearchOptions(beam=64, rerank=20),
    "exact": SearchOptions(exact=True),
}
DESCRIPTIONS = {
    "promised": "The operating point of the build, recall 0.95. Few pages: about one for each hit.",
    "beam_64_rerank_20": "A fixed effort, whatever tuning chooses: rows_scored is the graph's, pages_read the disk order's.",
    "exact": "The oracle: every row is scored, every page read, no code.",
}


@pytest.fixture(scope="module")
def opened(wordnet, tmp_path_factory):
    out = tmp_path_factory.mktemp("golden") / "out"
    options = BuildOptions(seed=0, threads=1, preview="graph", bits=4)
    build(wordnet.vectors[:ROWS], out, ids=wordnet.ids[:ROWS], options=options)
    with open_index(out) as index:
        yield index


def observed(index, queries: np.ndarray, case: str) -> dict:
    hits = index.search(queries, k=10, options=CASES[case])
    work = hits.work
    return {
        "description": DESCRIPTIONS[case],
        "processor": PROCESSOR,
        "rows": ROWS,
        "top_ids": [row[:3].tolist() for row in hits.ids],
    } | {name: getattr(work, name).tolist() for name in COUNTERS}


def written(values: dict) -> str:
    """JSON with each list on one line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


@pytest.mark.parametrize("case", CASES)
def test_the_work_of_twenty_searches_is_as_recorded(opened, wordnet, case):
    path = FOLDER / f"{case}.json"
    found = observed(opened, wordnet.queries[:QUERIES], case)
    if os.environ.get("FULLVIEW_REWRITE_GOLDEN"):
        path.write_text(written(found))
    assert path.exists(), f"{path.name} is missing: write it with FULLVIEW_REWRITE_GOLDEN=1 and commit it"
    recorded = json.loads(path.read_text())
    assert recorded.keys() == found.keys()
    if recorded["processor"] == PROCESSOR:
        assert found == recorded
    for name in COUNTERS:
        assert sum(found[name]) == pytest.approx(sum(recorded[name]), rel=ELSEWHERE[case]), name
    assert written(recorded) == path.read_text(), "the file is not as the test writes it"


def test_the_oracle_finds_what_was_promised(opened, wordnet):
    queries = wordnet.queries
    assert opened.recall(queries, k=10, options=SearchOptions(recall=0.95)).queries == len(queries)
