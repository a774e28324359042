"""Contracts of the scan over all rows, over the slow twin and the compiled kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from layer_oracle import DTYPES, log_sum, logits64, random_layer, random_states, require_best

from decoder.kernels import exact as kernel
from decoder.kernels import reference, score

NO_EXTRA = np.empty(0, np.float32)


class Found:
    """Arrays that a scan fills, for n states, k tokens and a layer's pieces."""

    def __init__(self, layer, n: int, k: int, targets: int = 0) -> None:
        pieces = -(-layer.vocab_size // kernel.PIECE)
        self.who, self.far = np.full((n, k), -7, np.int32), np.full((n, k), np.nan, np.float32)
        self.kept, self.ranks = np.zeros(n, np.int64), np.zeros(targets, np.int64)
        self.tops, self.sums = np.full((n, pieces), np.nan, np.float32), np.full((n, pieces), np.nan)
        self.extra_tops, self.extra_sums = self.tops.copy(), self.sums.copy()

    def log_partition(self, tops: Any = None, sums: Any = None) -> np.ndarray:
        tops, sums = (self.tops, self.sums) if tops is None else (tops, sums)
        return np.log((np.exp(tops.astype(np.float64)) * sums).sum(axis=1))


class ScanContract:
    scan: ClassVar[Callable[..., None]]
    sort_best: ClassVar[Callable[..., None]]

    def run(self, layer, states, k, *, extra=NO_EXTRA, targets=None, borders=None):
        logits = np.empty(0, np.float32)
        ids = np.empty(0, np.int32) if targets is None else targets
        if targets is not None:
            logits = np.empty(len(states), np.float32)
            for s, state in enumerate(states):
                raw = np.empty(1, np.float32)
                self.rows(layer.bits, layer.kind, layer.bias, state, ids[s : s + 1], 0, 1, raw)
                logits[s] = layer.finish(raw)[0]
        found = Found(layer, len(states), k, len(ids))
        borders = [0, layer.vocab_size] if borders is None else borders
        scale, softcap = np.float32(layer.scale), np.float32(layer.softcap or 0.0)
        for first, last in itertools.pairwise(borders):
            self.scan(
                *(
                    layer.bits,
                    layer.kind,
                    layer.bias,
                    scale,
                    softcap,
                    states,
                    first,
                    last,
                    found.who,
                    found.far,
                    found.kept,
                ),
                *(found.tops, found.sums, extra, found.extra_tops, found.extra_sums, ids, logits, found.ranks),
            )
        self.sort_best(found.who, found.far, found.kept)
        return found

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("n", [1, 2, 3, 6])
    @pytest.mark.parametrize("V", [1, 2, 5, 95, 96, 97, 200])
    def test_equals_float64(self, dtype, n, V):
        layer, states = random_layer(V, 33, dtype), random_states(n, 33)
        k = min(V, 10)
        found = self.run(layer, states, k)
        assert found.kept.tolist() == [k] * n
        require_best(layer, states, found.who, -found.far, k)
        np.testing.assert_allclose(found.log_partition(), log_sum(logits64(layer, states)), atol=1e-5)

    @pytest.mark.parametrize("options", [{"softcap": 3.0}, {"scale": 0.25}, {"softcap": 2.0, "scale": 3.0}])
    def test_scale_and_soft_cap(self, options):
        layer, states = random_layer(300, 20, **options), random_states(3, 20)
        found = self.run(layer, states, 5)
        require_best(layer, states, found.who, -found.far, 5)
        np.testing.assert_allclose(found.log_partition(), log_sum(logits64(layer, states)), atol=1e-5)

    @pytest.mark.parametrize("n", [1, 4])
    def test_parts_of_the_rows_one_after_the_other(self, n):
        layer, states = random_layer(2 * kernel.PIECE + 50, 8, "float32"), random_states(n, 8)
        whole = self.run(layer, states, 7)
        parts = self.run(layer, states, 7, borders=[0, kernel.PIECE, 2 * kernel.PIECE, layer.vocab_size])
        for name in ("who", "far", "kept", "tops", "sums"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))

    def test_ties_keep_the_lower_ids(self):
        layer = random_layer(250, 4, "float32", bias=False)
        layer.weight[:] = np.round(layer.weight)
        states = np.ones((2, 4), np.float32)
        found = self.run(layer, states, 60)
        true = logits64(layer, states)[0]
        assert found.who[0].tolist() == np.lexsort((np.arange(250), -true))[:60].tolist()

    def test_all_equal(self):
        layer = random_layer(250, 4, "float32", bias=False)
        layer.weight[:] = 0
        found = self.run(layer, random_states(2, 4), 250)
        assert found.who.tolist() == [list(range(250))] * 2 and not found.far.any()

    @pytest.mark.parametrize("n", [1, 3])
    def test_extra_moves_bans_and_sums_apart(self, n):
        layer, states = random_layer(200, 12, "float32"), random_states(n, 12)
        extra = np.random.default_rng(3).normal(size=200).astype(np.float32)
        extra[::2] = -np.inf
        found = self.run(layer, states, 120, extra=extra)
        assert found.kept.tolist() == [100] * n
        moved = logits64(layer, states) + extra
        order = np.argsort(-moved, axis=1, kind="stable")[:, :100]
        np.testing.assert_array_equal(found.who[:, :100], order)
        assert (found.who[:, 100:] == -1).all() and (found.far[:, 100:] == np.inf).all()
        np.testing.assert_allclose(found.log_partition(), log_sum(logits64(layer, states)), atol=1e-5)
        np.testing.assert_allclose(found.log_partition(found.extra_tops, found.extra_sums), log_sum(moved), atol=1e-5)

    def test_a_whole_piece_without_an_allowed_token(self):
        layer, states = random_layer(2 * kernel.PIECE, 3, "float32"), random_states(1, 3)
        extra = np.full(layer.vocab_size, -np.inf, np.float32)
        extra[[5000, 8000]] = 0.0
        found = self.run(layer, states, 3, extra=extra)
        assert sorted(found.who[0, :2].tolist()) == [5000, 8000] and found.kept[0] == 2
        assert found.extra_sums[0, 0] == 0.0 and found.extra_sums[0, 1] >= 1.0

    def test_ranks_count_larger_logits_and_lower_ids(self):
        layer = random_layer(300, 4, "float32", bias=False)
        layer.weight[:] = np.round(layer.weight)
        states = np.ones((3, 4), np.float32)
        order = np.lexsort((np.arange(300), -logits64(layer, states)[0]))
        targets = order[[0, 17, 299]].astype(np.int32)
        found = self.run(layer, states, 0, targets=targets)
        assert found.ranks.tolist() == [0, 17, 299]
        assert found.who.shape == (3, 0)

    def test_overflow_is_not_hidden(self):
        layer = random_layer(40, 4, "float32")
        layer.weight[7] = 3e38
        with np.errstate(all="ignore"):
            found = self.run(layer, np.full((1, 4), 3.0, np.float32), 3)
            assert not np.isfinite(found.log_partition()).any()


class AllLogitsContract:
    fill: ClassVar[Callable[..., None]]

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("n, V", [(1, 1), (1, 100), (2, 96), (5, 203)])
    def test_equals_float64(self, dtype, n, V):
        layer, states = random_layer(V + 2, 19, dtype, softcap=4.0, vocab_size=V), random_states(n, 19)
        out = np.full((n, V), np.nan, np.float32)
        self.fill(layer.bits, layer.kind, layer.bias, np.float32(1.0), np.float32(4.0), states, out)
        np.testing.assert_allclose(out, logits64(layer, states), atol=1e-5)


class TestAllLogitsReference(AllLogitsContract):
    fill = staticmethod(reference.all_logits)


class TestAllLogitsNumba(AllLogitsContract):
    fill = staticmethod(kernel.all_logits)


class TestScanReference(ScanContract):
    scan = staticmethod(reference.scan)
    sort_best = staticmethod(reference.sort_best)
    rows = staticmethod(reference.score_rows)


class TestScanNumba(ScanContract):
    scan = staticmethod(kernel.scan)
    sort_best = staticmethod(kernel.sort_best)

    rows = staticmethod(score.score_rows)
