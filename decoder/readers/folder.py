"""A transformers folder: config.json, safetensors files (one, or many with an index), tokenizer files.

The configuration says whether the weight is the embedding (tied), how logits are scaled and capped, and how many tokens
there are. Numbers that change logits are read under every name that a model family uses for them:

    multiply   logit_scale (Cohere, MPT), lm_head_multiplier (Falcon-H1), logits_scaling (HyperCLOVA X)
    divide     logits_scaling (Granite)
    soft-cap   final_logit_softcapping (Gemma), logits_soft_cap (RecurrentGemma)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from decoder.readers.names import bias_name, weight_names
from decoder.readers.parts import LayerParts
from decoder.readers.safetensors import Tensor, read_tensors
from decoder.readers.tokenizer_files import highest_id, read_json
from index.errors import SourceError

INDEX = "model.safetensors.index.json"
# What transformers assumes where a configuration of that family leaves it out.
FAMILY_DEFAULTS: dict[str, dict[str, float]] = {
    "cohere": {"logit_scale": 0.0625},
    "cohere2": {"logit_scale": 0.0625},
    "gemma2": {"final_logit_softcapping": 30.0},
    "recurrent_gemma": {"logits_soft_cap": 30.0},
}
_INNER = ("text_config", "llm_config", "language_config", "decoder")


def read_folder(folder: Path, *, tensor: str | None) -> LayerParts:
    """The output layer of a model's folder."""
    config = _configuration(folder / "config.json")
    tensors = _tensors_of(folder)
    return choose(tensors, where=folder, tensor=tensor, config=config, known_tokens=highest_id(folder))


def choose(
    tensors: dict[str, Tensor],
    *,
    where: Path,
    tensor: str | None,
    config: dict[str, Any] | None = None,
    known_tokens: int | None = None,
) -> LayerParts:
    """The output layer among tensors. known_tokens: the tokenizer's highest id."""
    said = config or {}
    tied = said.get("tie_word_embeddings")
    weight = _chosen(tensors, where=where, tensor=tensor, tied=tied if isinstance(tied, bool) else None)
    bias = bias_name(tensors, weight.name)
    limits = [said.get("vocab_size"), None if known_tokens is None else known_tokens + 1]
    known = [limit for limit in limits if isinstance(limit, int)]
    size = min(known) if known else None
    if known_tokens is not None and size is not None and weight.shape:
        size = min(size, weight.shape[0])
    return LayerParts(
        weight.array(),
        bias=tensors[bias].array() if bias else None,
        scale=scale_of(said, where),
        softcap=softcap_of(said, where),
        vocab_size=size,
    )


def _chosen(tensors: dict[str, Tensor], *, where: Path, tensor: str | None, tied: bool | None) -> Tensor:
    tables = {name: entry for name, entry in tensors.items() if len(entry.shape) == 2}
    listed = ", ".join(f"{name} {list(entry.shape)}" for name, entry in sorted(tables.items())[:12]) or "none"
    more = f" and {len(tables) - 12} more" if len(tables) > 12 else ""
    if tensor is not None:
        if tensor not in tensors:
            raise SourceError(f"{where}: there is no tensor {tensor!r}. Two-dimensional ones: {listed}{more}.")
        return tensors[tensor]
    names = weight_names(tables, tied=tied)
    if not names and len(tables) == 1:
        names = list(tables)
    if len(names) == 1:
        return tables[names[0]]
    if names:
        raise SourceError(
            f"{where}: {' and '.join(names)} may each be the output layer. Say which: tensor={names[0]!r}."
        )
    untied = " (config.json says that it is not the embedding)" if tied is False else ""
    raise SourceError(
        f"{where}: no tensor is named like an output layer{untied}. Say which it is with tensor=; "
        f"two-dimensional ones: {listed}{more}."
    )


def _tensors_of(folder: Path) -> dict[str, Tensor]:
    index = folder / INDEX
    if index.is_file():
        said = read_json(index)
        files = said.get("weight_map") if isinstance(said, dict) else None
        if not isinstance(files, dict):
            raise SourceError(f"{index}: weight_map is missing, which says what tensor lies in what file.")
        wanted = sorted({str(name) for name in files.values()})
        outside = [name for name in wanted if Path(name).name != name]
        if outside:
            raise SourceError(f"{index}: {outside[0]!r} is no plain file name; shards lie beside their index.")
        paths = [folder / name for name in wanted]
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise SourceError(f"{folder}: {missing[0]} is missing, which {INDEX} names. Was the download complete?")
    else:
        paths = sorted(folder.glob("*.safetensors"))
        if (folder / "model.safetensors") in paths:
            paths = [folder / "model.safetensors"]
    if not paths:
        raise SourceError(f"{folder}: there is no safetensors file.{_other_weights(folder)}")
    return {name: tensor for path in paths for name, tensor in read_tensors(path).items()}


def _other_weights(folder: Path) -> str:
    """Advice where a folder's weights are of another kind."""
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")):
        return (
            " Weights in torch's own format are not read: load the model once with transformers and call "
            "model.save_pretrained(folder), which writes safetensors."
        )
    ggufs = sorted(folder.glob("*.gguf"))
    return f" Give the GGUF file itself: {ggufs[0]}" if ggufs else " Is this a model's folder?"


def _configuration(path: Path) -> dict[str, Any]:
    """config.json, with the part for the language model, where it has one, over the rest."""
    said = read_json(path)
    if not isinstance(said, dict):
        raise SourceError(f"{path}: a list or a number, needed an object with a model's configuration.")
    flat = dict(said)
    for name in _INNER:
        inner = said.get(name)
        if isinstance(inner, dict):
            flat.update({key: value for key, value in inner.items() if value is not None or key not in flat})
    return {**FAMILY_DEFAULTS.get(str(flat.get("model_type")), {}), **flat}


def _number(config: dict[str, Any], name: str, where: Path) -> float | None:
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value == 0:
        raise SourceError(f"{where}: {name} is {value!r} in config.json, needed a number other than 0, or null.")
    return float(value)


def scale_of(config: dict[str, Any], where: Path) -> float:
    """What logits are multiplied with."""
    if config.get("logit_scale") == "inv_sqrt_d_model":
        width = _number(config, "d_model", where) or _number(config, "hidden_size", where)
        config = {**config, "logit_scale": None if width is None else width**-0.5}
    scale = (_number(config, "logit_scale", where) or 1.0) * (_number(config, "lm_head_multiplier", where) or 1.0)
    scaling = _number(config, "logits_scaling", where) or 1.0
    return scale * scaling if str(config.get("model_type", "")).startswith("hyperclovax") else scale / scaling


def softcap_of(config: dict[str, Any], where: Path) -> float | None:
    """The soft-cap of logits, None for none."""
    return _number(config, "final_logit_softcapping", where) or _number(config, "logits_soft_cap", where)
