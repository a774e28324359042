"""Heads that the benchmark of decoders opens, and heads made of copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench_heads import small_head

from index.errors import OptionsError
from service.bench.decoder.heads import open_head, stacked

NOTHING = {"data": Path("nowhere"), "calibration": None, "states": None, "most_states": 20, "stack": None}


def opened(given, **changed):
    return open_head(str(given), **(NOTHING | changed))


@pytest.fixture
def folder(tmp_path):
    """What scripts/fetch_data.py makes of a head."""
    head, place = small_head(), tmp_path / "marian"
    place.mkdir()
    np.save(place / "head.npy", head.layer.weight)
    np.save(place / "bias.npy", head.layer.bias)
    np.save(place / "calib_hidden.npy", head.calibration.astype(np.float16))
    np.save(place / "heldout_hidden.npy", head.states.astype(np.float16))
    return place


def test_a_fetched_head_by_name_and_by_folder(folder, tmp_path):
    for found in (opened("marian", data=tmp_path), opened(folder)):
        assert found.name == "marian" and found.layer.dtype == "float16" and found.layer.bias.any()
        assert found.calibration.shape == (600, 32) and found.states.shape == (20, 32)
        assert found.states.dtype == np.float32 and found.states.flags.c_contiguous
        assert found.float32.dtype == np.float32 and found.float32 is found.float32
    (folder / "bias.npy").unlink()
    assert not opened(folder).layer.bias.any()


def test_held_out_states_are_spread_over_all(folder):
    states = np.load(folder / "heldout_hidden.npy").astype(np.float32)
    found = opened(folder, most_states=3).states
    assert (found == states[[0, (len(states) - 1) // 2, -1]]).all()
    assert len(opened(folder, most_states=10_000).states) == len(states)


def test_the_bundled_head():
    found = opened("bundled", most_states=100)
    assert (found.layer.vocab_size, found.layer.dim) == (32_000, 256) and found.layer.bias.any()
    assert found.calibration.shape == (4000, 256) and found.states.shape == (100, 256)


def test_a_layer_of_ones_own(folder):
    given = {"calibration": folder / "calib_hidden.npy", "states": folder / "heldout_hidden.npy"}
    found = opened(folder / "head.npy", **given)
    assert found.name == "head" and len(found.calibration) == 600 and len(found.states) == 20
    assert opened(folder / "head.npy", states=given["states"]).calibration is None
    with pytest.raises(OptionsError, match=r"without hidden states\. Name a file of real ones with --held-out"):
        opened(folder / "head.npy")
    np.save(folder / "narrow.npy", np.ones((30, 5), np.float32))
    with pytest.raises(OptionsError, match="states of 5 coordinates, but rows of the layer have 32"):
        opened(folder / "head.npy", states=folder / "narrow.npy")


def test_what_is_not_there(tmp_path):
    with pytest.raises(OptionsError, match=r"the head smollm2 is not in .* `python scripts/fetch_data.py .* smollm2`"):
        opened("smollm2", data=tmp_path)
    with pytest.raises(OptionsError, match="head is 'gpt': no such file or folder"):
        opened("gpt")


def test_copies_have_noise_of_their_own_and_the_first_none():
    head = small_head(vocab_size=400)
    made = stacked(head, 1000)
    weight, own = made.layer.weight.astype(np.float32), head.layer.weight.astype(np.float32)
    assert made.name == "small stacked to 1,000" and weight.shape == (1000, 32) and made.layer.dtype == "float16"
    assert (weight[:400] == own).all() and (made.layer.bias[800:] == head.layer.bias[:200]).all()
    for first, seed in ((400, 1), (800, 2)):
        rows = min(400, 1000 - first)
        noise = np.random.default_rng(seed).normal(size=own.shape).astype(np.float32)[:rows]
        expected = own[:rows] + noise * np.float32(0.3) * own.std(axis=0)
        assert np.abs(weight[first : first + rows] - expected).max() < 0.01
    assert made.states is head.states and made.calibration is head.calibration
    with pytest.raises(OptionsError, match="stack is 300, but small has 400 tokens already"):
        stacked(head, 300)
