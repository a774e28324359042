"""Contracts of codes and int8 rows, over the slow twins and the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

from index.codes import RATIOS, Coder
from index.kernels import encode, reference
from index.options import Metric

BITS = (1, 2, 4, 8)


class EncodeRowsContract:
    encode: ClassVar[Callable[..., None]]

    def encoded(self, rotated, bits):
        m, width = rotated.shape
        codes = np.full((m, width * bits // 8), 0xAB, np.uint8)
        lengths, scales = np.full(m, np.nan, np.float32), np.full(m, np.nan, np.float32)
        self.encode(rotated, bits, np.array(RATIOS[bits], np.float32), codes, lengths, scales)
        return codes, lengths, scales

    def centred(self, codes, bits):
        return reference.unpack(codes, bits) - (2**bits - 1) / 2

    @pytest.mark.parametrize("bits", BITS)
    def test_lengths_and_the_projection_of_a_row_on_itself(self, bits):
        rotated = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
        codes, lengths, scales = self.encoded(rotated, bits)
        np.testing.assert_allclose(lengths, (rotated.astype(np.float64) ** 2).sum(axis=1), rtol=1e-5)
        # <y, scale * u> = |y|^2: the estimate of a row with itself is exact.
        own = (rotated * self.centred(codes, bits)).sum(axis=1) * scales
        np.testing.assert_allclose(own, lengths, rtol=1e-4)

    @pytest.mark.parametrize("bits", BITS)
    def test_more_bits_come_nearer_in_angle(self, bits):
        rotated = np.random.default_rng(1).normal(size=(50, 128)).astype(np.float32)
        u = self.centred(self.encoded(rotated, bits)[0], bits)
        cosine = (rotated * u).sum(axis=1) / np.linalg.norm(rotated, axis=1) / np.linalg.norm(u, axis=1)
        assert cosine.min() > {1: 0.7, 2: 0.9, 4: 0.99, 8: 0.9997}[bits]

    @pytest.mark.parametrize("bits", BITS)
    def test_rows_without_length(self, bits):
        codes, lengths, scales = self.encoded(np.zeros((2, 16), np.float32), bits)
        assert (lengths == 0).all() and (scales == 0).all() and codes.shape == (2, 2 * bits)

    @pytest.mark.parametrize("bits", BITS)
    def test_a_row_alone_has_the_same_code_as_in_a_block(self, bits):
        rotated = np.random.default_rng(2).normal(size=(6, 24)).astype(np.float32)
        together = self.encoded(rotated, bits)
        for i in range(6):
            alone = self.encoded(rotated[i : i + 1], bits)
            for a, b in zip(alone, together):
                np.testing.assert_array_equal(a[0], b[i])

    @pytest.mark.parametrize("bits", BITS)
    def test_twins_agree(self, bits):
        rotated = np.random.default_rng(3).normal(size=(30, 40)).astype(np.float32)
        mine, theirs = self.encoded(rotated, bits), TestEncodeRowsReference().encoded(rotated, bits)
        apart = np.abs(reference.unpack(mine[0], bits) - reference.unpack(theirs[0], bits))
        # A component on the border between two levels, or two steps equally good, may fall either way.
        assert (apart > 1).sum() == 0 or (apart.max(axis=1) > 1).sum() <= 1
        np.testing.assert_allclose(mine[2], theirs[2], rtol=2e-2)


class TestEncodeRowsReference(EncodeRowsContract):
    encode = staticmethod(reference.encode_rows)


class TestEncodeRowsNumba(EncodeRowsContract):
    encode = staticmethod(encode.encode_rows)


class EncodeInt8Contract:
    encode: ClassVar[Callable[..., None]]

    def test_within_half_a_step(self):
        rotated = np.random.default_rng(4).normal(size=(20, 48)).astype(np.float32)
        rotated[7] = 0
        codes = np.empty(rotated.shape, np.int8)
        lengths, scales = np.empty(20, np.float32), np.empty(20, np.float32)
        self.encode(rotated, codes, lengths, scales)
        assert (np.abs(scales[:, None] * codes - rotated) <= scales[:, None] * 0.501).all()
        np.testing.assert_allclose(lengths, (rotated.astype(np.float64) ** 2).sum(axis=1), rtol=1e-5)
        assert (codes[7] == 0).all() and scales[7] > 0


class TestEncodeInt8Reference(EncodeInt8Contract):
    encode = staticmethod(reference.encode_int8)


class TestEncodeInt8Numba(EncodeInt8Contract):
    encode = staticmethod(encode.encode_int8)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("data", ["random", "skewed"])
def test_estimates_are_unbiased_over_the_rotation_and_spread_as_promised(bits, data):
    """Over 60 rotations: the mean error is within its own standard error, the spread is what error_scale says."""
    generator = np.random.default_rng(5)
    rows = generator.normal(size=(60, 96)).astype(np.float32)
    if data == "skewed":
        rows *= np.linspace(4, 0.05, 96, dtype=np.float32) ** 2
    queries = rows[:20] + generator.normal(size=(20, 96)).astype(np.float32) * 0.3
    errors, promised = [], []
    for seed in range(60):
        coder = Coder(dim=96, metric=Metric.L2, bits=bits, mean=rows.mean(axis=0), seed=seed)
        rotated = coder.rotated(rows)
        codes, scalars = coder.encode_block(rotated)
        prepared = coder.prepare(queries)
        # The query as it is: int8 rounding of it is another error, and a much smaller one.
        u = reference.unpack(codes, bits) - (2**bits - 1) / 2
        estimate = scalars[:, 0] - 2.0 * scalars[:, 1] * (prepared.rotated @ u.T)
        true = scalars[:, 0] - 2.0 * (prepared.rotated @ rotated.T)
        errors.append(estimate - true)
        promised.append(prepared.lengths[:, None] * coder.error_scale(rotated) * scalars[:, 1])
    errors, promised = np.array(errors), np.array(promised)
    off_diagonal = ~np.eye(20, 60, dtype=bool)
    relative = (errors / promised)[:, off_diagonal]
    assert abs(relative.mean()) < 4 * relative.mean(axis=0).std() / np.sqrt(relative.shape[1]) + 0.03
    assert 0.75 < relative.std() < 1.3
    assert np.mean(np.abs(relative) < 1.96) > 0.93


def test_extra_coordinate_makes_the_largest_inner_product_the_nearest_row():
    from index.codes import encode_int8

    generator = np.random.default_rng(6)
    rows = (generator.normal(size=(300, 32)) * np.exp(generator.normal(size=(300, 1)))).astype(np.float32)
    lengths = (rows**2).sum(axis=1)
    extra = np.sqrt(np.maximum(lengths.max() - lengths, 0))
    codes, scalars = encode_int8(rows, extra=extra)
    np.testing.assert_allclose(scalars[:, 0], lengths.max(), rtol=1e-4)
    query = generator.normal(size=32).astype(np.float32)
    distance = scalars[:, 0] - 2 * scalars[:, 1] * (codes.astype(np.float32) @ query)
    assert np.argmin(distance) == np.argmax(rows @ query)
