"""The highest token id that a model's folder knows of, from tokenizer files as plain JSON.

Rows of the output layer past it are padding. Ids may have holes: the highest one counts, not how many there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from index.errors import SourceError


def read_json(path: Path) -> Any:
    """A JSON file; SourceError where it does not parse."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: this is no JSON ({error}). The file is damaged, or a download was cut.") from error


def highest_id(folder: Path) -> int | None:
    """The highest id in tokenizer.json or vocab.json and in the files of added tokens; None without a vocabulary."""
    main = folder / "tokenizer.json"
    base = list(_ids_of_tokenizer(read_json(main))) if main.is_file() else []
    if not base and (folder / "vocab.json").is_file():
        base = list(_ids_of_mapping(read_json(folder / "vocab.json")))
    if not base:
        return None
    added = folder / "added_tokens.json"
    if added.is_file():
        base += _ids_of_mapping(read_json(added))
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        said = read_json(settings)
        decoder = said.get("added_tokens_decoder") if isinstance(said, dict) else None
        base += [int(key) for key in (decoder or {}) if str(key).isdecimal()]
    return max(base)


def _ids_of_tokenizer(said: Any) -> Iterator[int]:
    """Ids in a tokenizer.json: a vocabulary by name (BPE, WordPiece), or a list whose places are ids (Unigram)."""
    if not isinstance(said, dict):
        return
    model = said.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):
        yield from range(len(vocabulary))
    else:
        yield from _ids_of_mapping(vocabulary)
    for token in said.get("added_tokens") or []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            yield token["id"]


def _ids_of_mapping(said: Any) -> Iterator[int]:
    if isinstance(said, dict):
        yield from (value for value in said.values() if isinstance(value, int) and not isinstance(value, bool))
