"""S68: characters that are split over tokens come whole, once, in every chunking."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.detokenize import Detokenizer

SMILE = [b"\xf0\x9f", b"\x98\x80", b"e", b"\xcc\x81", b"x"]
FAMILY = "👩‍👩‍👧‍👦🇩🇪🏳️‍🌈"


def deltas(pieces):
    text = Detokenizer()
    return [*(text.push(piece) for piece in pieces), text.finish()]


def test_split_characters_come_when_they_are_whole():
    assert deltas(SMILE) == ["", "😀", "e", "\u0301", "x", ""]


@pytest.mark.parametrize("size", range(1, 9))
def test_every_chunking_gives_the_same_text(size):
    everything = b"".join(SMILE) + FAMILY.encode()
    portions = [everything[at : at + size] for at in range(0, len(everything), size)]
    assert "".join(deltas(portions)) == "😀e\u0301x" + FAMILY
    assert "\ufffd" not in "".join(deltas(portions))


@pytest.mark.parametrize("pieces", [[b"ab", b"\xf0\x9f"], [b"ab\xf0\x9f"], [b"ab", b"\xf0", b"\x9f"]])
def test_a_character_that_never_ends_is_one_replacement_at_the_end(pieces):
    assert deltas(pieces)[-1] == "\ufffd"
    assert "".join(deltas(pieces)) == "ab\ufffd"


def test_characters_are_counted_as_they_are_given_out():
    text = Detokenizer()
    counts = []
    for piece in SMILE:
        text.push(piece)
        counts.append(text.characters)
    assert counts == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("pieces", "places"),
    [
        ([b"a", b"\xf0\x9f", b"\x98", b"\x80", b"b"], [0, 1, 1, 1, 2]),
        ([b"\xf0\x9f", b"L", b"\xe2", b"\xf0\x9f\x98\x80"], [0, 1, 2, 3]),
        ([b"\xe0", b"\x80", b"x"], [0, 1, 2]),
        ([b"\xef\xbf", b"\xbd", b"x"], [0, 0, 1]),
        ([b"\xf0", b"", b"\x9f"], [0, 0, 0]),
    ],
)
def test_the_place_of_a_piece_is_that_of_its_first_character(pieces, places):
    text, found, joined = Detokenizer(), [], ""
    for piece in pieces:
        found.append(text.begins(piece))
        joined += text.push(piece)
    assert found == places
    assert len(joined) == text.characters


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_joined_are_the_whole_decoded_at_once(everything, cuts):
    borders = [0, *sorted(min(cut, len(everything)) for cut in cuts), len(everything)]
    pieces = [everything[start:end] for start, end in pairwise(borders)]
    assert "".join(deltas(pieces)) == everything.decode("utf-8", "replace")


@given(st.text(max_size=30), st.integers(1, 5))
def test_valid_text_never_shows_a_replacement_character_of_ours(text, size):
    everything = text.encode()
    pieces = [everything[at : at + size] for at in range(0, len(everything), size)]
    assert "".join(deltas(pieces)) == text
