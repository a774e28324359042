"""What can be said of the model that `serve` names before it is loaded: whether it has a tokenizer, and states of the layer's
length.

require_fitting_model()   reads config.json, or the header of a GGUF file

What only loading tells (weights that are missing, a tokenizer that does not parse) is left to the first completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoder.readers.gguf_file import open_gguf
from decoder.readers.tokenizer_files import read_json
from service.errors import MalformedError

_INNER = ("text_config", "llm_config", "language_config", "decoder")
_WIDTHS = ("hidden_size", "d_model", "n_embd", "word_embed_proj_dim", "embedding_size")
"""What families call the length of a state. Of two that a configuration gives (OPT, Electra) either may be the layer's."""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "vocab.model", "spiece.model", "spm.model"),
    *("sentencepiece.bpe.model", "source.spm", "tekken.json", "*.tiktoken"),
)
_WITHOUT_FILES = ("ByT5Tokenizer", "CanineTokenizer")
"""Tokenizers of bytes or characters, which need none."""


def require_fitting_model(path: Path, dim: int) -> None:
    """path: of a model that completions run; dim: length of the layer's rows. Raises MalformedError, SourceError."""
    widths = _widths_of_gguf(path) if path.is_file() else _widths_of_folder(path)
    if widths and dim not in widths:
        raise MalformedError(
            f"serve names {path.name}, whose states have {' or '.join(f'{width:,}' for width in widths)} components, the "
            f"weight's rows have {dim:,}. Name the model that the weight is from."
        )


def _widths_of_gguf(path: Path) -> list[int]:
    said = open_gguf(path).metadata
    if not said.get("tokenizer.ggml.tokens"):
        raise MalformedError(
            f"serve names {path.name}, which holds no tokenizer (tokenizer.ggml.tokens). Convert it with its tokenizer."
        )
    return _numbers(said, [f"{said.get('general.architecture')}.embedding_length"])


def _widths_of_folder(path: Path) -> list[int]:
    if not _has_tokenizer(path):
        raise MalformedError(
            f"serve names {path.name}, a folder without a tokenizer: none of {', '.join(TOKENIZER_FILES)} is there. "
            "Copy the tokenizer of the model into it."
        )
    config = read_json(path / "config.json")
    if not isinstance(config, dict):
        raise MalformedError(f"serve names {path.name}, whose config.json is no object. Was the model copied whole?")
    inner = [part for part in map(config.get, _INNER) if isinstance(part, dict)]
    return next(filter(None, (_numbers(part, _WIDTHS) for part in (*inner, config))), [])


def _has_tokenizer(folder: Path) -> bool:
    if any(next(folder.glob(name), None) is not None for name in TOKENIZER_FILES):
        return True
    settings = folder / "tokenizer_config.json"
    said = read_json(settings) if settings.is_file() else None
    return isinstance(said, dict) and said.get("tokenizer_class") in _WITHOUT_FILES


def _numbers(said: Mapping[str, Any], names: list[str] | tuple[str, ...]) -> list[int]:
    return sorted({said[name] for name in names if isinstance(said.get(name), int)})
