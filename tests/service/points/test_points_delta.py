"""The delta: newest entries count, older rows are hidden, and a view never changes."""

from __future__ import annotations

import threading

import numpy as np

from service.points import delta as delta_module
from service.points.delta import Delta
from service.points.entries import Entry, EntryKind

ROWS = {10: 0, 11: 1, 12: 2, "r": 3}


def rows_of(ids):
    return np.array([ROWS.get(id_, -1) for id_ in ids], np.int64)


def make():
    return Delta(dim=2, metric="cosine", n=4, rows_of=rows_of)


def whole(id_, value, payload=b'{"a":1}'):
    return Entry(id_, EntryKind.WHOLE, np.full(2, value, np.float32), payload)


def points(view):
    return {view.id(slot): float(view.vectors[slot, 0]) for slot in view.points.tolist()}


def test_newest_entries_count_and_rows_are_hidden():
    delta = make()
    delta.add([whole(1, 1), whole(10, 2), whole(1, 3)])
    view = delta.view
    assert points(view) == {1: 3.0, 10: 2.0}
    assert view.hidden.tolist() == [True, False, False, False] and view.hidden_count == 1
    delta.add([Entry(1, EntryKind.DELETED), Entry("r", EntryKind.DELETED)])
    assert points(delta.view) == {10: 2.0}
    assert delta.view.hidden.tolist() == [True, False, False, True]


def test_a_payload_for_a_row_does_not_hide_it():
    delta = make()
    delta.add([Entry(11, EntryKind.PAYLOAD, None, b'{"b":2}')])
    view = delta.view
    assert view.hidden is None and view.repaid.tolist() == [0] and view.rows[0] == 1
    delta.add([whole(11, 5)])
    assert delta.view.hidden.tolist() == [False, True, False, False] and not len(delta.view.repaid)
    assert view.hidden is None and view.repaid.tolist() == [0]


def test_a_view_stays_what_it_was_while_others_write():
    delta = make()
    delta.add([whole(id_, id_) for id_ in range(100, 150)])
    before = delta.view
    wanted = points(before)
    stop = threading.Event()

    def write():
        value = 0
        while not stop.is_set():
            value += 1
            delta.add([whole(100 + value % 60, value), whole(10, value), Entry(100 + value % 7, EntryKind.DELETED)])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(300):
            assert points(before) == wanted and before.hidden is None
            assert all(before.slot_of(id_) == id_ - 100 for id_ in range(100, 150))
            assert before.slot_of(10) == -1
    finally:
        stop.set()
        thread.join()


def test_what_is_no_longer_current_gives_its_memory_back(monkeypatch):
    monkeypatch.setattr(delta_module, "_REBUILD_SLOTS", 500)
    delta = make()
    for round_ in range(100):
        delta.add([whole(id_, round_) for id_ in range(100)])
    assert len(delta) < 1000
    assert points(delta.view) == dict.fromkeys(range(100), 99.0)
    assert len(list(delta.entries())) == 100


def test_entries_of_a_delta_make_the_same_delta():
    delta = make()
    delta.add([whole(1, 1), whole(10, 2), Entry(11, EntryKind.PAYLOAD, None, b"{}"), Entry("r", EntryKind.DELETED)])
    delta.add([Entry(1, EntryKind.WHOLE, None, b'{"x":1}')])
    again = make()
    again.add(list(delta.entries()))
    assert set(points(again.view)) == set(points(delta.view)) == {1, 10}
    assert again.view.hidden.tolist() == delta.view.hidden.tolist()
    assert not again.view.has_vector[again.view.slot_of(1)]
