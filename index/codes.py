"""Compressed rows: centring, rotation, codes of 1, 2, 4 or 8 bits a dimension, and queries in the same frame.

Coder           knows mean, rotation and bits; fixed in an index's files
encode_block    rows -> (codes, scalars)
encode_int8     rows -> what a graph is built from
prepare         queries -> int8 planes and what turns integers into estimates

Distances here are what a graph needs: smaller is nearer, up to a constant of the query. cosine and l2: the squared
distance of (unit) vectors. dot: minus twice the inner product; the graph itself is built with one more coordinate,
sqrt(max |x|^2 - |x|^2), that makes the largest inner product the nearest row (Bachrach et al., RecSys 2014). An estimate
never leaves the index as a score. Not here: product quantisation, which only the ivf preview has (preview/ivf.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.kernels import encode, rotate
from index.options import Metric

RATIOS = {
    1: (1.0,),
    2: (1.2, 1.5, 1.8, 2.1),
    4: (2.0, 2.3, 2.6, 2.9, 3.3),
    8: (3.2, 4.0, 5.0, 7.0),
}
"""Half of the covered range, in standard deviations of a component, tried for each row."""


@dataclass(frozen=True, slots=True)
class PreparedQueries:
    """Queries as the preview wants them.

    planes int8 (m, 8 / bits, width * bits / 8); scales, sums float32 (m,): query = scale * int8, sum of its int8;
    rotated float32 (m, width); lengths float32 (m,): |R(q - mean)| (dot: |q|), for the estimate's error.
    """

    planes: NDArray[np.int8]
    scales: NDArray[np.float32]
    sums: NDArray[np.float32]
    rotated: NDArray[np.float32]
    lengths: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scales)

    def only(self, some: NDArray[np.int64]) -> PreparedQueries:
        """Those queries of all."""
        if len(some) == len(self):
            return self
        return PreparedQueries(
            self.planes[some], self.scales[some], self.sums[some], self.rotated[some], self.lengths[some]
        )


class Coder:
    """Turns rows and queries into codes. Immutable; any number of threads may use it."""

    def __init__(self, *, dim: int, metric: Metric, bits: int, mean: NDArray[np.float32], seed: int) -> None:
        self.dim, self.metric, self.bits, self.seed = dim, metric, bits, seed
        self.width = max(8, -(-dim // 8) * 8)
        self.mean = np.ascontiguousarray(mean, np.float32)
        generator = np.random.default_rng(seed)
        self.signs = generator.choice(np.array([-1, 1], np.float32), size=(rotate.ROUNDS, self.width))
        self._query_mean = np.zeros_like(self.mean) if metric is Metric.DOT else self.mean
        self._ratios = np.array(RATIOS[bits], np.float32)

    @property
    def stride(self) -> int:
        """Bytes of a code."""
        return self.width * self.bits // 8

    @property
    def resident_bytes(self) -> int:
        """Memory of the coder itself."""
        return int(self.mean.nbytes + self.signs.nbytes + self._query_mean.nbytes)

    def rotated(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """R(x - mean), cosine: of unit vectors. float32 (m, dim) -> float32 (m, width)."""
        out = np.empty((len(vectors), self.width), np.float32)
        rotate.prepare_rows(vectors, self.mean, self.signs, self.metric is Metric.COSINE, out)
        return out

    def encode_block(self, rotated: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """codes uint8 (m, stride) and scalars float32 (m, 2): the additive part of a row's distance, and its scale."""
        codes = np.empty((len(rotated), self.stride), np.uint8)
        scalars = np.empty((len(rotated), 2), np.float32)
        lengths, scales = np.empty(len(rotated), np.float32), np.empty(len(rotated), np.float32)
        encode.encode_rows(rotated, self.bits, self._ratios, codes, lengths, scales)
        scalars[:, 0] = 0.0 if self.metric is Metric.DOT else lengths
        scalars[:, 1] = scales
        return codes, scalars

    def prepare(self, queries: NDArray[np.float32]) -> PreparedQueries:
        """Queries float32 (m, dim) in the frame of the codes."""
        m, planes = len(queries), 8 // self.bits
        rotated = np.empty((m, self.width), np.float32)
        rotate.prepare_rows(queries, self._query_mean, self.signs, self.metric is Metric.COSINE, rotated)
        quantised = np.empty((m, self.width), np.int8)
        scales, sums = np.empty(m, np.float32), np.empty(m, np.float32)
        lengths = np.empty(m, np.float32)
        rotate.quantise_queries(rotated, quantised, scales, sums, lengths)
        return PreparedQueries(quantised.reshape(m, planes, -1), scales, sums, rotated, lengths)

    def distances_of(
        self, scores: NDArray[np.float32], vectors: NDArray[np.float32], prepared: PreparedQueries
    ) -> NDArray[np.float32]:
        """Exact inner scores (larger is nearer) of one row for each query, as distances that compare with estimates."""
        wide = scores.astype(np.float64)
        if self.metric is Metric.DOT:
            return (2.0 * (vectors @ self.mean) - 2.0 * wide).astype(np.float32)
        own = prepared.lengths.astype(np.float64) ** 2
        squared = 2.0 - 2.0 * wide if self.metric is Metric.COSINE else wide * wide
        return (squared - own).astype(np.float32)

    def error_scale(self, rotated: NDArray[np.float32]) -> float:
        """Standard deviation of a distance's estimate over (query length * row scale), measured on sample rows.

        For a row with scale s and |y|, the error of <q, y> is |q| sqrt(s^2 |u|^2 - |y|^2) / sqrt(width - 1); the root is
        nearly the same multiple of s for all rows, and that multiple is taken from the sample.
        """
        codes, scalars = self.encode_block(rotated)
        lengths = np.einsum("ij,ij->i", rotated, rotated)
        levels = self.levels(codes) - np.float32((2**self.bits - 1) / 2)
        spread = np.einsum("ij,ij->i", levels, levels)
        scales = scalars[:, 1]
        seen = scales > 0
        if not seen.any() or self.width < 2:
            return 0.0
        root = np.maximum(spread[seen] - lengths[seen] / scales[seen] ** 2, 0.0)
        return float(2.0 * np.sqrt(root.mean() / (self.width - 1)))

    def levels(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Each dimension's level, 0 to 2^bits - 1. codes uint8 (m, stride) -> float32 (m, width)."""
        mask = 2**self.bits - 1
        planes = [(codes >> (p * self.bits)) & mask for p in range(8 // self.bits)]
        return np.concatenate(planes, axis=1).astype(np.float32)


def encode_int8(
    rotated: NDArray[np.float32], *, extra: NDArray[np.float32] | None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows for building a graph: codes int8 (m, width), scalars float32 (m, 3). extra: one more coordinate a row."""
    codes = np.empty(rotated.shape, np.int8)
    scalars = np.zeros((len(rotated), 3), np.float32)
    lengths, scales = np.empty(len(rotated), np.float32), np.empty(len(rotated), np.float32)
    encode.encode_int8(rotated, codes, lengths, scales)
    scalars[:, 0], scalars[:, 1] = lengths, scales
    if extra is not None:
        scalars[:, 0] += extra * extra
        scalars[:, 2] = extra
    return codes, scalars
