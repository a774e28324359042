"""Contracts of the decoder's walk, over the slow twin and the compiled kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from layer_oracle import DTYPES, log_sum, logits64, random_layer, require_best
from small_decoders import require_alike, require_same_row, small_decoder, walked

from decoder.candidates import Effort
from decoder.kernels import reference_walk, walk
from index.kernels.walk import visited_slots

SHAPES = [(1, 3), (2, 16), (5, 17), (66, 8), (300, 24), (303, 33), (1030, 48)]
"""(V, d): one row, fewer than the beam, no multiple of four or sixteen."""


class WalkContract:
    walk: ClassVar[Callable[..., Any]]

    def run(self, small, effort, **options):
        return walked(self.walk, small, effort, **options)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("V, dim", SHAPES)
    def test_twins_agree(self, V, dim, dtype):
        small = small_decoder(V, dim, dtype)
        effort = Effort(width=min(40, V), rerank=min(12, V), middle=9, tail=20)
        require_alike(self.run(small, effort), walked(reference_walk.walk_states, small, effort))

    @pytest.mark.parametrize("options", [{"softcap": 3.0}, {"scale": 0.25}, {"softcap": 2.0, "scale": 3.0}])
    def test_scale_and_soft_cap(self, options):
        small = small_decoder(300, 24, **options)
        effort = Effort(width=60, rerank=12, middle=30, tail=40)
        found = self.run(small, effort)
        require_alike(found, walked(reference_walk.walk_states, small, effort))
        assert (np.abs(found.log_z - log_sum(logits64(small.layer, small.states))) < 6 * found.error + 0.02).all()

    @pytest.mark.parametrize("middle, tail", [(0, 0), (0, 30), (16, 0), (16, 30)])
    def test_codes_of_the_leading_coordinates_only(self, middle, tail):
        small = small_decoder(300, 40, width=20)
        effort = Effort(width=50, rerank=20, middle=middle, tail=tail)
        found = self.run(small, effort)
        require_alike(found, walked(reference_walk.walk_states, small, effort))
        assert np.isnan(found.log_z).all() == (middle == tail == 0)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_beam_of_all_rows_is_an_exact_answer(self, dtype):
        small = small_decoder(130, 24, dtype)
        found = self.run(small, Effort(width=130, rerank=130, middle=5, tail=5))
        require_best(small.layer, small.states, found.token_ids[:, :130], found.logits[:, :130], 130)
        assert (found.exact == 130).all() and (found.counts == 130).all() and (found.scored == 130).all()
        np.testing.assert_allclose(found.log_z, log_sum(logits64(small.layer, small.states)), atol=1e-5)

    def test_fewer_rows_than_asked_for(self):
        """Rows that no link leads to are in the tail's sample only."""
        small = small_decoder(50, 16)
        links = small.links.copy()
        links[:, 0], links[:, 1:] = (np.arange(50) + 1) % 50, -1
        links[9::10] = -1  # the rows 0-9, 10-19, ... are islands
        table = np.tile(np.arange(2, dtype=np.int32), (3, 1))
        small = small.but(links=links, entries=type(small.entries).of(small.entries.centroids, table))
        effort = Effort(width=40, rerank=30, middle=0, tail=60)
        found = self.run(small, effort)
        require_alike(found, walked(reference_walk.walk_states, small, effort))
        assert (found.exact == 10).all() and (found.scored == 10).all() and (found.counts == 50).all()
        assert (found.weights[:, :50] == 1.0).all()  # all the others are there
        np.testing.assert_allclose(found.log_z, log_sum(logits64(small.layer, small.states)), atol=0.05)

    def test_equal_rows_stand_by_id_and_none_is_lost(self):
        layer = random_layer(203, 16, "float32", bias=False)
        layer.weight[:] = layer.weight[0]
        small = small_decoder(203, 16, layer=layer)
        effort = Effort(width=60, rerank=20, middle=0, tail=300)
        found = self.run(small, effort)
        assert (found.exact == 20).all() and (np.diff(found.token_ids[:, :20], axis=1) > 0).all()
        true = logits64(layer, small.states)[:, 0] + np.log(203)
        np.testing.assert_allclose(found.log_z, true, atol=5e-3)  # most of it by estimates
        drawn = self.run(small, Effort(width=60, rerank=20, middle=30, tail=300))
        np.testing.assert_allclose(drawn.log_z, true, atol=1e-4)

    def test_warm_starts_come_first_and_minus_one_is_none(self):
        small = small_decoder(300, 24)
        effort = Effort(width=16, rerank=8, middle=0, tail=10)
        warm = np.array([[5, -1, 200]] * 4 + [[-1, -1, -1]], np.int32)
        found = self.run(small, effort, warm=warm)
        require_alike(found, walked(reference_walk.walk_states, small, effort, warm=warm))
        cold = self.run(small, effort)
        assert found.token_ids[4].tolist() == cold.token_ids[4].tolist() and found.log_z[4] == cold.log_z[4]

    def test_a_state_alone_is_answered_as_in_a_batch(self):
        small = small_decoder(300, 24, n=6)
        effort = Effort(width=30, rerank=10, middle=12, tail=12)
        together = self.run(small, effort)
        for row in range(6):
            alone = self.run(small.but(states=small.states[row : row + 1]), effort)
            require_same_row(alone, 0, together, row)

    def test_the_sample_is_a_function_of_state_and_seed(self):
        small = small_decoder(300, 24)
        effort = Effort(width=20, rerank=10, middle=0, tail=30)
        first, second, other = (self.run(small, effort, seed=seed) for seed in (3, 3, 4))
        assert first.token_ids.tobytes() == second.token_ids.tobytes() and first.log_z.tolist() == second.log_z.tolist()
        assert (first.token_ids[:, :10] == other.token_ids[:, :10]).all() and (first.log_z != other.log_z).all()

    def test_a_table_that_is_full_ends_the_walk(self):
        small = small_decoder(1500, 16, degree=30)
        slots = 512
        effort = Effort(width=400, rerank=30, middle=20, tail=64)
        found = self.run(small, effort, slots=slots)
        require_alike(found, walked(reference_walk.walk_states, small, effort, slots=slots))
        assert (found.scored <= slots * 3 // 4).all() and (found.scored < found.scored.max() + 30).all()

    def test_a_state_that_overflows_has_no_rows(self):
        small = small_decoder(66, 8)
        states = small.states.copy()
        states[2] = 3e38
        found = self.run(small.but(states=states), Effort(width=30, rerank=10, middle=4, tail=4))
        assert found.exact.tolist() == [10, 10, 0, 10, 10] and found.counts[2] == 0 and np.isnan(found.log_z[2])

    def test_no_states_at_all(self):
        small = small_decoder(66, 8)
        assert len(self.run(small.but(states=small.states[:0]), Effort(width=30, rerank=10, middle=4, tail=4))) == 0


class TestWalkReference(WalkContract):
    walk = staticmethod(reference_walk.walk_states)


class TestWalkNumba(WalkContract):
    walk = staticmethod(walk.walk_states)


class UnseenContract:
    sample: ClassVar[Callable[..., int]]
    visit_rows: ClassVar[tuple[int, ...]] = (3, 4, 10, 99)

    def drawn(self, total: int, rows: tuple[int, ...], wanted: int) -> list[int]:
        slots = visited_slots(16, 4, 300)
        table, mark = np.zeros(slots, np.uint64), np.uint64(5)
        for row in rows:
            assert _visit(table, np.uint32(slots - 1), mark, np.int32(row))
        table[_visit_free(table)] = np.uint64(4) << np.uint64(32)  # of a walk before
        who = np.full(300, -7, np.int32)
        rest = total - len(rows)
        last = self.sample(table, np.uint32(slots - 1), mark, total, rest, np.uint64(1), who, 2, 2 + min(wanted, rest))
        assert who[:2].tolist() == [-7, -7] and (who[last:] == -7).all()
        return who[2:last].tolist()

    @pytest.mark.parametrize("total, wanted", [(100, 30), (100, 96), (100, 300), (10_000, 250), (6, 2)])
    def test_twins_agree_and_rows_are_new_and_different(self, total, wanted):
        rows = tuple(row for row in self.visit_rows if row < total)
        drawn = self.drawn(total, rows, wanted)
        assert drawn == TestUnseenReference().drawn(total, rows, wanted)
        assert len(set(drawn)) == len(drawn) and not set(drawn) & set(rows)
        assert set(drawn) <= set(range(total))

    def test_where_few_are_left_all_of_them_come(self):
        rows = tuple(row for row in range(200) if row not in (17, 150))
        assert self.drawn(200, rows, 40) == [17, 150]
        assert self.drawn(200, tuple(range(200)), 40) == []

    def test_every_row_is_as_likely(self):
        counts = np.zeros(50)
        for seed in range(400):
            who = np.empty(10, np.int32)
            table = np.zeros(64, np.uint64)
            assert self.sample(table, np.uint32(63), np.uint64(1), 50, 50, np.uint64(seed), who, 0, 10) == 10
            counts[who] += 1
        assert counts.min() > 40 and counts.max() < 125 and counts.sum() == 4000


def _visit(*arguments):
    return walk.visit(*arguments)


def _visit_free(table):
    return int(np.flatnonzero(table == 0)[0])


class TestUnseenReference(UnseenContract):
    sample = staticmethod(reference_walk.sample_unseen)


class TestUnseenNumba(UnseenContract):
    sample = staticmethod(walk.sample_unseen)


class BeginContract:
    begin: ClassVar[Callable[..., int]]

    @pytest.mark.parametrize("warm, rows", [([], [4, 2]), ([-1, 9, -1, 2], [9, 2, 4, 2]), ([-1], [4, 2])])
    def test_rows_of_both(self, warm, rows):
        entries = np.full(6, -7, np.int32)
        assert self.begin(np.array(warm, np.int32), np.array([4, 2], np.int32), entries) == len(rows)
        assert entries[: len(rows)].tolist() == rows and (entries[len(rows) :] == -7).all()


class TestBeginReference(BeginContract):
    begin = staticmethod(reference_walk.begin)


class TestBeginNumba(BeginContract):
    begin = staticmethod(walk.begin)
