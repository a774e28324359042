"""A model's tokenizer: text to token ids, messages to token ids, token ids to bytes.

load_tokenizer()   from a transformers folder or a GGUF file
encode() encode_chat() pieces

Invariant: encoding is the tokenizer's own; the way back is ours (pieces.py), because it has to be exact to the byte.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from index.errors import MissingExtraError, SourceError
from service.errors import MalformedError
from service.text.extras import library, transformers_library
from service.text.pieces import Pieces, make_pieces, strips_first_space, writing_of


class TextTokenizer:
    """Threads: any."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: one of transformers."""
        self._tokenizer = tokenizer
        # The library's tokenizers change their own state while they encode: two threads at once make them fail.
        self._lock = threading.Lock()
        fast = getattr(tokenizer, "backend_tokenizer", None)
        written: dict[str, Any] = json.loads(fast.to_str()) if fast is not None else {}
        self.strips_first_space = strips_first_space(written.get("decoder"))
        """True where the first token of a text carries a space that the text does not have."""
        self.pieces = _pieces_of(tokenizer, written)
        self.has_template = bool(getattr(tokenizer, "chat_template", None))
        end = tokenizer.eos_token_id
        self.end_ids = frozenset() if end is None else frozenset([int(end)])

    @property
    def characters_max(self) -> int:
        """No token stands for more bytes than so many, and so for no more characters."""
        return max(map(len, self.pieces.bytes_of), default=1)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids; special: with those that the tokenizer puts before and after a text. Raises MalformedError."""
        with self._lock:
            return [int(token_id) for token_id in self._tokenizer.encode(text, add_special_tokens=special)]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation that the assistant goes on with. Raises MalformedError where the template refuses.

        Without a template: a line `role: content` for each message, and a last line `assistant:`.
        """
        if not self.has_template:
            lines = [f"{message['role']}: {message['content']}\n" for message in messages]
            return self.encode("".join(lines) + "assistant:")
        try:
            refusal = library("jinja2").exceptions.TemplateError
        except MissingExtraError as error:
            raise MissingExtraError(package=error.package, extra="hf", purpose="the chat template of a model") from None
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except refusal as error:
            raise MalformedError(f"The model's chat template refuses these messages: {error}.") from None
        return self.encode(str(text), special=False)


def load_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer of a transformers folder or of a GGUF file. Raises MissingExtraError, SourceError."""
    transformers = transformers_library()
    folder, named = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    try:
        found = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **named)
    except MemoryError:
        raise
    except Exception as error:  # the library's compiled part raises no leaf of it
        raise SourceError(f"{path}: its tokenizer cannot be read: {error}") from error
    return TextTokenizer(found)


def _pieces_of(tokenizer: Any, written: Mapping[str, Any]) -> Pieces:
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    words: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for word, token_id in vocabulary.items():
        words[token_id] = word
    added = {int(token["id"]): str(token["content"]) for token in written.get("added_tokens", ())}
    special = {int(token["id"]) for token in written.get("added_tokens", ()) if token["special"]}
    special |= {int(token_id) for token_id in tokenizer.all_special_ids}
    # Tokenizers without a tokenizer.json are SentencePiece's.
    writing = writing_of(written["decoder"]) if "decoder" in written else "spaces"
    return make_pieces(words, writing=writing, added=added, special=special)
