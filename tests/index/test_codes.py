"""The coder: one frame for rows and queries, estimates near the truth, the same bits alone and in a block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.codes import Coder, encode_int8
from index.kernels import reference
from index.options import Metric


def coder_of(rows: np.ndarray, metric: Metric, bits: int, seed: int = 0) -> Coder:
    mean = rows.mean(axis=0)
    return Coder(dim=rows.shape[1], metric=metric, bits=bits, mean=mean, seed=seed)


def distances(coder: Coder, rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Estimates (m, n) as the kernels form them, plus what is the same for all rows of a query."""
    codes, scalars = coder.encode_block(coder.rotated(rows))
    prepared = coder.prepare(queries)
    out = np.empty((len(queries), len(rows)), np.float32)
    which = np.empty((len(queries), len(rows)), np.int32)
    reference.scan_queries(codes, scalars, coder.bits, prepared.planes, prepared.scales, prepared.sums, which, out)
    found = np.empty_like(out)
    np.put_along_axis(found, which.astype(np.int64), out, axis=1)
    return found


@settings(max_examples=40, deadline=None)
@given(
    dim=st.integers(1, 40),
    bits=st.sampled_from([4, 8]),
    metric=st.sampled_from(list(Metric)),
    seed=st.integers(0, 2**16),
)
def test_estimates_are_near_the_truth_up_to_a_constant_of_the_query(dim, bits, metric, seed):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(30, dim)).astype(np.float32) + 1
    queries = generator.normal(size=(3, dim)).astype(np.float32) + 1
    coder = coder_of(rows, metric, bits)
    x, q = rows.astype(np.float64), queries.astype(np.float64)
    if metric is Metric.COSINE:
        x, q = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, q))
        coder = coder_of(x.astype(np.float32), metric, bits)
    true = -2 * q @ x.T if metric is Metric.DOT else ((q[:, None] - x[None]) ** 2).sum(axis=2)
    found = distances(coder, rows, queries)
    shift = np.median(true - found, axis=1, keepdims=True)
    length = np.linalg.norm(x - coder.mean, axis=1)
    reach = np.linalg.norm(q if metric is Metric.DOT else q - coder.mean, axis=1)
    slack = {4: 1.0, 8: 0.1}[bits] * reach[:, None] * length + 1e-3
    assert (np.abs(true - found - shift) <= slack + slack.max() * 0.5).all()


def test_width_is_padded_and_stride_is_whole_bytes():
    for dim, width in ((1, 8), (8, 8), (9, 16), (384, 384), (4096, 4096)):
        for bits in (1, 2, 4, 8):
            coder = Coder(dim=dim, metric=Metric.L2, bits=bits, mean=np.zeros(dim, np.float32), seed=0)
            assert (coder.width, coder.stride) == (width, width * bits // 8)


def test_the_seed_chooses_the_rotation():
    rows = np.random.default_rng(0).normal(size=(5, 24)).astype(np.float32)
    one, same, other = (coder_of(rows, Metric.L2, 4, seed).rotated(rows) for seed in (1, 1, 2))
    assert (one == same).all() and (one != other).any()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_row_alone_has_the_same_code(bits):
    rows = np.random.default_rng(1).normal(size=(20, 30)).astype(np.float32)
    coder = coder_of(rows, Metric.COSINE, bits)
    codes, scalars = coder.encode_block(coder.rotated(rows))
    for i in range(20):
        code, scalar = coder.encode_block(coder.rotated(rows[i : i + 1]))
        assert (code[0] == codes[i]).all() and (scalar[0] == scalars[i]).all()


def test_error_scale_is_zero_where_codes_are_exact_and_falls_with_bits():
    rows = np.random.default_rng(2).normal(size=(500, 64)).astype(np.float32)
    spread = []
    for bits in (1, 2, 4, 8):
        coder = coder_of(rows, Metric.L2, bits)
        rotated = coder.rotated(rows)
        spread.append(coder.error_scale(rotated) * float(coder.encode_block(rotated)[1][:, 1].mean()))
    assert spread[0] > 1.5 * spread[1] > 2 * spread[2] > 6 * spread[3] > 0
    zeros = np.zeros((10, 64), np.float32)
    assert coder_of(zeros, Metric.L2, 4).error_scale(coder_of(zeros, Metric.L2, 4).rotated(zeros)) == 0.0


def test_int8_rows_carry_the_extra_coordinate():
    rotated = np.random.default_rng(3).normal(size=(10, 16)).astype(np.float32)
    extra = np.arange(10, dtype=np.float32)
    codes, scalars = encode_int8(rotated, extra=extra)
    assert codes.dtype == np.int8 and (scalars[:, 2] == extra).all()
    np.testing.assert_allclose(scalars[:, 0], (rotated**2).sum(axis=1) + extra**2, rtol=1e-5)
    assert (encode_int8(rotated, extra=None)[1][:, 2] == 0).all()
