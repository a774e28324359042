"""The words of a text, as conditions on texts compare them: case-folded runs of letters and digits."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """In their order."""
    return [word.casefold() for word in _WORD.findall(text)]


def has_phrase(words: list[str], phrase: tuple[str, ...]) -> bool:
    """Whether the words hold the phrase's one after the other; an empty phrase is nowhere."""
    size = len(phrase)
    wanted = list(phrase)
    return bool(size) and any(words[at : at + size] == wanted for at in range(len(words) - size + 1))
