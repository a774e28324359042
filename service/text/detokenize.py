"""Bytes of tokens to text, as they come: a character is given out when its last byte is there, and never twice.

push()     the characters that a token completed
begins()   the place of a token in the text
finish()   what is left; one U+FFFD for a character that never came to its end

Invariant: the pieces joined are what decoding all bytes at once gives, in whatever portions the bytes came. A "character"
is a code point: flags, families and letters with accents come as several, and are whole again when joined.
"""

from __future__ import annotations

import codecs

_Utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one answer. Not thread-safe."""

    def __init__(self) -> None:
        self._decoder = _Utf8("replace")
        self.characters = 0
        """Characters given out so far."""

    def push(self, piece: bytes) -> str:
        """The characters that these bytes complete."""
        return self._count(self._decoder.decode(piece))

    def begins(self, piece: bytes) -> int:
        """How many characters the text has before those of this piece, which comes next.

        Bytes that go on with a character have the place of that character; others come after what it then is, U+FFFD.
        """
        pending, _ = self._decoder.getstate()
        if not pending or not piece:
            return self.characters
        goes_on = piece[0] & 0xC0 == 0x80 and len(_Utf8("replace").decode(pending + piece[:1])) <= 1
        return self.characters + (not goes_on)

    def finish(self) -> str:
        """What the last bytes stand for, now that no more come."""
        return self._count(self._decoder.decode(b"", final=True))

    def _count(self, text: str) -> str:
        self.characters += len(text)
        return text
