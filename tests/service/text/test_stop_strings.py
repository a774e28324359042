"""S69: stop strings over the borders of tokens do not leak, are not missed, and swallow nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.stop import StopStrings


def streamed(pieces, stops):
    """Text given out for each piece and at the end, and the stop string that ended it."""
    looking = StopStrings(stops)
    given_out = []
    for piece in pieces:
        given_out.append(looking.push(piece))
        if looking.found is not None:
            return given_out, looking.found
    return [*given_out, looking.finish()], None


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "found"),
    [
        (["DEF", "G", "HI", "J"], ["DEFGHIJ"], "", "DEFGHIJ"),
        (["col", "or?\n", "x"], ["\n"], "color?", "\n"),
        (["The quick br", "own", " fox", " jumps"], ["own fox"], "The quick br", "own fox"),
        (["ab!c"], ["b!"], "a", "b!"),
        (["DEF", "G", "HI"], ["DEFGHIJ"], "DEFGHI", None),
        (["DEF", "G", "HX", "Y"], ["DEFGHIJ"], "DEFGHXY", None),
        (["aab", "aab", "aac"], ["aabaac"], "aab", "aabaac"),
        (["one ", "two", "three"], ["tw", "two", "three", "\n"], "one ", "tw"),
        (["a", "b", "cd"], ["abcde", "bcd", "cd", "x"], "a", "bcd"),
        (["no stops"], [], "no stops", None),
    ],
)
def test_scenarios(pieces, stops, text, found):
    given_out, ended_by = streamed(pieces, stops)
    assert ("".join(given_out), ended_by) == (text, found)


def test_what_may_become_a_stop_string_is_held_back():
    assert streamed(["x", "DEF", "G", "HX"], ["DEFGHIJ"])[0] == ["x", "", "", "DEFGHX", ""]


def test_nothing_is_given_out_after_the_stop_string():
    looking = StopStrings(["."])
    assert (looking.push("a. b"), looking.push("c"), looking.finish()) == ("a", "", "")


letters = st.text("ab", max_size=12)


@given(letters, st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), st.lists(st.integers(0, 12), max_size=6))
def test_the_portions_make_no_difference(text, stops, cuts):
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    given_out, found = streamed(pieces, stops)
    one_by_one, found_so = streamed(list(text), stops)
    assert ("".join(given_out), found) == ("".join(one_by_one), found_so)
    if found is None:
        assert "".join(given_out) == text and not any(stop in text for stop in stops)
    else:
        before = "".join(given_out)
        assert text.startswith(before + found) and not any(stop in before for stop in stops)
