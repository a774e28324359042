"""Contracts of a state's way into the frame, over the slow twins and the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from layer_oracle import random_states

from decoder.kernels import frame, reference_frame
from decoder.kernels.dots import FLOAT16, FLOAT32


def projection_of(rows: int, dim: int, kind: int) -> np.ndarray:
    """As bytes."""
    values = random_states(rows, dim, seed=rows)
    return (values.astype(np.float16) if kind == FLOAT16 else values).view(np.uint8)


class FrameContract:
    project: ClassVar[Callable[..., None]]
    quantise: ClassVar[Callable[..., Any]]
    is_finite: ClassVar[Callable[..., bool]]
    into_frame: ClassVar[Callable[..., Any]]
    nearest_centroid: ClassVar[Callable[..., int]]

    @pytest.mark.parametrize("kind", [FLOAT32, FLOAT16])
    @pytest.mark.parametrize("rows, dim", [(1, 1), (2, 7), (3, 16), (4, 33), (9, 40), (577, 100)])
    def test_projection(self, rows, dim, kind):
        projection, moved = projection_of(rows, dim, kind), random_states(1, dim, seed=5)[0]
        out, expected = np.full(rows + 1, -7, np.float32), np.empty(rows)
        self.project(projection, kind, moved, out)
        stored = projection.view(np.float16 if kind == FLOAT16 else np.float32).astype(np.float64)
        expected = stored @ moved.astype(np.float64)
        np.testing.assert_allclose(out[:rows], expected, atol=1e-4)
        assert out[rows] == -7

    @pytest.mark.parametrize("size", [1, 5, 16, 577])
    def test_levels_are_near_and_use_the_whole_range(self, size):
        values = random_states(1, size, seed=size)[0]
        levels = np.full(size, 100, np.int8)
        scale, total = self.quantise(values, levels)
        np.testing.assert_allclose(levels * scale, values, atol=float(scale) * 0.5001)
        assert np.abs(levels.astype(int)).max() == 127 and total == levels.sum(dtype=int)
        theirs = np.empty(size, np.int8)
        assert reference_frame.quantise(values, theirs) == (scale, total) and levels.tolist() == theirs.tolist()

    @pytest.mark.parametrize("value", [0.0, 1e-38, 3e38, -3e38])
    def test_levels_of_extreme_values(self, value):
        levels = np.empty(4, np.int8)
        scale, total = self.quantise(np.full(4, value, np.float32), levels)
        assert np.isfinite(scale) and scale > 0 and total == levels.sum(dtype=int)
        assert set(levels.tolist()) <= {0, 127, -127}

    @pytest.mark.parametrize("size", [0, 1, 3, 8, 100])
    def test_what_is_not_finite_is_seen_wherever_it_stands(self, size):
        values = random_states(1, max(size, 1))[0][:size]
        assert self.is_finite(values)
        for place in range(size):
            for bad in (np.nan, np.inf, -np.inf):
                other = values.copy()
                other[place] = bad
                assert not self.is_finite(other)
        assert self.is_finite(np.full(size, 3e38, np.float32))

    @pytest.mark.parametrize("kind", [FLOAT32, FLOAT16])
    def test_a_state_into_the_frame(self, kind):
        projection, mean, state = projection_of(17, 33, kind), random_states(1, 33, seed=2)[0], random_states(1, 33)[0]
        moved, query, levels = np.empty(33, np.float32), np.empty(17, np.float32), np.empty(16, np.int8)
        scale, total, usable = self.into_frame(state, mean, projection, kind, moved, query, levels)
        stored = projection.view(np.float16 if kind == FLOAT16 else np.float32).astype(np.float64)
        np.testing.assert_allclose(query, stored @ (state - mean).astype(np.float64), atol=1e-5)
        np.testing.assert_allclose(levels * scale, query[:16], atol=float(scale) * 0.51)
        assert usable and total == levels.sum(dtype=int)

    @pytest.mark.parametrize("size", [1e38, 3.4e38])
    def test_a_state_that_overflows_is_not_usable(self, size):
        projection, mean = np.full((17, 8), 50, np.float32).view(np.uint8), np.zeros(8, np.float32)
        moved, query, levels = np.empty(8, np.float32), np.empty(17, np.float32), np.empty(16, np.int8)
        state = np.full(8, size, np.float32)
        assert self.into_frame(state, mean, projection, FLOAT32, moved, query, levels)[2] is False
        state[0] *= -1  # infinities of both signs on the way
        assert self.into_frame(state, mean, projection, FLOAT32, moved, query, levels)[2] is False

    @pytest.mark.parametrize("count, leading", [(1, 5), (2, 16), (256, 12)])
    def test_the_nearest_centroid(self, count, leading):
        centroids = random_states(count, leading, seed=3)
        halves = (0.5 * (centroids**2).sum(axis=1)).astype(np.float32)
        for query in random_states(30, leading + 4, seed=4):
            distances = np.linalg.norm(centroids - query[:leading], axis=1)
            place = self.nearest_centroid(centroids, halves, query, np.empty(count, np.float32))
            assert place == distances.argmin()

    def test_of_equal_centroids_the_first(self):
        centroids, halves = np.ones((5, 8), np.float32), np.full(5, 4.0, np.float32)
        assert self.nearest_centroid(centroids, halves, np.ones(9, np.float32), np.empty(5, np.float32)) == 0


class TestFrameReference(FrameContract):
    project = staticmethod(reference_frame.project)
    quantise = staticmethod(reference_frame.quantise)
    is_finite = staticmethod(reference_frame.is_finite)
    into_frame = staticmethod(reference_frame.into_frame)
    nearest_centroid = staticmethod(reference_frame.nearest_centroid)


class TestFrameNumba(FrameContract):
    project = staticmethod(frame.project)
    quantise = staticmethod(frame.quantise)
    is_finite = staticmethod(frame.is_finite)
    into_frame = staticmethod(frame.into_frame)
    nearest_centroid = staticmethod(frame.nearest_centroid)
