"""Which tensor of a model is its output layer, and which its bias: by the names that model families use.

A head of its own is looked for first, then, where weights are tied, the embedding that serves as one. Where the names leave
a choice, nothing is guessed: the caller has to say.
"""

from __future__ import annotations

from collections.abc import Iterable

HEADS = ("lm_head.weight", "embed_out.weight", "output_layer.weight", "lm_head.decoder.weight")
WHOLE_HEADS = ("output.weight", "head.weight")
"""Heads only as a whole name: layers inside a model end so too."""
EMBEDDINGS = (
    "decoder.embed_tokens.weight",
    "embed_tokens.weight",
    "wte.weight",
    "shared.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
    "embeddings.weight",
    "embedding.weight",
)
NOT_OF_TOKENS = ("encoder", "vision", "visual", "audio", "position", "patch", "image")
"""A part of a name that says that its table is not that of the tokens to predict."""
BIASES = ("final_logits_bias", "lm_head.bias", "embed_out.bias")


def _of_tokens(name: str) -> bool:
    parts = name.replace("_", ".").split(".")
    return not any(part in NOT_OF_TOKENS for part in parts)


def _ending(names: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Names that are, or end with a dot and, the first of these endings that any of them has."""
    listed = [name for name in names if _of_tokens(name)]
    for ending in endings:
        found = [name for name in listed if name == ending or name.endswith("." + ending)]
        if found:
            return sorted(found)
    return []


def weight_names(names: Iterable[str], *, tied: bool | None) -> list[str]:
    """Names that may be the weight; one where it is clear. tied: what the model's configuration says, None for nothing."""
    listed = list(names)
    heads = _ending(listed, HEADS) or [name for name in WHOLE_HEADS if name in listed]
    embeddings = _ending(listed, EMBEDDINGS)
    if tied:
        return embeddings or heads
    if tied is None:
        return heads or embeddings
    return heads


def bias_name(names: Iterable[str], weight: str) -> str | None:
    """The bias that goes with this weight: its own, else one of a name that only output layers use."""
    listed = list(names)
    own = weight.removesuffix(".weight") + ".bias"
    if own in listed:
        return own
    found = [found for ending in BIASES for found in _ending(listed, (ending,))]
    return found[0] if found else None
