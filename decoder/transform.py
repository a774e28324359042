"""The frame in which rows and states meet: inner products as in the layer, states isotropic, leading coordinates heavy.

fit_frame     mean and covariance of calibration states, then the rows' principal axes
each_block    something of every block of rows, several side by side
Frame         states -> coordinates; RowFrame: rows of the weight -> coordinates and biases
graph_rows    coordinates and biases -> rows whose nearest neighbours are the largest inner products

A logit before scale and soft-cap is w . h + b = y . q + bias + offset with q = P (h - m), y = (w - c) A, bias = w . m + b and
offset = c . (h - m), the same for all rows of a state. Whitening (A = C^(1/2) R, P = R' C^(-1/2)) makes every direction of q
as likely as another, so a graph over the rows is built for the queries that come; R turns the rows into their principal
axes, so that the leading coordinates carry most of the score. c is the mean row: it decides nothing.
Sums of float32 products are taken block by block, in order, and BLAS has one thread (one_blas_thread): the same layer gives
the same frame in every process of a machine, whatever `threads` is.
graph_rows() is the inner-product-preserving transform [y; bias; sqrt(U^2 - |y|^2 - bias^2)] of Zhang et al., "Navigating with
Graph Representations for Fast and Scalable Decoding of Neural Language Models" (NeurIPS 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from decoder.kernels.dots import FLOAT16, FLOAT32
from decoder.output_layer import OutputLayer
from decoder.threads import each_part, one_blas_thread
from index.codes import encode_int8
from index.graph import GraphRows

BLOCK_ROWS = 8192
LEAST_VARIANCE = 1e-3
"""Directions in which calibration states hardly vary count as if they varied by this share of the mean variance: states to
come may leave them."""
LEAST_WIDTH = 16
"""Coordinates of the shortest code: a scan reads so many at a time."""
BIAS_COORDINATES = 16
"""A row's bias is spread over so many coordinates: in one it would set the scale of the whole int8 row."""

Floats = NDArray[np.float32]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Projection:
    """What one pass over a state computes: width + 1 rows of d numbers, the frame's projection and, last, its centre.

    rows: bytes, so that kernels are compiled once; kind: FLOAT16 where the numbers fit, half the bytes to read for each
    state; else FLOAT32.
    """

    rows: NDArray[np.uint8]
    kind: int

    @staticmethod
    def of(frame: Frame) -> Projection:
        """The projection of a frame."""
        rows = np.ascontiguousarray(np.concatenate([frame.projection, frame.centre[None, :]]))
        largest = np.abs(rows).max()
        typical = float(np.sqrt(np.mean(np.square(frame.projection, dtype=np.float64))))
        # float16 keeps eleven bits from 6e-5 to 65,504: a hundredth of a typical number must be in that range.
        if largest < 60_000 and typical > 6e-3:
            return Projection(rows.astype(np.float16).view(np.uint8), FLOAT16)
        return Projection(rows.view(np.uint8), FLOAT32)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where states go. mean m, centre c float32 (d,); projection P float32 (width, d)."""

    mean: Floats
    centre: Floats
    projection: Floats

    @property
    def width(self) -> int:
        """Coordinates that are kept."""
        return len(self.projection)

    def states(self, hidden: Floats) -> tuple[Floats, Floats]:
        """q float32 (n, width) and offset float32 (n,) of states float32 (n, d)."""
        moved = (hidden - self.mean).astype(np.float32)
        coordinates: Floats = moved @ self.projection.T
        offsets: Floats = moved @ self.centre
        return coordinates, offsets


@dataclass(frozen=True, slots=True)
class RowFrame:
    """Where rows go, all coordinates of them: needed while a decoder is built.

    mean, centre float32 (d,); axes A float32 (d, max(d, LEAST_WIDTH)).
    """

    mean: Floats
    centre: Floats
    axes: Floats

    def coordinates(self, weight: Floats) -> Floats:
        """Coordinates float32 (m, all), most important first, of rows float32 (m, d)."""
        moved: Floats = (weight - self.centre).astype(np.float32)
        coordinates: Floats = moved @ self.axes
        return coordinates

    def biases(self, weight: Floats, bias: Floats) -> Floats:
        """What is added to y . q, float32 (m,), for rows float32 (m, d) with the layer's biases (m,)."""
        biases: Floats = weight @ self.mean + bias
        return biases


def fit_frame(
    layer: OutputLayer,
    states: Floats | None,
    *,
    frequency: NDArray[np.float64] | None = None,
    width: int | None = None,
    lead: int,
    seed: int,
    threads: int = 1,
    on_block: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Frame, RowFrame]:
    """The frame of a layer. states: float32 (n, d) calibration states; None leaves states as they are.

    frequency: float64 (V,), how often each token is among the best of a calibration state: rows that answer often weigh
    more where axes are chosen. width: leading coordinates that are kept, None for all; never fewer than LEAST_WIDTH, the
    rest being zeros. lead: so many leading coordinates, of those kept, are turned among themselves, so that each is as large
    as the others and few bits serve all alike.
    """
    dim = layer.dim
    mean = np.zeros(dim) if states is None else states.mean(axis=0, dtype=np.float64)
    weights = np.ones(layer.vocab_size) if frequency is None else np.sqrt(frequency + 0.3)
    weights /= weights.sum()

    def moments(start: int, rows: Floats) -> tuple[Floats, Floats]:
        some = weights[start : start + len(rows)].astype(np.float32)
        return some @ rows, rows.T @ (rows * some[:, None])

    with one_blas_thread():
        spread, narrow = _whitening(states, mean, dim)
        centre, second = np.zeros(dim), np.zeros((dim, dim))
        for end, (first, squares) in each_block(layer, moments, threads):
            centre += first
            second += squares
            on_block(end, layer.vocab_size)
        second -= np.outer(centre, centre)
        _, turned = np.linalg.eigh(spread.T @ second @ spread)
        turned = turned[:, ::-1].copy()
        kept = dim if width is None else min(width, dim)
        lead = min(lead, kept)
        turned[:, :lead] = turned[:, :lead] @ _any_rotation(lead, seed)
        mean32, centre32 = mean.astype(np.float32), centre.astype(np.float32)
        projection = _at_least(LEAST_WIDTH, (narrow @ turned)[:, :kept].T)
        axes = _at_least(LEAST_WIDTH, (spread @ turned).T).T
    return Frame(mean32, centre32, projection), RowFrame(mean32, centre32, np.ascontiguousarray(axes))


def _at_least(least: int, coordinates: NDArray[np.float64]) -> Floats:
    """Rows, one a coordinate, as float32; rows of zeros where there are fewer than `least`."""
    out = np.zeros((max(least, len(coordinates)), coordinates.shape[1]), np.float32)
    out[: len(coordinates)] = coordinates
    return out


def each_block(layer: OutputLayer, work: Callable[[int, Floats], Result], threads: int) -> Iterator[tuple[int, Result]]:
    """(id after the last token, work(first token id, rows float32 (<= BLOCK_ROWS, d))) of all real tokens, in order.

    `threads` blocks at a time: callers hold one_blas_thread, so that no more threads than that work.
    """

    def of_block(group: range, part: int) -> tuple[int, Result]:
        start = group[part]
        end = min(start + BLOCK_ROWS, layer.vocab_size)
        return end, work(start, layer.rows(np.arange(start, end)))

    starts = range(0, layer.vocab_size, BLOCK_ROWS)
    for at in range(0, len(starts), threads):
        group = starts[at : at + threads]
        yield from each_part(partial(of_block, group), len(group))


def graph_rows(coordinates: Floats, biases: Floats, *, longest: float, middle: float) -> GraphRows:
    """Rows for the graph: coordinates float32 (m, d), biases float32 (m,).

    longest: U^2, the largest |y|^2 + (bias - middle)^2 of all rows; middle: a bias in the middle of all, which keeps the
    coordinate small and, as it is the same for all rows, the order of their logits.
    """
    centred = (biases - np.float32(middle)) / np.float32(np.sqrt(BIAS_COORDINATES))
    whole = np.concatenate([coordinates, np.repeat(centred[:, None], BIAS_COORDINATES, axis=1)], axis=1)
    squares = np.einsum("ij,ij->i", whole, whole)
    extra = np.sqrt(np.maximum(np.float32(longest) - squares, 0.0)).astype(np.float32)
    return GraphRows(*encode_int8(np.ascontiguousarray(whole, np.float32), extra=extra))


def _any_rotation(size: int, seed: int) -> NDArray[np.float64]:
    """A random rotation float64 (size, size)."""
    turned, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return turned


def _whitening(
    states: Floats | None, mean: NDArray[np.float64], dim: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """C^(1/2) and C^(-1/2) up to a rotation, float64 (d, d) each: their columns are directions of the covariance C."""
    if states is None or len(states) < 2:
        return np.eye(dim), np.eye(dim)
    covariance = np.zeros((dim, dim))
    for start in range(0, len(states), BLOCK_ROWS):
        moved = states[start : start + BLOCK_ROWS] - mean.astype(np.float32)
        covariance += (moved.T @ moved).astype(np.float64)
    variances, directions = np.linalg.eigh(covariance / (len(states) - 1))
    least = max(float(variances.mean()) * LEAST_VARIANCE, float(np.finfo(np.float32).tiny))
    deviations = np.sqrt(np.maximum(variances, least))
    return directions * deviations, directions / deviations
