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
from index.kernels.vector_dots import four_code_dots

SHAPES = [(1, 3), (2, 16), (3, 20), (66, 8), (301, 24), (1030, 48), (2050, 17)]
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
            effort = Effort(width=min(40, V), rerank=min(12, V), middle=9, tail=20, band=min(30, V))
            theirs = screened(reference_screen.screen_states, small, effort, whole=whole)
            require_alike(self.run(small, effort, whole=whole), theirs)

    @pytest.mark.parametrize("options", [{"softcap": 3.0}, {"scale": 0.25}, {"softcap": 2.0, "scale": 3.0}])
    def test_scale_and_soft_cap(self, options):
        small = small_decoder(301, 40, lead=32, **options)
        effort = Effort(width=60, rerank=12, middle=30, tail=40, band=100)
        found = self.run(small, effort)
        require_alike(found, screened(reference_screen.screen_states, small, effort))
        assert (np.abs(found.log_z - log_sum(logits64(small.layer, small.states))) < 6 * found.error + 0.02).all()

    @pytest.mark.parametrize("middle, tail, band", [(0, 0, 0), (0, 30, 0), (16, 0, 50), (16, 30, 0), (16, 30, 50)])
    @pytest.mark.parametrize("width, lead", [(None, 32), (20, 16)])
    def test_strata_of_log_z(self, middle, tail, band, width, lead):
        small = small_decoder(303, 40, width=width, lead=lead)
        effort = Effort(width=50, rerank=20, middle=middle, tail=tail, band=band)
        found = self.run(small, effort)
        require_alike(found, screened(reference_screen.screen_states, small, effort))
        assert np.isnan(found.log_z).all() == (middle == tail == 0)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_where_all_rows_pass_the_answer_is_exact(self, dtype):
        small = small_decoder(131, 24, dtype)
        for whole in (False, True):
            found = self.run(small, Effort(width=131, rerank=131, middle=5, tail=5, band=131), whole=whole)
            require_best(small.layer, small.states, found.token_ids[:, :131], found.logits[:, :131], 131)
            assert (found.counts == 131).all() and (found.scored == 131).all()
            np.testing.assert_allclose(found.log_z, log_sum(logits64(small.layer, small.states)), atol=1e-5)

    @pytest.mark.parametrize("whole", [False, True])
    def test_never_fewer_rows_than_asked_for(self, whole):
        """One row in two thousand is in the sample of the bound: what passes may be far from what was wanted."""
        small = small_decoder(9001, 16, n=40)
        effort = Effort(width=20, rerank=20, middle=8, tail=8, band=1)
        found = self.run(small, effort, whole=whole)
        assert (found.exact == 20).all()
        require_alike(found, screened(reference_screen.screen_states, small, effort, whole=whole))

    def test_all_rows_equal_all_pass(self):
        layer = random_layer(203, 16, "float32", bias=False)
        layer.weight[:] = layer.weight[0]
        small = small_decoder(203, 16, layer=layer)
        true = logits64(layer, small.states)[:, 0] + np.log(203)
        for band, whole in ((0, False), (50, False), (50, True)):
            found = self.run(small, Effort(width=60, rerank=20, middle=30, tail=10, band=band), whole=whole)
            assert found.token_ids[:, :20].tolist() == [list(range(20))] * 5
            np.testing.assert_allclose(found.log_z, true, atol=5e-3)

    def test_where_few_rows_are_left_all_of_them_are_drawn(self):
        small = small_decoder(301, 24)
        effort = Effort(width=280, rerank=20, middle=0, tail=64)
        found = self.run(small, effort)
        require_alike(found, screened(reference_screen.screen_states, small, effort))
        drawn = found.counts - found.exact
        assert (drawn > 0).all() and (drawn < 64).all()
        for row in range(5):
            assert (found.weights[row, 20 : found.counts[row]] == 1.0).all()

    def test_a_state_alone_is_answered_as_in_a_batch(self):
        small = small_decoder(301, 24, n=6)
        effort = Effort(width=30, rerank=10, middle=12, tail=12, band=40)
        together = self.run(small, effort)
        for row in range(6):
            alone = self.run(small.but(states=small.states[row : row + 1]), effort)
            require_same_row(alone, 0, together, row)

    def test_a_state_that_overflows_has_no_rows(self):
        small = small_decoder(66, 8)
        states = small.states.copy()
        states[2] = 3e38
        found = self.run(small.but(states=states), Effort(width=30, rerank=10, middle=4, tail=4))
        assert found.exact.tolist() == [10, 10, 0, 10, 10] and found.counts[2] == 0 and np.isnan(found.log_z[2])


class TestScreenReference(ScreenContract):
    screen = staticmethod(reference_screen.screen_states)


class TestScreenNumba(ScreenContract):
    screen = staticmethod(screen.screen_states)


class LeadContract:
    scan: ClassVar[Callable[..., int]]
    threshold: ClassVar[Callable[..., Any]]
    score: ClassVar[Callable[..., None]]

    def problem(self, V: int, lead: int):
        generator = np.random.default_rng(V + lead)
        raw = generator.integers(0, 256, (V, lead)).astype(np.uint8)
        scalars = generator.integers(1, 9, (2, V)).astype(np.float32)
        codes = Preview.of(raw, np.ascontiguousarray(scalars.T), raw, scalars).lead_codes
        plane = generator.integers(-127, 128, (1, lead)).astype(np.int8)
        return codes, scalars, plane, np.float32(0.5), np.float32(plane.sum(dtype=np.int64))

    @pytest.mark.parametrize("V", [1, 2, 3, 4, 5, 1023, 1024, 1025, 2051])
    @pytest.mark.parametrize("lead", [16, 48])
    def test_every_row_is_scored(self, V, lead):
        codes, scalars, plane, scale, total = self.problem(V, lead)
        exact = [
            float(scalars[0, v] - scalars[1, v] * (int(codes[v].astype(int) @ plane[0].astype(int)) - 127.5 * total))
            for v in range(V)
        ]
        values, rows = np.full(V, np.nan, np.float32), np.full(V + 1, -7, np.int32)
        wide, sums = np.empty(lead, np.int16), np.empty(screen.BLOCK, np.int32)
        bound = np.float32(np.median(exact))
        m = self.scan(codes, *scalars, plane, scale, total, bound, wide, sums, values, rows)
        np.testing.assert_allclose(values, exact, rtol=1e-6)
        assert rows[:m].tolist() == np.flatnonzero(values <= bound).tolist()
        everything = self.scan(codes, *scalars, plane, scale, total, np.float32(np.inf), wide, sums, values, rows)
        assert everything == V and rows[:V].tolist() == list(range(V))

    @pytest.mark.parametrize("m", [0, 1, 13, 200])
    def test_codes_of_chosen_rows(self, m):
        codes, scalars, plane, scale, total = self.problem(200, 33)
        rows = np.random.default_rng(1).permutation(200).astype(np.int32)
        out = np.full(200, np.nan, np.float32)
        self.score(codes, np.ascontiguousarray(scalars.T), plane, scale, total, rows, m, out)
        expected = reference_screen.distances_of(codes, *scalars, plane[0], scale, total)
        np.testing.assert_allclose(out[:m], expected[rows[:m]], rtol=1e-6)
        assert np.isnan(out[m:]).all()

    @pytest.mark.parametrize("V", [1, 3, 2047, 2048, 2049, 3000, 4095, 10_000])
    def test_about_as_many_pass_as_were_wanted_wherever_they_lie(self, V):
        codes, scalars, plane, scale, total = self.problem(V, 16)
        sample = np.empty(2048, np.float32)
        far = reference_screen.distances_of(codes, *scalars, plane[0], scale, total)
        # The nearest rows last: a sample of the first rows only would miss them all.
        order = np.argsort(-far)
        codes, scalars, far = (
            Preview.of(codes[order], scalars.T[order], codes[order], scalars).lead_codes,
            np.ascontiguousarray(scalars[:, order]),
            far[order],
        )
        for wanted in (1, V // 20, V // 2, V - 1, V, 2 * V):
            bound = self.threshold(codes, *scalars, plane, scale, total, wanted, sample)
            assert (
                bound == np.float32(TestLeadReference.threshold(codes, *scalars, plane, scale, total, wanted, sample))
                or np.isclose(bound, far).any()
            )
            passed = np.count_nonzero(far <= bound)
            assert passed == V if wanted >= V else 0 < passed <= V
            assert V <= 2048 or wanted >= V or abs(passed - wanted) <= 2 * (V // 2048 + 1)


class TestLeadReference(LeadContract):
    scan = staticmethod(reference_screen.scan_lead)
    threshold = staticmethod(reference_screen.lead_threshold)
    score = staticmethod(reference_screen.score_codes)


class TestLeadNumba(LeadContract):
    scan = staticmethod(screen.scan_lead)
    threshold = staticmethod(screen.lead_threshold)
    score = staticmethod(screen.score_codes)


class AboveContract:
    sample: ClassVar[Callable[..., int]]

    def drawn(self, values, bound: float, wanted: int, random: int = 1) -> list[int]:
        who = np.full(600, -7, np.int32)
        rest = int(np.count_nonzero(values > bound))
        last = self.sample(values.copy(), np.float32(bound), rest, np.uint64(random), who, 3, 3 + min(wanted, rest))
        assert (who[:3] == -7).all() and (who[last:] == -7).all()
        return who[3:last].tolist()

    @pytest.mark.parametrize("bound, wanted", [(0.0, 50), (0.0, 500), (0.99, 20), (-1.0, 300), (1.0, 5)])
    def test_twins_agree_and_rows_are_above_and_different(self, bound, wanted):
        values = random_states(1, 400)[0]
        drawn = self.drawn(values, bound, wanted)
        assert drawn == TestAboveReference().drawn(values, bound, wanted)
        assert len(set(drawn)) == len(drawn) and (values[drawn] > bound).all()

    def test_where_few_are_left_all_of_them_come(self):
        values = np.zeros(5000, np.float32)
        values[[7, 4999]] = 1.0
        assert self.drawn(values, 0.5, 100) == [7, 4999]

    def test_every_row_is_as_likely(self):
        values, counts = np.arange(50, dtype=np.float32), np.zeros(50)
        for seed in range(400):
            counts[self.drawn(values, 9.5, 10, random=seed)] += 1
        assert not counts[:10].any() and counts.sum() == 4000 and counts[10:].min() > 60 and counts.max() < 145


class TestAboveReference(AboveContract):
    sample = staticmethod(reference_screen.sample_above)


class TestAboveNumba(AboveContract):
    sample = staticmethod(screen.sample_above)


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
