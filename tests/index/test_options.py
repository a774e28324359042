"""Options: every type and range is checked when they are made, and NumPy's numbers become Python's."""

from __future__ import annotations

import json
from dataclasses import asdict
from fractions import Fraction

import numpy as np
import pytest

from index import build, open_index
from index.errors import OptionsError
from index.option_checks import fraction_of
from index.options import BuildOptions, IoMode, Metric, OpenOptions, PreviewKind, SearchOptions

NAN = float("nan")
NO_WHOLE_NUMBERS = [True, np.True_, 1.0, "1", NAN, [1], np.float32(2)]
NO_NUMBERS = ["x", True, np.False_, NAN, np.float32(NAN), [0.5], 1j]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("metric", ["manhattan", "", 3, None, b"l2"]),
        ("memory_budget", ["lots", "1/0", "5/1", "0", 0, -1, NAN, float("inf"), True, None, [16], "1/4/2"]),
        ("preview", ["tree", 1, None]),
        ("bits", [3, 0, True, 4.0, "8", None, "PQ", -1]),
        ("recall", [*NO_NUMBERS, None, 0, 1, 1.0, -0.5, 95]),
        ("seed", [*NO_WHOLE_NUMBERS, None, -1, 2**63, 99999999999999999999, np.int64(-1)]),
        ("on_bad_rows", ["ignore", None, False]),
        ("threads", [*NO_WHOLE_NUMBERS, 0, -2, 10**9]),
    ],
)
def test_build_options_refuse(name, values):
    for value in values:
        with pytest.raises(OptionsError, match=rf"^{name} is .*needed"):
            BuildOptions(**{name: value})


def test_product_quantisers_are_refused_before_anything_is_opened():
    with pytest.raises(OptionsError, match='preview="ivf"'):
        BuildOptions(bits="pq")
    assert BuildOptions(bits="pq", preview="ivf").bits == "pq"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("recall", [*NO_NUMBERS, 0, 1.5, -1]),
        ("beam", [*NO_WHOLE_NUMBERS, 0, -1, 2**31]),
        ("probes", [*NO_WHOLE_NUMBERS, 0, -1, 2**31]),
        ("rerank", [*NO_WHOLE_NUMBERS, 0, -3, 10**30]),
        ("exact", [1, "yes", None]),
        ("score_threshold", NO_NUMBERS),
    ],
)
def test_search_options_refuse(name, values):
    for value in values:
        with pytest.raises(OptionsError, match=rf"^{name} is .*needed"):
            SearchOptions(**{name: value})


@pytest.mark.parametrize("pair", [("recall", "beam"), ("recall", "probes"), ("exact", "rerank"), ("exact", "recall")])
def test_options_that_exclude_each_other(pair):
    good = {"recall": 0.9, "beam": 3, "probes": 3, "rerank": 3, "exact": True}
    with pytest.raises(OptionsError, match=r"both given.*Give one"):
        SearchOptions(**{name: good[name] for name in pair})


def test_open_options_refuse():
    for options in ({"io_mode": "telepathy"}, {"io_mode": None}, {"huge_pages": 1}, {"huge_pages": "no"}):
        with pytest.raises(OptionsError, match=f"^{next(iter(options))} is"):
            OpenOptions(**options)
    assert OpenOptions(io_mode=IoMode.THREADS, huge_pages=np.False_).huge_pages is False


def test_numbers_of_numpy_become_python_s():
    options = BuildOptions(
        metric=Metric.L2,
        preview=PreviewKind.GRAPH,
        memory_budget=np.float32(64),
        bits=np.int8(4),
        recall=np.float64(0.9),
        seed=np.uint64(2**63 - 1),
        threads=np.int32(2),
    )
    assert json.loads(json.dumps(asdict(options))) == asdict(options)
    assert {type(value) for value in asdict(options).values()} == {str, int, float}
    assert BuildOptions(memory_budget=Fraction(33, 2)).memory_budget == 16.5
    search = SearchOptions(beam=np.int64(3), rerank=np.uint8(2), score_threshold=np.float32(-1))
    assert {type(value) for value in (search.beam, search.rerank)} == {int} and type(search.score_threshold) is float
    assert SearchOptions(recall=1, exact=False).recall == 1.0 and SearchOptions(exact=np.True_).exact is True
    assert SearchOptions(score_threshold=float("inf")).score_threshold == float("inf")


def test_what_a_budget_s_string_says():
    assert fraction_of("memory_budget", "1/4") == Fraction(1, 4) and fraction_of("memory_budget", "16") == 16


@pytest.mark.parametrize("preview", ["graph", "flat", "ivf"])
def test_the_largest_seed_builds(tmp_path, preview):
    if preview == "ivf":
        pytest.importorskip("faiss")
    rows = np.random.default_rng(0).standard_normal((700, 8)).astype(np.float32)
    options = BuildOptions(seed=2**63 - 1, preview=preview, memory_budget=64, threads=1)
    build(rows, tmp_path / "index", options=options)
    with open_index(tmp_path / "index") as index:
        assert (index.search(rows[:5], k=1).ids[:, 0] == range(5)).all()
        for limit in (1e300, -1e300, float("inf")):
            assert set(index.search(rows[:2], k=3, options=SearchOptions(score_threshold=limit)).counts) <= {0, 3}
