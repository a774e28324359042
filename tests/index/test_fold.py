"""Folding changes into a new generation, against a dict of points; what is kept, what is refused, what forces a rebuild."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from brute_force import require_reference

from index import BuildOptions, Changes, FoldOptions, SearchOptions, build, fold, open_index
from index.errors import (
    BadRowsError,
    BuildCancelledError,
    DuplicateIdError,
    IndexExistsError,
    OptionsError,
    ShapeMismatchError,
)
from index.fold_rebuild import wanted_options

DIM = 12
EXACT = SearchOptions(exact=True)
UUID = "0f0e0d0c-0b0a-0908-0706-050403020100"


class Model:
    """id -> (vector, payload bytes or None), and the folder that should hold the same."""

    def __init__(self, folder: Path, seed: int, **options) -> None:
        self.folder, self.generator = folder, np.random.default_rng(seed)
        self.points: dict[int | str, tuple[np.ndarray, bytes | None]] = {}
        self.options = BuildOptions(threads=2, **options)
        self.version = 0

    @property
    def path(self) -> Path:
        return self.folder / f"g{self.version}"

    def vectors(self, m: int, dtype: str = "float32") -> np.ndarray:
        rows = self.generator.normal(size=(m, DIM)) * 20
        return np.rint(rows).astype(dtype) if dtype == "int8" else rows.astype(dtype)

    def payload(self, number: int) -> bytes | None:
        return None if number % 3 == 0 else msgspec.json.encode({"n": number, "text": f"ü{number}"})

    def start(self, n: int, dtype: str = "float32") -> None:
        rows = self.vectors(n, dtype)
        rows[5:9] = rows[4]
        ids = [i if i % 2 else f"s{i}" for i in range(n)]
        payloads = [self.payload(i) for i in range(n)]
        decoded = [None if p is None else msgspec.json.decode(p) for p in payloads]
        build(rows, self.path, ids=ids, payload=decoded, options=self.options)
        self.points = {i: (rows[j], payloads[j]) for j, i in enumerate(ids)}

    def change(self, index, drop: int, add: int) -> Changes:
        """Drop some, write some again with other vectors or the same, add new ones, some equal to others."""
        keep = np.ones(index.n, np.bool_)
        keep[self.generator.choice(index.n, drop, replace=False)] = False
        by_row = index.ids.ids_of_codes(codes_of(index))
        gone = [i for i, stays in zip(by_row.tolist(), keep) if not stays]
        again = gone[: add // 3]
        fresh = range(add - len(again))
        new_ids = again + [f"new{self.version}-{i}" if i % 2 else 10**6 * (self.version + 1) + i for i in fresh]
        vectors = self.vectors(add)
        for j, i in enumerate(again[: add // 6]):
            vectors[j] = self.points[i][0]
        some = self.generator.choice(index.n, add // 6)
        vectors[add - len(some) :] = index.vectors(some).astype(np.float32)
        payloads = [self.payload(int(self.generator.integers(100))) for _ in new_ids]
        other = {int(row): self.payload(int(row) + 1) for row in self.generator.choice(index.n, 10)}
        for row, payload in other.items():
            if keep[row]:
                i = by_row[row]
                self.points[i] = (self.points[i][0], payload)
        for i in gone:
            del self.points[i]
        self.points |= {i: (v, p) for i, v, p in zip(new_ids, vectors, payloads)}
        return Changes(keep=keep, vectors=vectors, ids=new_ids, payloads=payloads, new_payloads=other)

    def fold(self, drop: int, add: int, **options):
        with open_index(self.path) as index:
            changes = self.change(index, drop, add)
        old = self.path
        self.version += 1
        return fold(old, self.path, changes, options=FoldOptions(threads=2, **options))

    def require_same(self) -> None:
        ids = list(self.points)
        vectors = np.stack([v for v, _ in self.points.values()]).astype(np.float32)
        with open_index(self.path) as index:
            rows = index.ids.rows_of(ids)
            assert index.n == len(ids) and sorted(rows.tolist()) == list(range(len(ids)))
            assert index.vectors(rows).astype(np.float32).tobytes() == vectors.tobytes()
            if index.payload is not None:
                assert index.payload.get(rows) == [p for _, p in self.points.values()]
            else:
                assert all(p is None for _, p in self.points.values())
            queries = np.concatenate([vectors[:2], self.vectors(4)])
            require_reference(index.search(queries, 20, EXACT), vectors, queries, self.options.metric, 20, ids=ids)
            assert index.recall(self.vectors(40), 10).mean >= 0.9
            codes = codes_of(index)
            groups = index.generation.places.groups
            assert index.n == index.generation.preview.nodes + (int(groups.extra[-1]) if len(groups.nodes) else 0)
            for node in groups.nodes:  # copies lie together, ascending by id
                first, end = groups.first_rows(np.array([node, node + 1]))
                assert (np.diff(codes[first:end].astype(np.int64)) > 0).all()
                assert (index.vectors(np.arange(first, end)) == index.vectors([first])).all()
            assert len(np.unique(index.vectors(np.arange(index.n)), axis=0)) == index.generation.preview.nodes


def codes_of(index) -> np.ndarray:
    """Id codes by row."""
    ids, rows = index.ids.in_order(None, index.n)
    codes = np.empty(index.n, np.uint64)
    codes[rows] = ids if index.ids.kind == "integers" else np.arange(index.n)
    return codes


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("preview", ["graph", "flat"])
def test_a_sequence_of_folds_holds_what_a_dict_holds(tmp_path, metric, preview):
    model = Model(tmp_path, 1, metric=metric, preview=preview)
    model.start(700)
    for drop, add in ((100, 90), (0, 60), (120, 0), (150, 200)):
        report = model.fold(drop, add)
        assert report.fold["done"] == "folded", report.fold
        assert (report.fold["rows_dropped"], report.fold["rows_added"]) == (drop, add)
        model.require_same()


@pytest.mark.parametrize("preview,n", [("auto", 60), ("ivf", 900)])
def test_few_rows_and_lists_are_built_anew_and_hold_the_same(tmp_path, preview, n):
    if preview == "ivf":
        pytest.importorskip("faiss")
    model = Model(tmp_path, 2, preview=preview)
    model.start(n)
    for drop, add in ((20, 30), (5, 0), (0, 12)):
        report = model.fold(drop, add)
        assert report.fold["done"] == "rebuilt"
        model.require_same()


@pytest.mark.parametrize("options", [{}, {"rebuild": True}])
def test_vectors_that_the_old_dtype_does_not_hold_make_it_float32(tmp_path, options):
    model = Model(tmp_path, 3, metric="l2", preview="graph")
    model.start(500, "int8")
    report = model.fold(30, 40, **options)
    assert report.fold["dtype"] == "int8 to float32" and report.dtype == "float32"
    model.require_same()


def test_vectors_that_the_old_dtype_holds_leave_it(tmp_path):
    rows = np.random.default_rng(0).integers(-100, 100, (500, DIM)).astype(np.int8)
    build(rows, tmp_path / "old", options=BuildOptions(metric="l2", preview="flat"))
    new = rows[:5].astype(np.float32) + 1
    with_ids = Changes(
        keep=np.ones(500, np.bool_), vectors=new, ids=range(500, 505), payloads=[None] * 5, new_payloads={}
    )
    assert fold(tmp_path / "old", tmp_path / "new", with_ids).dtype == "int8"
    with open_index(tmp_path / "new") as index:
        assert (index.vectors(index.ids.rows_of(range(500, 505))) == new).all() and index.payload is None


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    out = tmp_path_factory.mktemp("old") / "old"
    rows = np.random.default_rng(7).normal(size=(600, DIM)).astype(np.float32)
    build(
        rows,
        out,
        ids=[f"{i}" for i in range(600)],
        options=BuildOptions(preview="graph", metric="l2", seed=3, recall=0.9),
    )
    return out


def changes(m: int = 20, *, n: int = 600, drop: int = 10, **other) -> Changes:
    keep = np.ones(n, np.bool_)
    keep[:drop] = False
    vectors = np.random.default_rng(8).normal(size=(m, DIM)).astype(np.float32)
    given = {"keep": keep, "vectors": vectors, "ids": list(range(m)), "payloads": [None] * m, "new_payloads": {}}
    return Changes(**(given | other))


def test_what_does_not_fit_is_refused_and_leaves_nothing(old, tmp_path):
    bad = changes().vectors.copy()
    bad[3, 4] = np.nan
    with open_index(old) as index:
        kept = index.ids.ids_of_codes(codes_of(index))[-1]
    cases = [
        (changes(keep=np.ones(5, np.bool_)), ShapeMismatchError, "keep is bool"),
        (changes(vectors=np.zeros((20, 3), np.float32)), ShapeMismatchError, "new vectors are"),
        (changes(ids=[1]), ShapeMismatchError, "1 ids came for 20"),
        (changes(payloads=[]), ShapeMismatchError, "0 payloads came"),
        (changes(new_payloads={600: None}), ShapeMismatchError, "row 600"),
        (changes(0, drop=600), OptionsError, "no row would be left"),
        (changes(vectors=bad), BadRowsError, "row 3, column 4"),
        (changes(ids=[kept, *range(19)]), DuplicateIdError, "stands for"),
        (changes(ids=[UUID, UUID.upper(), *range(18)]), DuplicateIdError, UUID),
    ]
    for given, error, text in cases:
        with pytest.raises(error, match=text):
            fold(old, tmp_path / "new", given)
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "new").mkdir()
    with pytest.raises(IndexExistsError):
        fold(old, tmp_path / "new", changes())


def test_the_same_fold_twice_is_the_same_to_the_byte(old, tmp_path):
    for name, threads in (("a", 1), ("b", 3)):
        fold(old, tmp_path / name, changes(100), options=FoldOptions(threads=threads))
    names = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*") if path.is_file())
    for name in names:
        if name.name not in ("manifest.json", "report.json"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.parametrize("phase", ["scan", "order", "write", "codes", "graph", "tune", "verify", "publish"])
@pytest.mark.parametrize("rebuild", [False, True])
def test_cancelled_in_any_phase_nothing_is_left(old, tmp_path, phase, rebuild):
    cancel = threading.Event()

    def see(event) -> None:
        if event.phase == phase:
            cancel.set()

    with pytest.raises(BuildCancelledError):
        fold(old, tmp_path / "new", changes(), options=FoldOptions(rebuild=rebuild), on_progress=see, cancel=cancel)
    assert list(tmp_path.iterdir()) == []


def test_why_it_was_built_anew(old, tmp_path):
    cases = [
        ({"rebuild": True}, changes(), "asked for"),
        ({}, changes(drop=400), "rows are few"),
        ({}, changes(700), "are kept"),
        ({"build": BuildOptions(metric="cosine")}, changes(), "metric or seed"),
        ({"build": BuildOptions(metric="l2", seed=3, preview="flat")}, changes(), "built as flat"),
    ]
    for number, (options, given, why) in enumerate(cases):
        report = fold(old, tmp_path / f"{number}", given, options=FoldOptions(**options))
        assert report.fold["done"] == "rebuilt" and why in report.fold["why"], report.fold


def test_options_come_from_the_old_generation_and_go_on(old, tmp_path):
    fold(old, tmp_path / "new", changes())
    with open_index(old) as before, open_index(tmp_path / "new") as after:
        a, b = (wanted_options(x.generation, FoldOptions()) for x in (before, after))
        assert a == b == BuildOptions(preview="graph", metric="l2", seed=3, recall=0.9)
        assert after.generation.manifest.promise["recall"] == 0.9
        told = dict(after.generation.manifest.extras)
        del told["options"]
        older = msgspec.structs.replace(after.generation.manifest, extras=told)
        after.generation.manifest = older
        assert wanted_options(after.generation, FoldOptions()).memory_budget == 16.0  # what "1/4" came to


def test_a_report_says_what_was_done(old, tmp_path):
    report = fold(old, tmp_path / "new", changes(40, drop=30))
    told = report.fold
    assert (told["done"], told["rows_kept"], told["rows_dropped"], told["rows_added"]) == ("folded", 570, 30, 40)
    assert told["nodes_mended"] > 30 and told["nodes_inserted"] >= 35
    assert report.rows == 610 and report.seconds > 0 and report.promise_kept
    saved = msgspec.json.decode((tmp_path / "new" / "report.json").read_bytes())
    assert saved["fold"] == told


# --- real rows -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(wordnet, tmp_path_factory):
    out = tmp_path_factory.mktemp("fold-real") / "old"
    rows = wordnet.vectors[np.random.default_rng(1).permutation(24_000)]
    report = build(rows[:8500], out, options=BuildOptions(preview="graph"))
    assert report.promise_kept
    return out, rows.astype(np.float32)


def test_after_a_third_was_replaced_the_promise_holds(real, tmp_path):
    out, rows = real
    keep = np.ones(8500, np.bool_)
    keep[np.random.default_rng(0).choice(8500, 2500, replace=False)] = False
    new = rows[8500:11_000]
    given = Changes(keep=keep, vectors=new, ids=range(8500, 11_000), payloads=[None] * 2500, new_payloads={})
    report = fold(out, tmp_path / "new", given)
    assert report.fold["done"] == "folded" and report.promise_kept and report.dtype == "int8"
    with open_index(tmp_path / "new") as index:
        assert index.recall(rows[12_000:12_800], 10).mean >= 0.945


def test_rows_of_another_kind_force_a_rebuild(tmp_path):
    # Far from the mean that the codes were made around: they no longer tell these rows apart.
    generator = np.random.default_rng(0)
    options = BuildOptions(metric="l2", preview="graph", bits=4, threads=2)
    assert build(generator.normal(size=(1500, DIM)), tmp_path / "old", options=options).promise_kept
    new = (1000 + generator.normal(size=(1400, DIM))).astype(np.float32)
    keep, ids = np.ones(1500, np.bool_), range(2000, 3400)
    given = Changes(keep=keep, vectors=new, ids=ids, payloads=[None] * 1400, new_payloads={})
    seen: list[str] = []
    report = fold(tmp_path / "old", tmp_path / "new", given, on_progress=lambda event: seen.append(event.phase))
    assert report.fold["done"] == "rebuilt" and "recall 0.95" in report.fold["why"]
    assert seen.count("tune") >= 2 and [path.name for path in sorted(tmp_path.iterdir())] == ["new", "old"]
    with open_index(tmp_path / "new") as index:
        queries = (1000 + generator.normal(size=(50, DIM))).astype(np.float32)
        assert index.recall(queries, 10).mean >= report.measured_recall["low"] - 0.03


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from index import Changes, fold

def see(event):
    if event.phase == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

vectors = np.random.default_rng(8).normal(size=(20, 12)).astype(np.float32)
given = Changes(keep=np.arange(600) > 9, vectors=vectors, ids=range(20), payloads=[None] * 20, new_payloads={})
fold(Path(sys.argv[1]), Path(sys.argv[2]), given, on_progress=see)
"""


@pytest.mark.parametrize("phase", ["write", "graph", "verify"])
def test_killed_half_way_nothing_is_published_and_the_next_fold_clears_up(old, tmp_path, phase):
    made = subprocess.run([sys.executable, "-c", KILLED, str(old), str(tmp_path / "new"), phase], timeout=120)
    assert made.returncode == -signal.SIGKILL
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) == 1 and left[0].startswith(".new.building-")
    fold(old, tmp_path / "new", changes())
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    with open_index(old) as index:
        assert index.n == 600
