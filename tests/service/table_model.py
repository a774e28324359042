"""A language model that needs no package: the state after a token stands in a table, tokens are given bytes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from service.errors import MalformedError
from service.text.pieces import Pieces, shown


class TableTokenizer:
    """The longest token that fits, byte by byte."""

    strips_first_space = False
    has_template = False

    def __init__(self, bytes_of: Sequence[bytes], special: Mapping[int, str] | None = None) -> None:
        special = special or {}
        names = tuple(special.get(at, shown(piece)) for at, piece in enumerate(bytes_of))
        self.pieces = Pieces(tuple(bytes_of), names, frozenset(special))
        self._by_bytes = {piece: at for at, piece in enumerate(bytes_of) if piece}
        self.characters_max = max(map(len, bytes_of))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        rest, ids = text.encode(), []
        while rest:
            size = next((n for n in range(self.characters_max, 0, -1) if rest[:n] in self._by_bytes), 0)
            if not size:
                raise MalformedError(f"no token for {rest[:1]!r}")
            ids.append(self._by_bytes[rest[:size]])
            rest = rest[size:]
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))


class TableModel:
    """states[token id] is the state after that token; wait, where it is given, is waited for before each block."""

    def __init__(
        self,
        states: np.ndarray,
        tokenizer: TableTokenizer,
        *,
        end_ids: Sequence[int] = (),
        context_length: int | None = None,
        wait: threading.Event | None = None,
    ) -> None:
        self.states, self.tokenizer = np.asarray(states, np.float32), tokenizer
        self.end_ids, self.context_length = frozenset(end_ids), context_length
        self.rows, self.dim = self.states.shape
        self.wait = wait
        self.blocks: list[int] = []

    def read(self) -> TableReading:
        return TableReading(self)


class TableReading:
    def __init__(self, model: TableModel) -> None:
        self._model = model

    def hidden(self, ids: Sequence[int]) -> Any:
        self._model.blocks.append(len(ids))
        if self._model.wait is not None:
            assert self._model.wait.wait(20)
        return self._model.states[np.asarray(ids)]
