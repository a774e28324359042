"""Masks that are kept: those used last, within their bytes."""

from __future__ import annotations

from service.points.masks import KeptMasks


def test_what_was_used_last_stays():
    kept = KeptMasks()
    for name in (b"a", b"b", b"c"):
        kept.keep(name, name, 20_000_000)
    assert kept.find(b"a") == b"a"
    kept.keep(b"d", b"d", 20_000_000)
    assert [kept.find(name) for name in (b"a", b"b", b"c", b"d")] == [b"a", None, b"c", b"d"]


def test_one_that_is_too_large_stays_alone_and_none_counts_twice():
    kept = KeptMasks()
    kept.keep(b"a", 1, 40_000_000)
    kept.keep(b"a", 2, 40_000_000)
    kept.keep(b"b", 3, 1)
    assert (kept.find(b"a"), kept.find(b"b")) == (2, 3)
    kept.keep(b"c", 4, 10**9)
    assert [kept.find(name) for name in (b"a", b"b", b"c")] == [None, None, 4]
