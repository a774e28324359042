"""Hits and the work that they took."""

from __future__ import annotations

import time

import numpy as np

from index.hits import Hits, Work


def test_time_is_divided_among_the_queries_of_a_group():
    work = Work.empty(5)
    began = time.perf_counter() - 1.0
    work.spend("walk", slice(0, 4), began)
    work.spend("walk", slice(2, 4), began)
    assert (work.microseconds["walk"][:2] > 2e5).all() and (work.microseconds["walk"][2:4] > 7e5).all()
    assert work.microseconds["walk"][4] == 0


def test_bytes_follow_from_pages():
    work = Work.empty(3)
    work.pages_read[:] = [0, 1, 7]
    work.finish()
    assert work.bytes_read.tolist() == [0, 4096, 28672]
    assert work.of(2)["bytes_read"] == 28672 and work.of(2)["microseconds"] == {}


def test_as_many_hits_as_queries():
    ids = np.zeros((3, 2), np.uint64)
    hits = Hits(ids, ids.astype(np.float32), np.array([2, 0, 1]), ids.astype(np.int64), Work.empty(3))
    assert len(hits) == 3
