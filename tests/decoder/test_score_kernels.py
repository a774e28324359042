"""Contracts of exact logits of chosen rows, over the slow twins and the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from layer_oracle import DTYPES, random_layer, random_states, stored
from numba import njit

from decoder.kernels import dots, exponent, reference, score

KINDS = {"float32": dots.FLOAT32, "float16": dots.FLOAT16, "bfloat16": dots.BFLOAT16}
DIMS = (1, 3, 15, 16, 17, 64, 101, 576)


@njit
def exponentials(values, out):
    for i in range(len(values)):
        out[i] = exponent.exp_below_zero(values[i])


@njit
def roughly(values, out):
    for i in range(len(values)):
        out[i] = exponent.exp_roughly(values[i])


@njit
def tangents(values, out):
    for i in range(len(values)):
        out[i] = exponent.tanh(values[i])


@njit
def finished_one_by_one(raw, scale, softcap, out):
    for i in range(len(raw)):
        out[i] = score.finish_one(raw[i], scale, softcap)


class ScoreRowsContract:
    rows: ClassVar[Callable[..., None]]

    def scored(self, layer, state, ids):
        weight = layer.bits
        out = np.full(len(ids), np.nan, np.float32)
        self.rows(weight, layer.kind, layer.bias, state, ids, 0, len(ids), out)
        return out

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("dim", DIMS)
    def test_equals_float64(self, dtype, dim):
        layer, state = random_layer(50, dim, dtype), random_states(1, dim)[0]
        ids = np.random.default_rng(2).integers(0, 50, 37).astype(np.int32)
        rows = layer.rows(ids).astype(np.float64)
        expected = rows @ state.astype(np.float64) + layer.bias[ids]
        size = np.abs(rows) @ np.abs(state) + 1
        assert (np.abs(self.scored(layer, state, ids) - expected) <= 3e-7 * size).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_row_has_the_same_bits_in_any_company(self, dtype):
        layer, state = random_layer(30, 101, dtype), random_states(1, 101)[0]
        ids = np.arange(30, dtype=np.int32)
        together = self.scored(layer, state, ids)
        for count in range(1, 9):
            some = np.roll(ids, 7)[:count].copy()
            np.testing.assert_array_equal(self.scored(layer, state, some), together[some])

    def test_only_the_places_asked_for_are_written(self):
        layer, state = random_layer(9, 20), random_states(1, 20)[0]
        ids = np.array([8, 0, 3, 3, 5, 1, 2, 7, 4, 6], np.int64)
        out = np.full(10, 7.0, np.float32)
        self.rows(layer.bits, layer.kind, layer.bias, state, ids, 2, 9, out)
        assert out[:2].tolist() == [7, 7] and out[9] == 7
        np.testing.assert_array_equal(out[2:9], self.scored(layer, state, ids[2:9].astype(np.int32)))
        self.rows(layer.bits, layer.kind, layer.bias, state, ids, 4, 4, out)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_every_finite_half(self, dtype):
        bits = np.arange(1 << 16, dtype=np.uint16)
        with np.errstate(invalid="ignore"):
            bits = bits[np.isfinite(reference.widened(bits, KINDS[dtype]))]
        out = np.empty(len(bits), np.float32)
        ids, zeros = np.arange(len(bits), dtype=np.int32), np.zeros(len(bits), np.float32)
        self.rows(bits[:, None], KINDS[dtype], zeros, np.ones(1, np.float32), ids, 0, len(bits), out)
        np.testing.assert_array_equal(out, reference.widened(bits, KINDS[dtype]))

    def test_a_read_only_weight(self):
        weight, state = stored(random_states(6, 5), "float16").view(np.uint16), random_states(1, 5)[0]
        weight.setflags(write=False)
        out = np.empty(6, np.float32)
        self.rows(weight, dots.FLOAT16, np.zeros(6, np.float32), state, np.arange(6, dtype=np.int32), 0, 6, out)
        np.testing.assert_allclose(out, weight.view(np.float16).astype(np.float64) @ state, rtol=1e-5)


class TestScoreRowsReference(ScoreRowsContract):
    rows = staticmethod(reference.score_rows)


class TestScoreRowsNumba(ScoreRowsContract):
    rows = staticmethod(score.score_rows)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("dim", DIMS)
    def test_the_order_of_the_sum_is_the_documented_one(self, dtype, dim):
        layer, states = random_layer(11, dim, dtype, bias=False), random_states(3, dim)
        ids = np.arange(11, dtype=np.int32)
        rows = layer.rows(ids)
        for state in states:
            found = self.scored(layer, state, ids)
            documented = [[reference.dot(row, state, fused=fused) for row in rows] for fused in (True, False)]
            assert found.tolist() in np.array(documented, np.float32).tolist()


class FinishContract:
    finish: ClassVar[Callable[..., None]]

    @pytest.mark.parametrize("scale", [1.0, 0.0625, 3.0])
    @pytest.mark.parametrize("softcap", [0.0, 1.0, 30.0, 1e6, 1e14, 1e30])
    def test_equals_float64(self, scale, softcap):
        raw = np.concatenate([np.linspace(-200, 200, 1001), [0.0, 1e-30, 1e-6, -1e-6, 1e-3, 1e30]]).astype(np.float32)
        scaled = raw.astype(np.float64) * scale
        expected = softcap * np.tanh(scaled / softcap) if softcap else scaled
        out = np.empty_like(raw)
        self.finish(raw, np.float32(scale), np.float32(softcap), out)
        np.testing.assert_allclose(out, expected, rtol=2e-7, atol=1e-14)

    def test_input_may_be_output(self):
        raw = np.linspace(-50, 50, 67).astype(np.float32)
        out = np.empty_like(raw)
        self.finish(raw, np.float32(0.5), np.float32(30.0), out)
        self.finish(raw, np.float32(0.5), np.float32(30.0), raw)
        np.testing.assert_array_equal(raw, out)

    def test_nan_and_infinity_are_not_hidden_by_a_cap(self):
        raw = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
        out = np.empty(4, np.float32)
        self.finish(raw, np.float32(1.0), np.float32(30.0), out)
        assert np.isnan(out[:3]).all() and np.isfinite(out[3])


class TestFinishReference(FinishContract):
    finish = staticmethod(reference.finish_logits)


class TestFinishNumba(FinishContract):
    finish = staticmethod(score.finish_logits)

    @pytest.mark.parametrize("softcap", [0.0, 30.0])
    def test_one_has_the_bits_of_many(self, softcap):
        raw = np.random.default_rng(0).normal(size=503).astype(np.float32) * 40
        many, one = raw.copy(), np.empty_like(raw)
        score.finish_in_place(many, np.float32(0.7), np.float32(softcap))
        finished_one_by_one(raw, np.float32(0.7), np.float32(softcap), one)
        assert one.tobytes() == many.tobytes()


class ExponentContract:
    exponentials: ClassVar[Callable[..., Any]]
    rough: ClassVar[Callable[..., Any]]
    tangents: ClassVar[Callable[..., Any]]

    def test_exponentials(self):
        x = -np.concatenate([np.linspace(0, 87, 20_011), np.logspace(-9, 0, 500)]).astype(np.float32)
        out = np.empty_like(x)
        self.exponentials(x, out)
        np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=3e-7)

    def test_rough_exponentials(self):
        x = -np.concatenate([np.linspace(0, 87, 20_011), np.logspace(-9, 0, 500), -np.linspace(0, 60, 500)]).astype(
            np.float32
        )
        out = np.empty_like(x)
        self.rough(x, out)
        np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=2e-4)
        self.rough(np.array([-88, -1e30, -np.inf], np.float32), out[:3])
        assert (out[:3] < 2e-38).all() and (out[:3] >= 0).all()

    def test_what_is_far_below_counts_nothing(self):
        out = np.empty(3, np.float32)
        self.exponentials(np.array([-88, -1e30, -np.inf], np.float32), out)
        assert (out < 2e-38).all() and (out >= 0).all()

    def test_tangents(self):
        x = np.concatenate([np.linspace(-25, 25, 10_001), np.logspace(-12, 1, 2_000)])
        out = np.empty_like(x)
        self.tangents(x, out)
        np.testing.assert_allclose(out, np.tanh(x), rtol=1e-12, atol=3e-16)
        assert (np.abs(out) <= 1).all()


class TestExponentReference(ExponentContract):
    @staticmethod
    def exponentials(x, out):
        out[:] = [reference.exp_below_zero(value) for value in x]

    @staticmethod
    def rough(x, out):
        out[:] = [reference.exp_roughly(value) for value in x]

    @staticmethod
    def tangents(x, out):
        out[:] = [reference.tanh(value) for value in x]


class TestExponentNumba(ExponentContract):
    exponentials = staticmethod(exponentials)
    rough = staticmethod(roughly)
    tangents = staticmethod(tangents)
