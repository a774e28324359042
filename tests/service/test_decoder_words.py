"""Words of tokens: lists, vocabularies, tokenizers of each kind, GGUF; what is no words is refused and named."""

from __future__ import annotations

import json
import struct

import pytest

from index.errors import SourceError
from service.decoder_words import lack_of, read_words, word, words_near, words_of


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def gguf(path, tokens, model, kinds=()):
    """A GGUF file of version 3 that holds a vocabulary and nothing else. kinds: a number for each token."""

    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    entries = [string("tokenizer.ggml.model") + struct.pack("<I", 8) + string(model)]
    entries.append(
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(string, tokens))
    )
    if kinds:
        entries.append(
            string("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds)
        )
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    return path


def test_a_list_is_taken_as_it_is(tmp_path):
    words = ["a", " b", "\u00e9", "Ġthe"]
    assert words_of(write(tmp_path / "words.json", words)) == words
    assert read_words(tmp_path / "words.json") == words


def test_a_vocabulary_is_ordered_by_ids_and_holes_are_shown(tmp_path):
    assert words_of(write(tmp_path / "vocab.json", {"c": 3, "a": 0, "b": 1})) == ["a", "b", "<2>", "c"]


def test_a_byte_level_tokenizer(tmp_path):
    content = {
        "model": {"type": "BPE", "vocab": {"Ġthe": 0, "ĠÃ©": 1, "ðŁ": 2, "Ċ": 3, "<|end|>": 4}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]},
        "added_tokens": [{"id": 4, "content": "<|end|>"}, {"id": 6, "content": "<|pad|>"}],
    }
    words = words_of(write(tmp_path / "tokenizer.json", content))
    assert words == [" the", " é", "bytes:\\xf0\\x9f", "\n", "<|end|>", "<5>", "<|pad|>"]


def test_a_sentencepiece_tokenizer(tmp_path):
    content = {
        "model": {
            "type": "Unigram",
            "vocab": [["<unk>", 0.0], ["\u2581de", -1.0], ["s", -2.0], ["<0x0A>", -3.0], ["<0xF0>", -4]],
        },
        "decoder": {"type": "Metaspace"},
    }
    words = words_of(write(tmp_path / "tokenizer.json", content))
    assert words == ["<unk>", " de", "s", "\n", "bytes:\\xf0"]


@pytest.mark.parametrize(("model", "expected"), [("gpt2", [" a", "\u2581b"]), ("llama", ["Ġa", " b"])])
def test_a_gguf_file(tmp_path, model, expected):
    assert words_of(gguf(tmp_path / "m.gguf", ["Ġa", "\u2581b"], model)) == expected
    assert words_near(tmp_path / "m.gguf") == tmp_path / "m.gguf"


def test_what_lies_beside_a_weight_is_found(tmp_path):
    weight = tmp_path / "head.npy"
    assert words_near(weight) is None
    write(tmp_path / "tokenizer.json", {})
    assert words_near(weight) == words_near(tmp_path) == tmp_path / "tokenizer.json"
    write(tmp_path / "words.json", ["a"])
    assert words_near(weight) == tmp_path / "words.json"
    assert words_of(tmp_path) == ["a"]


def test_a_token_beyond_the_list_is_shown_by_its_id():
    assert [word(["a", "b"], token_id) for token_id in (1, 2, 50)] == ["b", "<2>", "<50>"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "no words"),
        ("{", "no words"),
        ("7", "no words"),
        ("[" * 5000, "no words"),
        ("[1, 2]", "no words"),
        ('{"a": "b"}', "ids whole numbers"),
        ('{"a": -1}', "ids whole numbers"),
        ('{"a": 99999999999}', "ids whole numbers"),
        ('{"model": {"vocab": 7}}', "vocabulary"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": "x", "content": "a"}]}', "ids whole numbers"),
    ],
)
def test_what_is_no_words_is_refused(tmp_path, content, what):
    (tmp_path / "w.json").write_text(content)
    with pytest.raises(SourceError, match=what) as caught:
        words_of(tmp_path / "w.json")
    assert "w.json" in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "w.json").write_bytes(b'["\xff"]')
    with pytest.raises(SourceError, match=r"w\.json"):
        words_of(tmp_path / "w.json")
    with pytest.raises(SourceError, match="cannot be read"):
        words_of(tmp_path / "none.json")
    with pytest.raises(SourceError, match="tells no words"):
        words_of(tmp_path)
    with pytest.raises(SourceError, match="needed a list"):
        read_words(write(tmp_path / "v.json", {"a": 0}))


def test_more_words_than_tokens_are_refused(tmp_path):
    path = write(tmp_path / "words.json", ["a", "b", "c"])
    assert words_of(path, tokens=3) == words_of(tmp_path, tokens=4) == ["a", "b", "c"]
    with pytest.raises(SourceError, match=r"words\.json has 3 words, the layer has 2 tokens: .* another model"):
        words_of(path, tokens=2)


def test_tokens_that_were_added_past_the_rows_are_no_words_of_another_model(tmp_path):
    content = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 3, "content": "<image>"}]}
    path = write(tmp_path / "tokenizer.json", content)
    assert words_of(path) == words_of(path, tokens=4) == ["a", "b", "<2>", "<image>"]
    assert words_of(path, tokens=2) == ["a", "b"]
    with pytest.raises(SourceError, match="2 words, the layer has 1 tokens"):
        words_of(path, tokens=1)


def test_padding_of_a_gguf_file_is_no_words(tmp_path):
    path = gguf(tmp_path / "m.gguf", ["a", "b", "[PAD2]", "[PAD3]"], "llama", kinds=(1, 1, 5, 5))
    assert words_of(path, tokens=2) == ["a", "b"]


def test_words_that_are_clearly_too_few_are_told(tmp_path):
    assert lack_of("w.json", ["a"] * 90, 100) is None
    said = lack_of("w.json", ["a"] * 89, 100)
    assert said is not None and "w.json has 89 words for 100 tokens" in said
