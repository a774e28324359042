"""The words of a decoder's tokens, for people: a list of strings, one for each token id.

words_near()    the file beside a weight, or in a model's folder, that tells them
words_of()      the words in a list of words, a vocabulary, a tokenizer, a model's folder or a GGUF file
lack_of()       what is odd about words that are clearly too few
read_words()    the list as a served decoder keeps it

A word that is no text by itself (a part of a character) is written `bytes:\\xf0\\x9f`, as OpenAI's completions do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from decoder.readers.gguf_file import open_gguf, real_tokens
from index.errors import SourceError
from service.text.pieces import Writing, piece_bytes, shown

FILES = ("words.json", "tokens.json", "tokenizer.json", "vocab.json")
"""What is looked for beside a weight or in a model's folder; the first one counts."""

ENOUGH = 0.9
"""Of the tokens: with fewer words a list is likely another model's. A few are missing where rows are padding."""

_Json = list[str] | dict[str, Any]


def words_near(weight: Path) -> Path | None:
    """The file that tells the words: in the folder that `weight` is, in the GGUF that it is, or beside it."""
    if weight.suffix == ".gguf":
        return weight
    folder = weight if weight.is_dir() else weight.parent
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def words_of(path: Path, *, tokens: int | None = None) -> list[str]:
    """The words in a file or folder. tokens: how many the layer has that they are for; None: not compared.

    Raises SourceError, also for more words than tokens.
    """
    words = _words_in(path, tokens)
    if tokens is not None and len(words) > tokens:
        raise SourceError(
            f"{path.name} has {len(words):,} words, the layer has {tokens:,} tokens: these are the words of another model. "
            "Needed at most one for each token; name the file of the layer's own model, or leave words out."
        )
    return words


def lack_of(name: str, words: Sequence[str], tokens: int) -> str | None:
    """A sentence where words are clearly too few for so many tokens."""
    if len(words) >= ENOUGH * tokens:
        return None
    return (
        f"{name} has {len(words):,} words for {tokens:,} tokens. Are they another model's? Tokens past them are shown by "
        "their ids."
    )


def _words_in(path: Path, tokens: int | None) -> list[str]:
    if path.is_dir():
        found = words_near(path)
        if found is None:
            raise SourceError(f"{path} tells no words: none of {', '.join(FILES)} is in that folder. Name a file.")
        path = found
    if path.suffix == ".gguf":
        return _of_gguf(path)
    content = _json_in(path)
    if isinstance(content, list):
        return content
    model = content.get("model")
    if isinstance(model, Mapping):
        return _of_tokenizer(path, content, model, tokens)
    return _by_id(path, content.items())


def read_words(path: Path) -> list[str]:
    """A list of words. Raises SourceError."""
    content = _json_in(path)
    if not isinstance(content, list):
        raise SourceError(f"{path} holds a JSON object, needed a list of strings.")
    return content


def word(words: Sequence[str], token_id: int) -> str:
    """The word of a token; `<id>` for one that the list does not reach."""
    return words[token_id] if token_id < len(words) else f"<{token_id}>"


def _json_in(path: Path) -> _Json:
    try:
        content: _Json = msgspec.json.decode(path.read_bytes(), type=_Json)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(
            f"{path} holds no words: {error}. Needed a JSON list of strings, a vocabulary or a tokenizer.json."
        ) from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}.") from None
    return content


def _of_tokenizer(path: Path, content: Mapping[str, Any], model: Mapping[str, Any], tokens: int | None) -> list[str]:
    """Of the format that Hugging Face's tokenizers writes."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):  # Unigram: [piece, score] in the order of ids
        pairs = [(piece[0], number) for number, piece in enumerate(vocabulary) if isinstance(piece, list) and piece]
    elif isinstance(vocabulary, dict):
        pairs = list(vocabulary.items())
    else:
        raise SourceError(f"{path} is a tokenizer without a vocabulary (model.vocab).")
    # Anywhere in the chain of decoders: chains nest.
    shown = msgspec.json.encode([content.get("decoder"), content.get("pre_tokenizer")])
    words = _readable(_by_id(path, pairs), byte_level=b'"ByteLevel"' in shown)
    special = [(each.get("content"), each.get("id")) for each in content.get("added_tokens") or []]
    found = _by_id(path, [*((text, number) for number, text in enumerate(words)), *special])
    # Tokens may have been added that the model has no rows for, such as Gemma 3's of images: nothing ever asks for them.
    return found if tokens is None else found[: max(tokens, len(words))]


def _of_gguf(path: Path) -> list[str]:
    file = open_gguf(path)
    said = file.metadata
    pieces = said.get("tokenizer.ggml.tokens")
    if not isinstance(pieces, list):
        raise SourceError(f"{path} holds no words (tokenizer.ggml.tokens).")
    return _readable(pieces[: real_tokens(file, len(pieces))], byte_level=said.get("tokenizer.ggml.model") == "gpt2")


def _by_id(path: Path, pairs: Any) -> list[str]:
    """(word, id) pairs as a list; ids that nobody has are `<id>`."""
    words: dict[int, str] = {}
    for text, number in pairs:
        if not isinstance(text, str) or not isinstance(number, int) or not 0 <= number < 1 << 24:
            raise SourceError(f"{path} gives {text!r} the id {number!r}; words are strings and ids whole numbers.")
        words[number] = text
    return [words.get(number, f"<{number}>") for number in range(max(words, default=-1) + 1)]


def _readable(pieces: Sequence[str], *, byte_level: bool) -> list[str]:
    writing: Writing = "byte_level" if byte_level else "spaces"
    return [shown(piece_bytes(piece, writing)) for piece in pieces]
