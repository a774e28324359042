"""Paths into payloads: what each spelling leads to, and what is none."""

from __future__ import annotations

import pytest

from service.errors import MalformedError
from service.payload_paths import ALL, names_of, parse_path


@pytest.mark.parametrize(
    ("key", "steps"),
    [
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("a[].b", ("a", ALL, "b")),
        ("a[0][12].b", ("a", 0, 12, "b")),
        ('"a.b"', ("a.b",)),
        ('a."b[0].c"[]', ("a", "b[0].c", ALL)),
        ('""', ("",)),
        (r'"a\"b"', ('a"b',)),
        (r'"a\\"', ("a\\",)),
        (r'"a\b"', ("a\\b",)),
        ("rdfs:type/x y", ("rdfs:type/x y",)),
    ],
)
def test_paths(key, steps):
    assert parse_path(key, path="$.key") == steps
    assert names_of(steps) == tuple(step for step in steps if isinstance(step, str))


@pytest.mark.parametrize(
    "key", ["", ".", "a.", ".a", "a..b", "a[", "a[-1]", "a[x]", "[0]", 'a"b"', '"a', "a[0]b", "a]"]
)
def test_what_is_no_path_is_refused_with_its_place(key):
    with pytest.raises(MalformedError, match=r"at \$\.key"):
        parse_path(key, path="$.key")
