"""Buffers of one thread: what they hold is as large as asked, and marks never repeat."""

from __future__ import annotations

import numpy as np

from decoder.scratch import MARKS, Scratch


def test_a_table_is_as_large_as_asked_whatever_was_asked_before():
    scratch = Scratch()
    assert len(scratch.for_walk(64, 1)) == 64
    large = scratch.for_walk(1024, 1)
    assert len(large) == 1024 and len(scratch.for_walk(64, 1)) == 64
    assert scratch.for_walk(64, 1).base is large.base
    assert len(scratch.rows) >= 1024 and len(scratch.distances) >= 1024 and len(scratch.masses) >= 1024


def test_marks_survive_between_calls_but_not_a_new_table():
    scratch = Scratch()
    scratch.for_walk(64, 5)
    scratch.mark = 9
    scratch.for_walk(64, 5)
    assert scratch.mark == 9
    scratch.for_walk(128, 5)
    assert scratch.mark == 0


def test_when_marks_are_used_up_the_table_is_begun_anew():
    """A slot keeps 32 bits of a mark: with one more, no row would ever count as visited."""
    scratch = Scratch()
    scratch.for_walk(64, 5)[:] = np.uint64(7)
    scratch.mark = MARKS - 6
    scratch.for_walk(64, 5)
    assert scratch.mark == MARKS - 6
    scratch.mark = MARKS - 5
    table = scratch.for_walk(32, 5)
    assert scratch.mark == 0 and len(table) == 32 and not table.any() and len(scratch.visited) == 64


def test_room_for_a_screen():
    scratch = Scratch()
    for rows in (10, 200, 30):
        scratch.for_screen(rows)
        assert len(scratch.values) == rows
        assert min(len(scratch.rows), len(scratch.distances), len(scratch.masses)) >= rows + 1
    assert scratch.resident_bytes >= 30 * 4 + 3 * 201 * 4
