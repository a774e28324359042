"""Contracts of the rotation and of queries in the frame of the codes, over the slow twins and the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from index.kernels import reference, rotate

WIDTHS = (8, 16, 24, 48, 96, 384, 1000)


def signs_of(width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), size=(rotate.ROUNDS, width))


class RotateContract:
    rotate: ClassVar[Callable[..., None]]

    @pytest.mark.parametrize("width", WIDTHS)
    def test_inner_products_survive(self, width):
        x = np.random.default_rng(1).normal(size=(6, width)).astype(np.float32)
        turned = x.copy()
        for row in turned:
            self.rotate(row, signs_of(width))
        np.testing.assert_allclose(turned @ turned.T, x @ x.T, rtol=1e-4, atol=1e-3)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_one_component_is_spread_over_all(self, width):
        for at in (0, width // 2, width - 1):
            x = np.zeros(width, np.float32)
            x[at] = 1.0
            self.rotate(x, signs_of(width))
            assert np.abs(x).max() < (0.95 if width < 32 else 0.6)

    def test_twins_agree(self):
        for width in WIDTHS:
            mine = np.random.default_rng(2).normal(size=width).astype(np.float32)
            theirs = mine.copy()
            self.rotate(mine, signs_of(width))
            reference.rotate(theirs, signs_of(width))
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


class TestRotateReference(RotateContract):
    rotate = staticmethod(reference.rotate)


class TestRotateNumba(RotateContract):
    rotate = staticmethod(rotate.rotate)


class PrepareRowsContract:
    prepare: ClassVar[Callable[..., None]]

    @pytest.mark.parametrize("unit", [True, False])
    @pytest.mark.parametrize("dim", [1, 2, 7, 8, 9, 31, 64, 70])
    def test_distances_survive_centring_and_rotation(self, dim, unit):
        generator = np.random.default_rng(dim)
        vectors = generator.normal(size=(5, dim)).astype(np.float32) * 3
        mean = generator.normal(size=dim).astype(np.float32)
        width = max(8, -(-dim // 8) * 8)
        out = np.full((5, width), np.nan, np.float32)
        self.prepare(vectors, mean, signs_of(width), unit, out)
        wide = vectors.astype(np.float64)
        if unit:
            wide /= np.linalg.norm(wide, axis=1, keepdims=True)
        expected = np.linalg.norm(wide[:, None] - wide[None], axis=2)
        np.testing.assert_allclose(np.linalg.norm(out[:, None] - out[None], axis=2), expected, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(out, axis=1), np.linalg.norm(wide - mean, axis=1), rtol=1e-4)

    def test_a_zero_row_stays_finite_and_becomes_minus_the_mean(self):
        mean = np.array([3.0, 4.0, 0.0], np.float32)
        out = np.empty((1, 8), np.float32)
        self.prepare(np.zeros((1, 3), np.float32), mean, signs_of(8), True, out)
        assert np.linalg.norm(out) == pytest.approx(5.0, rel=1e-6)

    def test_a_row_alone_has_the_same_bits_as_in_a_block(self):
        vectors = np.random.default_rng(3).normal(size=(9, 100)).astype(np.float32)
        mean, signs = np.zeros(100, np.float32), signs_of(104)
        together, alone = np.empty((9, 104), np.float32), np.empty((1, 104), np.float32)
        self.prepare(vectors, mean, signs, True, together)
        for i in range(9):
            self.prepare(vectors[i : i + 1], mean, signs, True, alone)
            np.testing.assert_array_equal(alone[0], together[i])


class TestPrepareRowsReference(PrepareRowsContract):
    prepare = staticmethod(reference.prepare_rows)


class TestPrepareRowsNumba(PrepareRowsContract):
    prepare = staticmethod(rotate.prepare_rows)


class QuantiseQueriesContract:
    quantise: ClassVar[Callable[..., None]]

    def quantised(self, rotated):
        m = len(rotated)
        out = np.empty(rotated.shape, np.int8)
        scales, sums, lengths = (np.empty(m, np.float32) for _ in range(3))
        self.quantise(rotated, out, scales, sums, lengths)
        return out, scales, sums, lengths

    def test_within_half_a_step(self):
        rotated = np.random.default_rng(4).normal(size=(20, 104)).astype(np.float32)
        out, scales, sums, lengths = self.quantised(rotated)
        assert (np.abs(scales[:, None] * out - rotated) <= scales[:, None] * 0.501).all()
        assert (np.abs(out.astype(np.int32)).max(axis=1) == 127).all()
        np.testing.assert_array_equal(sums, out.sum(axis=1, dtype=np.int64))
        np.testing.assert_allclose(lengths, np.linalg.norm(rotated, axis=1), rtol=1e-5)

    def test_zero_and_tiny_and_huge(self):
        rotated = np.zeros((3, 8), np.float32)
        rotated[1], rotated[2] = 1e-29, -1e15
        out, scales, _, _ = self.quantised(rotated)
        assert (out[0] == 0).all() and (out[1] == 127).all() and (out[2] == -127).all()
        assert np.isfinite(scales).all() and (scales > 0).all()

    def test_twins_agree_within_a_step(self):
        rotated = np.random.default_rng(5).normal(size=(20, 64)).astype(np.float32)
        mine = self.quantised(rotated)
        theirs = TestQuantiseQueriesReference().quantised(rotated)
        assert np.abs(mine[0].astype(np.int32) - theirs[0]).max() <= 1
        np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-6)


class TestQuantiseQueriesReference(QuantiseQueriesContract):
    quantise = staticmethod(reference.quantise_queries)


class TestQuantiseQueriesNumba(QuantiseQueriesContract):
    quantise = staticmethod(rotate.quantise_queries)
