"""The bytes of tokens, in the three ways in which vocabularies write them."""

from __future__ import annotations

import pytest

from service.text.pieces import make_pieces, shown, strips_first_space, writing_of
from service.text.prompt import prompt_of

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True}
LLAMA = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def pieces_of(words, writing, added=None, special=()):
    return make_pieces(words, writing=writing, added=added or {}, special=special)


@pytest.mark.parametrize(
    ("decoder", "writing", "strips"),
    [
        (BYTE_LEVEL, "byte_level", False),
        ({"type": "Sequence", "decoders": [BYTE_LEVEL]}, "byte_level", False),
        (LLAMA, "spaces", True),
        ({**LLAMA, "decoders": LLAMA["decoders"][:3]}, "spaces", False),
        ({**LLAMA, "decoders": LLAMA["decoders"][:1]}, "spaces", False),
        ({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}, "spaces", True),
        ({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"}, "spaces", False),
        ({"type": "WordPiece", "prefix": "##"}, "plain", False),
        (None, "plain", False),
    ],
)
def test_the_decoder_tells_how_words_are_written(decoder, writing, strips):
    assert (writing_of(decoder), strips_first_space(decoder)) == (writing, strips)


def test_byte_level_words():
    pieces = pieces_of(["a", "Ġthe", "Ċ", "ðŁ", "ĺĢ", "œ", "Ä°"], "byte_level")
    assert pieces.bytes_of[:5] == (b"a", b" the", b"\n", b"\xf0\x9f", b"\x98\x80")
    assert pieces.names[:5] == ("a", " the", "\n", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80")
    assert (pieces.of(3) + pieces.of(4)).decode() == "😀"


def test_byte_level_covers_every_byte():
    table = {bytes([byte]) for byte in range(256)}
    from service.text.pieces import _BYTE_OF

    assert {pieces_of([character], "byte_level").of(0) for character in _BYTE_OF} == table


def test_words_with_spaces_and_bytes():
    pieces = pieces_of(["\u2581the", "<0xF0>", "<0x0A>", "<0xZZ>", "é"], "spaces")
    assert pieces.bytes_of == (b" the", b"\xf0", b"\n", b"<0xZZ>", "é".encode())


def test_added_tokens_are_plain_text_and_special_ones_have_none():
    pieces = pieces_of(["Ġa", None, "x"], "byte_level", added={1: "<|end|>", 2: "Ġ literally"}, special={1})
    assert pieces.bytes_of == (b" a", b"", "Ġ literally".encode())
    assert pieces.name(1) == "<|end|>"


def test_ids_that_no_word_has():
    pieces = pieces_of(["a", None], "plain")
    assert (pieces.of(1), pieces.name(1), pieces.of(99), pieces.name(99)) == (b"", "token_id:1", b"", "token_id:99")


def test_parts_of_characters_are_shown_by_their_bytes():
    assert (shown(b"\xf0\x9f"), shown("é".encode()), shown(b"")) == ("bytes:\\xf0\\x9f", "é", "")


# --- prompts ----------------------------------------------------------------------------------------------------------

WORDS = pieces_of(
    ["\u2581Hi", "\u2581there", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<s>", "!"], "spaces", special={6}
)


def test_special_tokens_that_the_tokenizer_adds_have_no_characters():
    prompt = prompt_of([6, 0, 1, 7], WORDS, text="Hi there!")
    assert (prompt.text, list(prompt.offsets)) == ("Hi there!", [0, 0, 2, 8])


def test_special_tokens_that_stand_in_the_text_have_those_of_their_name():
    prompt = prompt_of([0, 6, 7], WORDS, text="Hi<s>!")
    assert list(prompt.offsets) == [0, 2, 5]


def test_prompts_that_came_as_ids_get_a_text():
    prompt = prompt_of([6, 0, 2, 3, 4, 5, 7], WORDS, strips_first_space=True)
    assert (prompt.text, list(prompt.offsets)) == ("<s> Hi😀!", [0, 3, 6, 6, 6, 6, 7])
    assert prompt_of([0, 1], WORDS, strips_first_space=True).text == "Hi there"
    assert prompt_of([0, 1], WORDS).text == " Hi there"


def test_a_text_that_begins_with_a_space_keeps_it():
    assert list(prompt_of([0, 1], WORDS, text=" Hi there").offsets) == [0, 3]


def test_offsets_stay_inside_a_text_that_the_tokenizer_shortened():
    assert list(prompt_of([0, 1, 7], WORDS, text="Hi").offsets) == [0, 2, 2]
