"""The compressed rows: what codes stand for, and where a scan may read."""

from __future__ import annotations

import numpy as np
import pytest

from decoder.preview import SCANNED_AT_ONCE, Preview, decode, decode_lead, encode, encode_lead


def coordinates(V: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(V, width)).astype(np.float32)


def encoded(values: np.ndarray, biases: np.ndarray):
    codes, scalars = np.empty(values.shape, np.uint8), np.empty((len(values), 2), np.float32)
    encode(values, biases, codes, scalars)
    return codes, scalars


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_codes_stand_for_their_coordinates(size):
    values, biases = coordinates(50, 33) * np.float32(size), np.arange(50, dtype=np.float32)
    codes, scalars = encoded(values, biases)
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(decode(codes, scalars) - values) <= largest / 127.5 * 0.501).all()
    assert scalars[:, 0].tolist() == (-2 * biases).tolist()
    # The whole range is used.
    assert ((codes.min(axis=1) == 0) | (codes.max(axis=1) == 255)).all()


def test_an_estimate_is_bias_and_inner_product():
    values, biases = coordinates(50, 64), coordinates(50, 1, seed=2)[:, 0]
    codes, scalars = encoded(values, biases)
    query = coordinates(1, 64, seed=3)[0]
    estimates = -0.5 * scalars[:, 0] + scalars[:, 1] * ((codes.astype(np.float32) - 127.5) @ query)
    np.testing.assert_allclose(estimates, values @ query + biases, atol=0.3)


def test_a_row_of_zeros():
    codes, scalars = encoded(np.zeros((1, 16), np.float32), np.zeros(1, np.float32))
    assert np.abs(decode(codes, scalars)).max() < 1e-20 and np.isfinite(scalars).all()


def lead_encoded(values: np.ndarray, biases: np.ndarray):
    codes, scalars = np.empty((len(values), values.shape[1] // 2), np.uint8), np.empty((2, len(values)), np.float32)
    encode_lead(values, biases, codes, scalars)
    return codes, scalars


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12, 1e25])
def test_leading_codes_stand_for_their_coordinates(size):
    values, biases = coordinates(50, 128) * np.float32(size), np.arange(50, dtype=np.float32)
    codes, scalars = lead_encoded(values, biases)
    errors = np.abs(decode_lead(codes, scalars) - values) / np.float32(size)
    assert errors.mean() < 0.12 and scalars[0].tolist() == (-2 * biases).tolist()


def test_estimates_by_leading_codes_are_right_on_average():
    """The projection on a code is: estimates of a row along itself are its own squared length."""
    values = coordinates(50, 64)
    codes, scalars = lead_encoded(values, np.zeros(50, np.float32))
    along = np.einsum("ij,ij->i", decode_lead(codes, scalars), values)
    np.testing.assert_allclose(along, np.square(values).sum(axis=1), rtol=1e-5)


def test_a_leading_code_of_zeros():
    codes, scalars = lead_encoded(np.zeros((1, 64), np.float32), np.zeros(1, np.float32))
    assert not decode_lead(codes, scalars).any() and np.isfinite(scalars).all()


@pytest.mark.parametrize("width, lead", [(20, 64), (100, 64), (100, 128)])
@pytest.mark.parametrize("V", [1, 2, 3, 4, 5, 203])
def test_filling_in_blocks(V, width, lead):
    values, biases = coordinates(V, 120), coordinates(V, 1, seed=4)[:, 0]
    preview = Preview.empty(V, width=width, lead=lead)
    for start in range(0, V, 2):
        preview.fill(start, values[start : start + 2], biases[start : start + 2])
    assert (preview.width, preview.lead) == (width, lead)
    codes, scalars = encoded(values[:, :width], biases)
    leading = np.zeros((V, lead), np.float32)
    leading[:, : min(width, lead)] = values[:, : min(width, lead)]
    lead_codes, lead_scalars = lead_encoded(leading, biases)
    assert preview.codes.tolist() == codes.tolist() and preview.scalars.tolist() == scalars.tolist()
    assert preview.lead_codes.tolist() == lead_codes.tolist() and preview.lead_scalars.tolist() == lead_scalars.tolist()


@pytest.mark.parametrize("V", [1, 2, 3, 4, 5, 100_001])
def test_a_scan_may_read_whole_steps(V):
    """Behind the last row there is memory of the same array for the rest of a step."""
    lead_codes = np.zeros((V, 32), np.uint8)
    for preview in (
        Preview.empty(V, width=32, lead=64),
        Preview.of(lead_codes, np.zeros((V, 2), np.float32), lead_codes, np.zeros((2, V), np.float32)),
    ):
        rows = preview.lead_codes
        held = rows
        while isinstance(held.base, np.ndarray):
            held = held.base
        behind = held.ctypes.data + held.nbytes - (rows.ctypes.data + rows.nbytes)
        assert behind >= -len(rows) % SCANNED_AT_ONCE * 32 and rows.flags.c_contiguous and len(rows) == V
