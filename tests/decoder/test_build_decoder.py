"""Building a decoder: the same for any number of threads, whole or not there at all, and refused in words."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from layer_oracle import DTYPES, random_layer, random_states, require_best

from decoder import DecoderOptions, OutputLayer, build_decoder, exact_topk, open_decoder
from decoder import build as building
from decoder.build import PHASES
from decoder.errors import BadHiddenError, DecoderOptionsError, UnknownDecoderError
from decoder.store import REPORT
from index import publication
from index.errors import BuildCancelledError, DiskFullError, IndexExistsError, OptionsError

OPTIONS = DecoderOptions(threads=1, degree=16, room=2, clusters=4)
RANDOM = object()


def states_of(n: int = 300, dim: int = 12, seed: int = 2) -> np.ndarray:
    return random_states(n, dim, seed=seed)


def built(path: Path, layer: OutputLayer | None = None, *, calibration: object = RANDOM, **options: object):
    layer = random_layer(203, 12) if layer is None else layer
    known = states_of(dim=layer.dim) if calibration is RANDOM else calibration
    return build_decoder(layer, path, **{"calibration": known, "options": OPTIONS, **options})


def contents(folder: Path) -> dict[str, object]:
    """Every file, but what tells of times and dates in it."""
    found: dict[str, object] = {}
    for path in folder.iterdir():
        raw = path.read_bytes()
        if path.name == "manifest.json":
            manifest = msgspec.json.decode(raw)["manifest"]
            manifest.pop("created_at")
            manifest["files"].pop(REPORT)
            found[path.name] = manifest
        elif path.name == REPORT:
            report = msgspec.json.decode(raw)
            found[path.name] = {
                name: report[name] for name in report.keys() - {"seconds", "phases", "threads", "peak_bytes"}
            }
        else:
            found[path.name] = raw
    return found


# --- the same decoder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", ["random", None])
def test_the_same_for_any_number_of_threads(tmp_path, calibration):
    layer = random_layer(700, 20, "bfloat16")
    known = states_of(900, 20) if calibration else None
    for threads in (1, 2, 5):
        options = DecoderOptions(threads=threads, degree=16, room=2, clusters=6)
        build_decoder(layer, tmp_path / f"{threads}", calibration=known, options=options)
    first = contents(tmp_path / "1")
    assert first == contents(tmp_path / "2") == contents(tmp_path / "5")


def test_another_seed_is_another_decoder(tmp_path):
    for seed in (0, 1):
        built(tmp_path / f"{seed}", options=DecoderOptions(threads=1, degree=16, room=2, clusters=4, seed=seed))
    first, second = contents(tmp_path / "0"), contents(tmp_path / "1")
    assert first["links.npy"] != second["links.npy"] and first["weights.npy"] == second["weights.npy"]


def test_calibration_from_a_file_is_calibration_from_an_array(tmp_path):
    np.save(tmp_path / "states.npy", states_of().astype(np.float16))
    built(tmp_path / "file", calibration=str(tmp_path / "states.npy"))
    built(tmp_path / "array", calibration=states_of().astype(np.float16))
    assert contents(tmp_path / "file") == contents(tmp_path / "array")


# --- what it returns and tells --------------------------------------------------------------------------------------


def test_the_report_says_what_was_done(tmp_path):
    report = built(tmp_path / "d", random_layer(300, 12, "bfloat16"))
    assert (report.vocab_size, report.dim, report.dtype, report.threads) == (300, 12, "bfloat16", 1)
    assert report.calibration_states == 300 and set(report.rows_scored_by_variant) >= {"graph", report.links}
    assert report.in_degree["least"] >= 1 and report.in_degree["median"] >= 8
    assert {point["mode"] for point in report.curve} == {"walk", "screen"}
    assert set(report.promise["points"]) == {"walk", "screen"} and "300 calibration states" in report.promise["covers"]
    assert report.seconds > 0 and report.peak_bytes >= 0 and set(report.phases) <= set(PHASES)
    assert report.resident_bytes["links"] == 300 * 18 * 4
    assert msgspec.json.decode(msgspec.json.encode(report.to_dict())) == report.to_dict()


def test_every_phase_is_told_in_order(tmp_path):
    told = []
    built(tmp_path / "d", on_progress=lambda event: told.append((event.phase, event.done, event.total)))
    assert list(dict.fromkeys(phase for phase, *_ in told)) == list(PHASES)
    assert all(0 <= done <= total for _, done, total in told) and told[-1] == ("publish", 1, 1)


# --- without calibration, and small ----------------------------------------------------------------------------------


def test_without_calibration_the_report_says_what_that_costs(tmp_path):
    layer = random_layer(700, 20)
    report = built(tmp_path / "d", layer, calibration=None)
    assert report.calibration_states == 0 and report.links == "graph"
    assert "no calibration states" in report.promise["covers"]
    with open_decoder(tmp_path / "d") as head:
        states = random_states(50, 20)
        top = head.topk(states, mode="walk", recall=0.95)
        exact = exact_topk(layer, states, 10)
        shares = [len(set(a) & set(b)) / 10 for a, b in zip(top.token_ids.tolist(), exact.token_ids.tolist())]
        assert np.mean(shares) > 0.9
        assert head.stats()["promise"]["covers"] == report.promise["covers"]


@pytest.mark.parametrize("V", [1, 2, 21, 64])
@pytest.mark.parametrize("calibration", ["random", None])
def test_small_vocabularies_are_answered_exactly(tmp_path, V, calibration):
    layer = random_layer(V, 7)
    report = built(tmp_path / "d", layer, calibration=states_of(dim=7) if calibration else None)
    assert report.curve == []
    with open_decoder(tmp_path / "d") as head:
        for mode in ("auto", "walk", "screen", "exact"):
            top = head.topk(random_states(4, 7), k=5, mode=mode)
            assert top.mode == "exact" and top.exact and (top.counts == min(5, V)).all()
            require_best(layer, random_states(4, 7), top.token_ids, top.logits, min(5, V))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V, dim", [(65, 1), (70, 5), (101, 16), (130, 33)])
def test_every_mode_from_the_smallest_graph_on(tmp_path, V, dim, dtype):
    """Fewer coordinates than a scan reads at a time; fewer tokens than the narrowest screen passes."""
    layer = random_layer(V, dim, dtype)
    report = built(tmp_path / "d", layer)
    with open_decoder(tmp_path / "d") as head:
        for mode in ("walk", "screen"):
            assert any(point["mode"] == mode and point["recall"]["10"] == 1.0 for point in report.curve)
            top = head.topk(random_states(9, dim), k=10, mode=mode, recall=1.0)
            assert top.mode == mode and (top.counts == 10).all()
            require_best(layer, random_states(9, dim), top.token_ids, top.logits, 10)


@pytest.mark.parametrize("width, lead", [(16, None), (16, 32), (24, 16), (40, 400), (None, 16)])
def test_codes_of_the_leading_coordinates_only(tmp_path, width, lead):
    layer = random_layer(400, 40)
    options = DecoderOptions(threads=1, degree=16, room=2, clusters=4, width=width, lead=lead)
    report = built(tmp_path / "d", layer, options=options)
    with open_decoder(tmp_path / "d") as head:
        stats = head.stats()
        assert stats["width"] == (width or 40) and stats["lead"] == 64
        states = random_states(60, 40)
        exact = exact_topk(layer, states, 10)
        for mode in ("walk", "screen"):
            top = head.topk(states, k=10, mode=mode, recall=1.0)
            shares = [len(set(a) & set(b)) / 10 for a, b in zip(top.token_ids.tolist(), exact.token_ids.tolist())]
            widest = max((point for point in report.curve if point["mode"] == mode), key=lambda point: point["width"])
            assert np.mean(shares) == pytest.approx(widest["recall"]["10"], abs=0.05) and np.mean(shares) > 0.8
            found = top.token_ids[:, 0] == exact.token_ids[:, 0]
            error = np.abs(top.logprobs - (exact.logits - exact.log_partition[:, None]))[found, 0]
            assert (
                np.mean(error) < 3 * widest["logprob_error"] + 0.01
                and np.mean(error <= 1.96 * top.logprob_stderr[found]) > 0.8
            )


# --- refused at once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calibration, error, said",
    [
        (states_of(199), DecoderOptionsError, "calibration has 199 states, needed at least 200"),
        (np.zeros((0, 12), np.float32), DecoderOptionsError, "calibration has 0 states"),
        (states_of(300, 13), BadHiddenError, r"shape \(300, 13\), needed \[n, 12\]"),
        (np.where(np.arange(300)[:, None] == 41, np.nan, states_of()), BadHiddenError, "row 41 of 300"),
        (states_of().astype(np.int8) > 0, BadHiddenError, "dtype bool"),
    ],
)
def test_calibration_that_cannot_be_used(tmp_path, calibration, error, said):
    with pytest.raises(error, match=said):
        built(tmp_path / "d", calibration=calibration)
    assert list(tmp_path.iterdir()) == []


def test_options_that_do_not_fit_the_layer(tmp_path):
    told = []
    with pytest.raises(DecoderOptionsError, match="width is 300, but states have 12 coordinates"):
        built(tmp_path / "d", options=DecoderOptions(width=300), on_progress=lambda event: told.append(event.phase))
    assert list(tmp_path.iterdir()) == [] and not told


@pytest.mark.parametrize("taken", ["a decoder", "a file", "a folder of someone's"])
def test_a_place_that_is_taken(tmp_path, taken):
    place = tmp_path / "d"
    if taken == "a decoder":
        built(place)
    elif taken == "a file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "thesis.txt").write_text("years of work")
    before = contents(tmp_path / "d") if taken == "a decoder" else None
    with pytest.raises(IndexExistsError, match="decoder"):
        built(place)
    if taken != "a decoder":
        with pytest.raises(IndexExistsError, match="decoder"):
            built(place, replace=True)
    assert before is None or contents(place) == before
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_an_index_is_not_replaced_by_a_decoder_nor_the_other_way_round(tmp_path):
    from index import build

    build(random_states(60, 8), tmp_path / "index")
    with pytest.raises(IndexExistsError):
        built(tmp_path / "index", replace=True)
    built(tmp_path / "d")
    with pytest.raises(IndexExistsError):
        build(random_states(60, 8), tmp_path / "d", replace=True)
    open_decoder(tmp_path / "d").close()


def test_a_place_where_no_folder_can_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OptionsError, match="No decoder can be built"):
        built(tmp_path / "file" / "d")


# --- replaced ---------------------------------------------------------------------------------------------------------


def test_replacing_while_the_old_one_is_open(tmp_path):
    old, new = random_layer(203, 12), random_layer(203, 12, seed=9)
    states = random_states(5, 12)
    built(tmp_path / "d", old)
    with open_decoder(tmp_path / "d") as head:
        before = head.topk(states, mode="walk")
        built(tmp_path / "d", new, replace=True)
        after = head.topk(states, mode="walk")
        assert before.logits.tobytes() == after.logits.tobytes()
    with open_decoder(tmp_path / "d") as head:
        assert head.layer.weights_hash() == new.weights_hash()
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


# --- cancelled, killed, without room ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("threads", [1, 3])
def test_cancelled_in_any_phase_nothing_is_left(tmp_path, phase, threads):
    cancel = threading.Event()
    built(tmp_path / "d")
    before = contents(tmp_path / "d")

    def on_progress(event) -> None:
        if event.phase == phase:
            cancel.set()

    options = DecoderOptions(threads=threads, degree=16, room=2, clusters=4)
    layer = random_layer(300, 12, seed=4)
    run = {"options": options, "on_progress": on_progress, "cancel": cancel, "replace": True}
    if phase == "publish":
        # Told when it is about to be done: the next look at `cancel` would come after.
        built(tmp_path / "d", layer, **run)
        assert contents(tmp_path / "d") != before
    else:
        with pytest.raises(BuildCancelledError):
            built(tmp_path / "d", layer, **run)
        assert contents(tmp_path / "d") == before
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert not [t for t in threading.enumerate() if t.name == "peak-memory"]


KILLED = """
import os, signal, sys
import numpy as np
from decoder import DecoderOptions, OutputLayer, build_decoder

def die(event):
    if event.phase == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

weight = np.random.default_rng(0).normal(size=(203, 12)).astype(np.float32)
build_decoder(OutputLayer(weight), sys.argv[1], options=DecoderOptions(threads=1, degree=16), on_progress=die)
"""


@pytest.mark.parametrize(
    "phase",
    [
        "answers",
        pytest.param("graph", marks=pytest.mark.long),
        "write",
        pytest.param("publish", marks=pytest.mark.long),
    ],
)
def test_killed_nothing_half_made_is_seen_and_the_next_build_tidies_up(tmp_path, phase):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "d"), phase]
    root = Path(building.__file__).parents[1]
    assert subprocess.run(command, check=False, cwd=root).returncode == -signal.SIGKILL
    with pytest.raises(UnknownDecoderError):
        open_decoder(tmp_path / "d")
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".d.building-")
    built(tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_running_build_is_no_leftover(tmp_path):
    seen = []

    def look(event) -> None:
        if event.phase == "codes" and not seen:
            seen.append(publication.remove_leftovers(tmp_path))

    built(tmp_path / "d", on_progress=look)
    assert seen == [[]]


def test_a_full_disk_is_known_as_one(tmp_path, monkeypatch):
    """Every write of a file may be the one that finds no room."""
    real = building.write_decoder
    for error in (errno.ENOSPC, errno.EDQUOT):

        def no_room(folder, parts, error=error):
            real(folder, parts)
            raise OSError(error, os.strerror(error), str(folder / "links.npy"))

        monkeypatch.setattr(building, "write_decoder", no_room)
        with pytest.raises(DiskFullError, match=r"links\.npy") as caught:
            built(tmp_path / "d")
        assert caught.value.needed_bytes > caught.value.free_bytes
        assert list(tmp_path.iterdir()) == []


def test_files_that_may_not_grow_leave_nothing_behind(tmp_path):
    """A limit on the size of files, as a quota has it: a write in the middle of an array fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limits[1]))
        with pytest.raises(OSError) as caught:
            built(tmp_path / "d")
        assert caught.value.errno == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "_least_bytes", lambda layer, options: 10**15)
    told = []
    with pytest.raises(DiskFullError, match=r"1,000,000,000,000,000 bytes are needed"):
        built(tmp_path / "d", on_progress=lambda event: told.append(event.phase))
    assert list(tmp_path.iterdir()) == [] and not told


def test_the_least_a_folder_takes_is_less_than_it_takes(tmp_path):
    layer = random_layer(900, 20, "float32")
    built(tmp_path / "d", layer)
    taken = sum(path.stat().st_size for path in (tmp_path / "d").iterdir())
    assert taken * 0.6 < building._least_bytes(layer, OPTIONS) < taken
