"""The bundled output layer of a translation model: weight, bias, words, and the states of sentences that it translates.

read_head   a folder as scripts/make_bundled_data.py wrote it -> HeadData
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HEAD, WORDS, CALIBRATION, HELDOUT, SHOWN, SHOWN_STATES = HEAD_FILES = (
    "head.npz", "words.json", "calibration.npy", "heldout.npy", "shown.json", "shown.npy"
)  # fmt: skip
SPACE = "\u2581"
"""How the vocabulary writes the space before a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence, the tokens of its translation, the state float16 [d] before each of them, and the step that is shown."""

    text: str
    token_ids: list[int]
    states: NDArray[np.float16]
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadData:
    """weight float16 [V, d], bias float32 [V], words [V]; heldout float16 [n, d]: states to measure with."""

    weight: NDArray[np.float16]
    bias: NDArray[np.float32]
    words: list[str]
    heldout: NDArray[np.float16]
    shown: list[Sentence]

    def text_of(self, token_ids: Sequence[int]) -> str:
        """What the tokens write."""
        return "".join(self.words[token_id] for token_id in token_ids).replace(SPACE, " ").strip()


def read_head(folder: Path) -> HeadData:
    """All of it but the calibration states."""
    with np.load(folder / HEAD) as arrays:
        weight = (arrays["codes"] * np.float32(arrays["scale"])).astype(np.float16)
        bias = arrays["bias"]
    states, shown, first = np.load(folder / SHOWN_STATES), [], 0
    for sentence in json.loads((folder / SHOWN).read_text(encoding="utf-8")):
        last = first + len(sentence["token_ids"])
        shown.append(Sentence(**sentence, states=states[first:last]))
        first = last
    return HeadData(
        weight=weight,
        bias=bias,
        words=json.loads((folder / WORDS).read_text(encoding="utf-8")),
        heldout=np.load(folder / HELDOUT),
        shown=shown,
    )
