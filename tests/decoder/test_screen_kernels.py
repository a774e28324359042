"""Contracts of the screen, over the slow twin and the compiled kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from layer_oracle import DTYPES, log_sum, logits64, random_layer, random_states, require_best
from numba import njit
from small_decoders import require_alike, require_same_row, screened, small_decoder

from decoder.candidates import Effort
from decoder.kernels import reference_screen, screen
from decoder.preview import Preview
from index.kernels.vector_dots import four_code_dots, four_nibble_dots

SHAPES = [(1, 3), (2, 16), (3, 20), (66, 8), (301, 24), (303, 100), (1030, 64), (2050, 17)]
"""(V, d): one row, no multiple of four, one past a block, a sample of less than all rows."""


class ScreenContract:
    screen: ClassVar[Callable[..., Any]]

    def run(self, small, effort, **options):
        return screened(self.screen, small, effort, **options)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("V, dim", SHAPES)
    def test_twins_agree(self, V, dim, dtype):
        small = small_decoder(V, dim, dtype)
        for whole in (False, True):
            effort = Effort(width=min(40, V), rerank=min(12, V), middle=9)
            theirs = screened(reference_screen.screen_states, small, effort, whole=whole)
            require_alike(self.run(small, effort, whole=whole), theirs)

    @pytest.mark.parametrize("options", [{"softcap": 3.0}, {"scale": 0.25}, {"softcap": 2.0, "scale": 3.0}])
    def test_scale_and_soft_cap(self, options):
        small = small_decoder(301, 100, **options)
        effort = Effort(width=60, rerank=12, middle=40)
        found = self.run(small, effort)
        require_alike(found, screened(reference_screen.screen_states, small, effort))
        assert (np.abs(found.log_z - log_sum(logits64(small.layer, small.states))) < 6 * found.error + 0.02).all()

    @pytest.mark.parametrize("whole", [False, True])
    @pytest.mark.parametrize("draws", [0, 1, 16, 250])
    @pytest.mark.parametrize("width, lead", [(None, 64), (None, 128), (80, 64), (20, 64)])
    def test_draws_for_log_z(self, draws, width, lead, whole):
        small = small_decoder(303, 100, width=width, lead=lead)
        effort = Effort(width=50, rerank=20, middle=draws)
        found = self.run(small, effort, whole=whole)
        require_alike(found, screened(reference_screen.screen_states, small, effort, whole=whole))
        assert np.isnan(found.log_z).all() == (draws == 0)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_where_all_rows_pass_the_answer_is_exact(self, dtype):
        small = small_decoder(131, 24, dtype)
        for whole in (False, True):
            found = self.run(small, Effort(width=131, rerank=131, middle=5), whole=whole)
            require_best(small.layer, small.states, found.token_ids[:, :131], found.logits[:, :131], 131)
            assert (found.counts == 131).all() and (found.scored == 131).all()
            np.testing.assert_allclose(found.log_z, log_sum(logits64(small.layer, small.states)), atol=1e-5)

    @pytest.mark.parametrize("whole", [False, True])
    def test_never_fewer_rows_than_asked_for(self, whole):
        """One row in two thousand is in the sample of the bound: what passes may be far from what was wanted."""
        small = small_decoder(9001, 16, n=40)
        effort = Effort(width=20, rerank=20, middle=8)
        found = self.run(small, effort, whole=whole)
        assert (found.exact == 20).all()
        require_alike(found, screened(reference_screen.screen_states, small, effort, whole=whole))

    def test_all_rows_equal_all_pass(self):
        layer = random_layer(203, 16, "float32", bias=False)
        layer.weight[:] = layer.weight[0]
        small = small_decoder(203, 16, layer=layer)
        true = logits64(layer, small.states)[:, 0] + np.log(203)
        for whole in (False, True):
            found = self.run(small, Effort(width=60, rerank=20, middle=30), whole=whole)
            assert found.token_ids[:, :20].tolist() == [list(range(20))] * 5
            np.testing.assert_allclose(found.log_z, true, atol=5e-3)

    @pytest.mark.parametrize("whole", [False, True])
    def test_where_few_rows_are_left_all_of_them_are_taken(self, whole):
        small = small_decoder(301, 24)
        effort = Effort(width=280, rerank=20, middle=290 if whole else 64)
        found = self.run(small, effort, whole=whole)
        require_alike(found, screened(reference_screen.screen_states, small, effort, whole=whole))
        others = found.counts - found.exact
        assert (others == 281).all() if whole else (others > 0).all() and (others < 64).all()
        for row in range(5):
            assert (found.weights[row, 20 : found.counts[row]] == 1.0).all()
            assert len(set(found.token_ids[row, : found.counts[row]])) == found.counts[row]
        if whole:
            np.testing.assert_allclose(found.log_z, log_sum(logits64(small.layer, small.states)), atol=1e-5)

    def test_a_state_alone_is_answered_as_in_a_batch(self):
        small = small_decoder(301, 24, n=6)
        effort = Effort(width=30, rerank=10, middle=12)
        together = self.run(small, effort)
        for row in range(6):
            alone = self.run(small.but(states=small.states[row : row + 1]), effort)
            require_same_row(alone, 0, together, row)

    def test_a_state_that_overflows_has_no_rows(self):
        small = small_decoder(66, 8)
        states = small.states.copy()
        states[2] = 3e38
        found = self.run(small.but(states=states), Effort(width=30, rerank=10, middle=4))
        assert found.exact.tolist() == [10, 10, 0, 10, 10] and found.counts[2] == 0 and np.isnan(found.log_z[2])


class TestScreenReference(ScreenContract):
    screen = staticmethod(reference_screen.screen_states)


class TestScreenNumba(ScreenContract):
    screen = staticmethod(screen.screen_states)


class LeadContract:
    scan: ClassVar[Callable[..., int]]
    score: ClassVar[Callable[..., None]]

    def problem(self, V: int, lead: int):
        generator = np.random.default_rng(V + lead)
        raw = generator.integers(0, 256, (V, lead // 2)).astype(np.uint8)
        scalars = generator.integers(1, 9, (2, V)).astype(np.float32)
        codes = Preview.of(raw, np.ascontiguousarray(scalars.T), raw, scalars).lead_codes
        plane = generator.integers(-127, 128, (1, lead)).astype(np.int8)
        return codes, scalars, plane, np.float32(0.5), np.float32(plane.sum(dtype=np.int64))

    @pytest.mark.parametrize("V", [1, 2, 3, 4, 5, 1023, 1024, 1025, 2051])
    @pytest.mark.parametrize("lead", [64, 192])
    def test_every_row_is_scored(self, V, lead):
        codes, scalars, plane, scale, total = self.problem(V, lead)
        levels = np.concatenate([codes & 15, codes >> 4], axis=1).astype(int)
        exact = scalars[0] - scalars[1] * (levels @ plane[0].astype(int) - 7.5 * total)
        values, sums = np.full(V, np.nan, np.float32), np.empty(screen.BLOCK, np.int32)
        self.scan(codes, *scalars, plane, scale, total, sums, values)
        np.testing.assert_allclose(values, exact, rtol=1e-6, atol=1e-3)

    @pytest.mark.parametrize("m", [0, 1, 13, 200])
    def test_codes_of_chosen_rows(self, m):
        codes = np.random.default_rng(5).integers(0, 256, (200, 33)).astype(np.uint8)
        _, scalars, plane, scale, total = self.problem(200, 64)
        plane = np.ascontiguousarray(plane[:, :33])
        rows = np.random.default_rng(1).permutation(200).astype(np.int32)
        out = np.full(200, np.nan, np.float32)
        self.score(codes, np.ascontiguousarray(scalars.T), plane, scale, total, rows, m, out)
        expected = reference_screen.distances_of(codes, *scalars, plane[0], scale, total)
        np.testing.assert_allclose(out[:m], expected[rows[:m]], rtol=1e-6)
        assert np.isnan(out[m:]).all()


class TestLeadReference(LeadContract):
    scan = staticmethod(reference_screen.scan_lead)
    score = staticmethod(reference_screen.score_codes)


class TestLeadNumba(LeadContract):
    scan = staticmethod(screen.scan_lead)
    score = staticmethod(screen.score_codes)


class DrawContract:
    masses_above: ClassVar[Callable[..., None]]
    sum_groups: ClassVar[Callable[..., Any]]
    draw: ClassVar[Callable[..., int]]
    take: ClassVar[Callable[..., int]]

    @pytest.mark.parametrize("scale, softcap", [(1.0, 0.0), (0.25, 0.0), (2.0, 3.0)])
    @pytest.mark.parametrize("V", [1, 63, 500])
    def test_masses_of_rows_above_the_bound(self, V, scale, softcap):
        distances = random_states(1, V)[0] * 8
        bound, offset, top = np.float32(np.median(distances)), np.float32(0.5), np.float32(2.0)
        raw = (offset - 0.5 * distances.astype(np.float64)) * scale
        logits = softcap * np.tanh(raw / softcap) if softcap else raw
        expected = np.where(distances > bound, np.exp(np.minimum(logits - top, 60.0)), 0.0)
        masses = distances.copy()
        self.masses_above(masses, bound, offset, np.float32(scale), np.float32(softcap), top)
        np.testing.assert_allclose(masses, expected, rtol=2e-4)

    def drawn(self, masses: np.ndarray, draws: int, start: float) -> tuple[list[int], np.ndarray, list[int]]:
        sums = np.empty(-(-len(masses) // screen.BLOCK) * screen.GROUPS, np.float32)
        total = self.sum_groups(masses, sums)
        np.testing.assert_allclose(total, masses.sum(dtype=np.float64), rtol=1e-5)
        who, weights, times = np.full(draws, -7, np.int32), np.zeros(draws), np.zeros(draws, np.int32)
        m = self.draw(masses, sums, total, draws, start, who, weights, times)
        assert (who[m:] == -7).all() and m <= draws
        return who[:m].tolist(), weights[:m], times[:m].tolist()

    @pytest.mark.parametrize("V, draws", [(1, 1), (1, 9), (64, 5), (65, 200), (1000, 1), (1000, 100), (5000, 300)])
    @pytest.mark.parametrize("start", [0.0, 0.37, 0.999])
    def test_rows_come_in_proportion_to_their_mass(self, V, draws, start):
        masses = np.square(random_states(1, V)[0]).astype(np.float32)
        masses[::7] = 0.0
        masses[V // 2] = 3.0
        who, weights, times = self.drawn(masses, draws, start)
        assert len(set(who)) == len(who) and sum(times) == draws and (masses[who] > 0).all()
        expected = masses[who] / masses.sum(dtype=np.float64) * draws
        assert (np.abs(np.array(times) - expected) <= 1.001).all()
        # An unbiased estimate of the masses' own sum is that sum.
        np.testing.assert_allclose((weights * masses[who]).sum(), masses.sum(dtype=np.float64), rtol=1e-5)
        theirs = TestDrawReference().drawn(masses, draws, start)
        assert who == theirs[0] and times == theirs[2]
        np.testing.assert_allclose(weights, theirs[1], rtol=1e-5)

    def test_nothing_is_drawn_from_nothing(self):
        assert self.drawn(np.zeros(100, np.float32), 10, 0.5)[0] == []

    def test_a_mass_in_the_last_row_only(self):
        masses = np.zeros(130, np.float32)
        masses[129] = 1e-30
        who, weights, times = self.drawn(masses, 10, 0.5)
        assert who == [129] and times == [10] and np.isclose(weights[0], 1.0)

    def test_all_rows_of_mass(self):
        masses, who = np.array([0, 1, 0, 2e-38, 3], np.float32), np.full(6, -7, np.int32)
        assert self.take(masses, who, 2) == 5 and who.tolist() == [-7, -7, 1, 3, 4, -7]


class TestDrawReference(DrawContract):
    masses_above = staticmethod(reference_screen.masses_above)
    sum_groups = staticmethod(reference_screen.sum_groups)
    draw = staticmethod(reference_screen.draw_rows)
    take = staticmethod(reference_screen.rows_of_mass)


class TestDrawNumba(DrawContract):
    masses_above = staticmethod(screen.masses_above)
    sum_groups = staticmethod(screen.sum_groups)
    draw = staticmethod(screen.draw_rows)
    take = staticmethod(screen.rows_of_mass)


@njit
def _four_dots(codes, query, out):
    four_code_dots(codes.ctypes.data, query.ctypes.data, codes.shape[1], out.ctypes.data)


@pytest.mark.parametrize("width", [16, 32, 160, 4096])
@pytest.mark.parametrize("extreme", [False, True])
def test_four_code_dots(width, extreme):
    generator = np.random.default_rng(width)
    codes = generator.integers(0, 256, (4, width)).astype(np.uint8)
    query = generator.integers(-127, 128, width).astype(np.int16)
    if extreme:
        codes[:], query[:] = 255, -127
    out = np.empty(4, np.int32)
    _four_dots(codes, query, out)
    assert out.tolist() == (codes.astype(np.int64) @ query.astype(np.int64)).tolist()


@njit
def _nibble_dots(codes, query, out):
    four_nibble_dots(codes.ctypes.data, query.ctypes.data, codes.shape[1], out.ctypes.data)


@pytest.mark.parametrize("width", [32, 96, 4096])
@pytest.mark.parametrize("extreme", [None, -127, 127])
def test_four_nibble_dots(width, extreme):
    generator = np.random.default_rng(width)
    codes = generator.integers(0, 256, (4, width)).astype(np.uint8)
    query = generator.integers(-127, 128, 2 * width).astype(np.int8)
    if extreme is not None:
        codes[:], query[:] = 255, extreme
    out = np.empty(4, np.int32)
    _nibble_dots(codes, query, out)
    levels = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.int64)
    assert out.tolist() == (levels @ query.astype(np.int64)).tolist()
