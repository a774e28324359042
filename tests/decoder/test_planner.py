"""The cheapest mode that reaches what is asked, by made-up tables; and tables measured and kept."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from test_operating_points_decoder import point

from decoder.errors import DecoderOptionsError
from decoder.planner import BATCHES, Planner, Timings, load_timings, measure_timings, save_timings, this_machine
from decoder.store import TIMINGS

MADE = "a decoder"


def timings(**tables) -> Timings:
    given = {
        "made": MADE,
        "machine": this_machine(),
        "walk": ((24, 50.0, 70.0), (64, 100.0, 140.0), (96, 150.0, 200.0)),
        "screen": ((128, 300.0, 330.0), (700, 400.0, 450.0)),
        "exact": ((1, 3000.0), (8, 500.0), (64, 90.0)),
    }
    return Timings(**{**given, **tables})


POINTS = (
    point("walk", 24, 0.90, error=0.05),
    point("walk", 64, 0.97, error=0.02),
    point("walk", 96, 0.991, error=0.003),
    point("screen", 128, 0.992),
    point("screen", 700, 0.9995),
)


def planner(points=POINTS, **tables) -> Planner:
    return Planner(points, timings(**tables), 0.004)


def choose(some: Planner, **asked):
    given = {"mode": "auto", "batch": 1, "k": 10, "recall": 0.99, "log_z": True, "vocab_size": 50_000, **asked}
    choice = some.choose(**given)
    return choice.mode, choice.point.width if choice.point else None, choice.reached


@pytest.mark.parametrize(
    "asked, expected",
    [
        ({}, ("walk", 96, True)),
        ({"recall": 0.9}, ("walk", 96, True)),  # narrower ones are too wrong about log Z
        ({"recall": 0.9, "log_z": False}, ("walk", 24, True)),
        ({"recall": 0.96, "log_z": False}, ("walk", 64, True)),
        ({"recall": 0.999}, ("screen", 700, True)),  # no walk reaches it
        ({"recall": 0.99999}, ("exact", None, True)),
        ({"batch": 64}, ("exact", None, True)),  # 90 us a state
        ({"batch": 64, "recall": 0.9, "log_z": False}, ("walk", 24, True)),  # 50 us
        ({"batch": 20}, ("walk", 96, True)),
        ({"k": 200, "recall": 0.98}, ("screen", 128, True)),  # both are twice as wide
        ({"k": 200, "recall": 0.98, "log_z": False}, ("walk", 96, True)),
        ({"k": 12_500, "recall": 0.98}, ("exact", None, True)),  # so wide a walk costs more than all rows
        ({"k": 12_501}, ("exact", None, True)),
        ({"mode": "walk", "recall": 0.9}, ("walk", 24, True)),  # its log Z is as good as it says
        ({"mode": "walk", "recall": 0.999}, ("walk", 96, False)),
        ({"mode": "screen"}, ("screen", 128, True)),
        ({"mode": "screen", "batch": 64}, ("screen", 128, True)),
        ({"mode": "exact", "recall": 0.5}, ("exact", None, True)),
        ({"mode": "walk", "k": 40_000}, ("exact", None, True)),
    ],
)
def test_choices_by_the_table(asked, expected):
    assert choose(planner(), **asked) == expected


def test_the_quicker_mode_wins():
    assert choose(planner(walk=((24, 500.0, 700.0), (96, 900.0, 999.0)))) == ("screen", 128, True)
    assert choose(planner(exact=((1, 100.0), (8, 100.0), (64, 100.0)))) == ("exact", None, True)


@pytest.mark.parametrize("mode", ["auto", "walk", "screen", "exact"])
def test_without_operating_points_everything_is_exact(mode):
    assert choose(planner(points=()), mode=mode) == ("exact", None, True)


def test_a_mode_without_operating_points_is_exact():
    walks = tuple(some for some in POINTS if some.mode == "walk")
    assert choose(planner(points=walks), mode="screen") == ("exact", None, True)
    assert choose(planner(points=walks), recall=0.999) == ("exact", None, True)


@pytest.mark.parametrize("mode", ["fast", "WALK", None, 3, ""])
def test_no_such_mode(mode):
    with pytest.raises(DecoderOptionsError, match="mode is"):
        choose(planner(), mode=mode)


def test_a_screen_asked_for_more_than_its_points_give_lets_every_row_pass():
    asked = {"batch": 1, "k": 10, "recall": 1.0, "log_z": True, "vocab_size": 50_000}
    chosen = planner().choose(mode="screen", **asked)
    assert (chosen.mode, chosen.point.width, chosen.reached) == ("screen", 50_000, False)
    walk = planner().choose(mode="walk", **asked)
    assert (walk.point.width, walk.reached) == (96, False)


class TestTimings:
    def test_between_widths_and_beyond_them(self):
        table = timings()
        assert table.of("walk", width=44, batch=1, log_z=False) == pytest.approx(75.0)
        assert table.of("walk", width=10, batch=1, log_z=True) == 70.0
        assert table.of("walk", width=96 + 32, batch=9, log_z=False) == pytest.approx(200.0)
        assert table.of("screen", width=700, batch=1, log_z=True) == 450.0
        shrinking = timings(walk=((24, 50.0, 70.0), (96, 40.0, 60.0)))
        assert shrinking.of("walk", width=2000, batch=1, log_z=False) == 40.0
        assert timings(walk=((24, 50.0, 70.0),)).of("walk", width=999, batch=1, log_z=False) == 50.0

    def test_between_batches(self):
        table = timings()
        assert table.of("exact", width=0, batch=1, log_z=True) == 3000.0
        assert (
            table.of("exact", width=0, batch=64, log_z=True) == table.of("exact", width=0, batch=999, log_z=True) == 90
        )
        assert 500 < table.of("exact", width=0, batch=4, log_z=True) < 3000

    def test_kept_and_read(self, tmp_path):
        save_timings(tmp_path, timings())
        assert load_timings(tmp_path, POINTS, MADE) == timings() and [p.name for p in tmp_path.iterdir()] == [TIMINGS]
        save_timings(tmp_path, timings(walk=()))
        assert load_timings(tmp_path, POINTS, MADE) is None and load_timings(tmp_path, POINTS[3:], MADE) == timings(
            walk=()
        )

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"machine": 3}', "\udce9"])
    def test_a_damaged_file_is_measured_again(self, tmp_path, text):
        (tmp_path / TIMINGS).write_bytes(text.encode("utf-8", "surrogateescape"))
        assert load_timings(tmp_path, POINTS, MADE) is None

    @pytest.mark.parametrize(
        "change",
        [
            {"walk": [[24, "x", 1.0]]},
            {"exact": []},
            {"walk": [[24, 1.0]]},
            {"screen": [3]},
            {"exact": None},
            {"exact": [[0, 1.0]]},
            {"exact": [[1, 1.0], [10**30, 2.0]]},
            {"exact": [[8, 1.0], [1, 2.0]]},
            {"walk": [[10, 1.0, 1.0], [10, 2.0, 2.0]]},
            {"walk": [[10, 0.0, 1.0]]},
            {"screen": [[10, 1.0, 1e300]]},
        ],
    )
    def test_a_table_of_another_shape_is_measured_again(self, tmp_path, change):
        (tmp_path / TIMINGS).write_text(json.dumps({**timings().to_dict(), **change}))
        assert load_timings(tmp_path, POINTS, MADE) is None

    def test_another_machine_measures_again(self, tmp_path):
        save_timings(tmp_path, timings(machine="another"))
        assert load_timings(tmp_path, POINTS, MADE) is None

    def test_another_decoder_in_the_same_place_is_measured_again(self, tmp_path):
        save_timings(tmp_path, timings(made="an older one"))
        assert load_timings(tmp_path, POINTS, MADE) is None

    def test_what_is_no_file_is_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / TIMINGS)
        assert load_timings(tmp_path, POINTS, MADE) is None

    def test_where_nothing_can_be_written_nothing_happens(self, tmp_path):
        save_timings(tmp_path / "missing", timings())
        assert list(tmp_path.iterdir()) == []


def test_measuring_asks_for_every_mode():
    asked = []

    def run(mode, width, states, *, log_z):
        asked.append((mode, width, len(states), log_z))

    states = np.arange(12, dtype=np.float32).reshape(3, 4)
    table = measure_timings(run, POINTS, states, MADE)
    assert [row[0] for row in table.walk] == [24, 64, 96] and [row[0] for row in table.screen] == [128, 700]
    assert [batch for batch, _ in table.exact] == list(BATCHES)
    assert {mode for mode, *_ in asked} == {"walk", "screen", "exact"}
    assert {n for mode, _, n, _ in asked if mode == "exact"} == set(BATCHES)
    assert all(row[1] >= 0 and row[2] >= 0 for row in table.walk + table.screen)
    assert table.machine == this_machine()


def test_measuring_a_decoder_without_points():
    table = measure_timings(lambda *_, **__: None, (), np.ones((1, 4), np.float32), MADE)
    assert table.walk == table.screen == () and len(table.exact) == len(BATCHES)
