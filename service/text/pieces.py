"""The bytes and the shown name of each token of a vocabulary.

Three ways of writing bytes into a vocabulary's words, told by the decoder of tokenizer.json:
    byte_level   each byte is a printable character of its own (GPT-2 and most others today)
    spaces       text with U+2581 for a space and <0x0A> for a byte (SentencePiece)
    plain        text as it stands

Invariant: the bytes of an answer's tokens joined are the answer's bytes; special tokens have none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Writing = Literal["byte_level", "spaces", "plain"]

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Pieces:
    """bytes_of[token id]: what the token adds to a text, b"" for special ones; names: how a token is shown by itself."""

    bytes_of: tuple[bytes, ...]
    names: tuple[str, ...]
    special: frozenset[int]

    def of(self, token_id: int) -> bytes:
        """Bytes of a token; none for one that the tokenizer does not know (rows that pad the output layer)."""
        return self.bytes_of[token_id] if token_id < len(self.bytes_of) else b""

    def name(self, token_id: int) -> str:
        """The token's text, `bytes:\\xf0\\x9f` where it is no whole character, the name of a special one."""
        return self.names[token_id] if token_id < len(self.names) else f"token_id:{token_id}"


def make_pieces(
    words: Sequence[str | None], *, writing: Writing, added: Mapping[int, str], special: Collection[int]
) -> Pieces:
    """words[token id] as the vocabulary writes them, None where there is none; added: ids written as plain text."""
    bytes_of: list[bytes] = []
    names: list[str] = []
    for token_id, word in enumerate(words):
        text = added.get(token_id, word)
        if text is None:
            bytes_of.append(b"")
            names.append(f"token_id:{token_id}")
        elif token_id in special:
            bytes_of.append(b"")
            names.append(text)
        else:
            piece = text.encode() if token_id in added else piece_bytes(text, writing)
            bytes_of.append(piece)
            names.append(shown(piece))
    return Pieces(tuple(bytes_of), tuple(names), frozenset(special))


def shown(piece: bytes) -> str:
    """Bytes as text, or as `bytes:\\xf0\\x9f`, which is what OpenAI's completions say for a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def writing_of(decoder: Any) -> Writing:
    """How the words of a vocabulary are written; decoder: that member of a tokenizer.json."""
    kinds = {step["type"] for step in _steps(decoder)}
    if "ByteLevel" in kinds:
        return "byte_level"
    replaces = any(step["type"] == "Replace" and step.get("content") == " " for step in _steps(decoder))
    return "spaces" if kinds & {"ByteFallback", "Metaspace"} or replaces else "plain"


def strips_first_space(decoder: Any) -> bool:
    """True where the first token of a text carries a space that the text does not have."""
    for step in _steps(decoder):
        if step["type"] == "Strip" and step.get("start", 0) > 0:
            return True
        if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return True
    return False


def _steps(decoder: Any) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


def piece_bytes(word: str, writing: Writing) -> bytes:
    """The bytes for which a vocabulary's word stands; a word that is not of that writing stands for itself."""
    if writing == "byte_level":
        if all(character in _BYTE_OF for character in word):
            return bytes(_BYTE_OF[character] for character in word)
        return word.encode()
    if writing == "spaces":
        byte = _BYTE.fullmatch(word)
        return bytes([int(byte[1], 16)]) if byte else word.replace(_SPACE, " ").encode()
    return word.encode()


def _byte_characters() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _byte_characters()
