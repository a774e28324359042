"""Calibration states: read, answered exactly, and divided into what shapes, chooses and measures."""

from __future__ import annotations

import numpy as np
import pytest
from layer_oracle import log_sum, logits64, random_layer, random_states

from decoder.calibration import ANSWERS, LEAST, MEASURED_MOST, calibrate, read_states
from decoder.errors import BadHiddenError, DecoderError, DecoderOptionsError
from index.errors import SourceError


def calibrated(layer, states, **options):
    return calibrate(layer, states, **{"seed": 0, "threads": 1, "on_progress": lambda done, total: None, **options})


class TestReading:
    @pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
    def test_an_array_or_a_file_of_it(self, tmp_path, dtype):
        states = random_states(300, 8).astype(dtype)
        np.save(tmp_path / "states.npy", states)
        for given in (states, tmp_path / "states.npy", str(tmp_path / "states.npy")):
            read = read_states(given, 8)
            assert read.dtype == np.float32 and read.flags.c_contiguous
            np.testing.assert_array_equal(read, states.astype(np.float32))

    def test_rows_with_nan_are_named(self, tmp_path):
        states = random_states(300, 8)
        states[17, 3], states[200, 0] = np.nan, np.inf
        np.save(tmp_path / "states.npy", states)
        for given in (states, tmp_path / "states.npy"):
            with pytest.raises(BadHiddenError, match="rows 17, 200 of 300") as caught:
                read_states(given, 8)
            assert caught.value.rows == [17, 200]

    def test_states_of_another_width(self):
        with pytest.raises(BadHiddenError, match=r"shape \(300, 7\), needed \[n, 8\]"):
            read_states(random_states(300, 7), 8)

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises((SourceError, DecoderError, OSError), match=r"missing\.npy"):
            read_states(tmp_path / "missing.npy", 8)

    @pytest.mark.parametrize("given", [None, "", 3, [["a"]]])
    def test_what_is_no_states(self, given):
        with pytest.raises((BadHiddenError, SourceError, OSError)):
            read_states(given, 8)


def test_answers_are_exact():
    layer, states = random_layer(300, 12), random_states(300, 12)
    known = calibrated(layer, states)
    true = logits64(layer, states)
    assert known.answers.shape == (300, ANSWERS) and known.answers.dtype == np.int32
    np.testing.assert_array_equal(known.answers[:, 0], true.argmax(axis=1))
    np.testing.assert_allclose(known.log_z, log_sum(true), atol=1e-4)


@pytest.mark.parametrize("V", [1, 21, 64])
def test_no_more_answers_than_tokens(V):
    assert calibrated(random_layer(V, 4), random_states(LEAST, 4)).answers.shape == (LEAST, V)


@pytest.mark.parametrize("n", [LEAST, 1000, 3000])
def test_the_parts_are_stretches_that_do_not_overlap(n):
    known = calibrated(random_layer(20, 4), random_states(n, 4))
    shaping, answers = known.shapes
    chooses, measures = known.chooses, known.measures
    assert len(shaping) + len(chooses) + len(measures) == n and len(answers) == len(shaping)
    assert min(len(chooses), len(measures)) > 0 and len(shaping) >= n // 2
    assert len(chooses) + len(measures) <= MEASURED_MOST
    everything = np.concatenate([shaping, chooses.states, measures.states])
    np.testing.assert_array_equal(everything, known.states)
    np.testing.assert_array_equal(measures.token_ids, known.answers[-len(measures) :])
    assert known.real


@pytest.mark.parametrize("n", [0, 1, LEAST - 1])
def test_too_few_states_are_refused(n):
    with pytest.raises(DecoderOptionsError, match=f"calibration has {n} states, needed at least {LEAST}"):
        calibrated(random_layer(20, 4), random_states(n, 4))


@pytest.mark.parametrize("V", [1, 30, 900])
def test_without_states_rows_are_asked_for(V):
    known = calibrated(random_layer(V, 6), None)
    assert not known.real and known.shaping == 0 and len(known.shapes[0]) == 0
    assert len(known.states) >= LEAST and np.isfinite(known.states).all()
    assert min(len(known.chooses), len(known.measures)) > 0
    again, other = calibrated(random_layer(V, 6), None), calibrated(random_layer(V, 6), None, seed=1)
    assert again.states.tobytes() == known.states.tobytes() != other.states.tobytes()


def test_a_row_of_zeros_among_those_asked_for():
    layer = random_layer(30, 6)
    layer.weight[:] = 0
    assert np.isfinite(calibrated(layer, None).states).all()


def test_answers_do_not_depend_on_threads_and_tell_progress():
    layer, told = random_layer(9000, 8), []
    states = random_states(600, 8)
    one = calibrated(layer, states, on_progress=lambda done, total: told.append((done, total)))
    three = calibrated(layer, states, threads=3)
    assert one.answers.tobytes() == three.answers.tobytes() and one.log_z.tobytes() == three.log_z.tobytes()
    assert told == [(0, 600), (256, 600), (512, 600), (600, 600)]
