"""Small random language models on the disk, made by transformers, for tests that run where that is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}<|assistant|>"
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")


def models_library() -> Any:
    """transformers, or a skip."""
    pytest.importorskip("torch", reason="models need the extra hf")
    return pytest.importorskip("transformers", reason="models need the extra hf")


def byte_tokenizer(*, template: str | None = TEMPLATE, filler: int = 0) -> Any:
    """Byte-level BPE with every byte, a few merges, special tokens, and `filler` words that no text has."""
    transformers = models_library()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "n"), ("Ġ", "an"), ("ð", "Ł"), ("Ġan", "d")]
    words = [*alphabet, *(left + right for left, right in merges), *(f"filler{at}" for at in range(filler))]
    made = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate(words)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return _wrapped(transformers, made, template)


def spaces_tokenizer(*, template: str | None = None) -> Any:
    """As Llama 2's: spaces as U+2581, one put before each text, <0x..> for what has no word, <s> before each text."""
    transformers = models_library()
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    merges = [("t", "h"), ("th", "e"), ("\u2581", "the")]
    plain = [*(chr(at) for at in range(33, 127)), "\u2581"]
    words = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *plain, *(one + two for one, two in merges)]
    vocabulary = {word: at for at, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<unk>", "<s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _wrapped(transformers, made, template)


def _wrapped(transformers: Any, made: Any, template: str | None) -> Any:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[1:])})
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def make_model(folder: Path, tokenizer: Any, *, family: str = "LlamaConfig", seed: int = 0, **config: Any) -> Path:
    """A folder with config, weights and tokenizer."""
    transformers = models_library()
    import torch

    torch.manual_seed(seed)
    size = len(tokenizer)
    options = {
        "vocab_size": size, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None,
    }  # fmt: skip
    made = getattr(transformers, family)(**{**options, **config})
    model = transformers.AutoModelForCausalLM.from_config(made)
    with torch.no_grad():
        # Sharper than random weights are, so that tokens differ in how likely they are.
        model.get_output_embeddings().weight.mul_(12.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def oracle_of(folder: Path) -> Any:
    """transformers' own model of that folder."""
    transformers = models_library()
    return transformers.AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True).eval()


def oracle_logprobs(model: Any, ids: list[int]) -> Any:
    """log_softmax of the logits after each token, float64 [n, V]."""
    import torch

    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1).numpy()


def set_config(folder: Path, **members: Any) -> None:
    """Overwrite members of a folder's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **members}))
