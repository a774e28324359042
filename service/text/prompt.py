"""A prompt as tokens, and as the text that echo shows, with the place of each token in it.

prompt_of()   token ids -> Prompt
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.text.detokenize import Detokenizer
from service.text.pieces import Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """ids: one token or more; text: what echo shows; offsets: characters of the text before each token."""

    ids: Sequence[int]
    text: str
    offsets: Sequence[int]


def prompt_of(
    ids: Sequence[int], pieces: Pieces, *, text: str | None = None, strips_first_space: bool = False
) -> Prompt:
    """text: what the ids were encoded from; None for a prompt that came as ids, whose text is made from them.

    Special tokens that stand in the text by name, and all of a prompt that came as ids, are shown by name; the others were
    added by the tokenizer and have no characters. strips_first_space: the vocabulary writes one that no text has.
    """
    given = None if text is None else text.encode()
    so_far, read = Detokenizer(), bytearray()
    offsets, shown = [], []
    for token_id in ids:
        piece = pieces.of(token_id)
        if token_id in pieces.special:
            name = pieces.name(token_id).encode()
            piece = name if given is None or given.startswith(name, len(read)) else b""
        elif not read and piece[:1] == b" ":
            stripped = strips_first_space if given is None else not given.startswith(b" ")
            piece = piece[1:] if stripped else piece
        offsets.append(so_far.begins(piece))
        read += piece
        shown.append(so_far.push(piece))
    shown.append(so_far.finish())
    if text is None:
        return Prompt(ids=ids, text="".join(shown), offsets=offsets)
    # A tokenizer that normalises reads another text than it was given; offsets stay inside the one given.
    return Prompt(ids=ids, text=text, offsets=[min(offset, len(text)) for offset in offsets])
