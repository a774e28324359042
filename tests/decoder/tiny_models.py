"""Tiny random models of several families, their hidden states, and decoders of their output layers.

tiny_model(name)        a model in eval mode, made anew at each call, the same for the same arguments
states_of(model)        float32 (n, d): what reaches its output layer
build_for(model, ...)   a decoder of it in a folder
pair(folder, name)      the model as it is, and the same model with its decoder attached
generate(model, ids)    with rows of every step, seeded
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decoder import DecoderOptions, build_decoder
from decoder.huggingface import attach
from decoder.huggingface.weights import head_of, layer_of

VOCAB, DIM = 400, 32
_LLAMA = {
    "hidden_size": DIM,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT2 = {
    "n_embd": DIM, "n_layer": 1, "n_head": 2, "vocab_size": VOCAB, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_SEQ2SEQ = {
    "d_model": DIM,
    "vocab_size": VOCAB,
    "pad_token_id": VOCAB - 1,
    "eos_token_id": 0,
    "decoder_start_token_id": VOCAB - 1,
}
_MARIAN = {
    **_SEQ2SEQ, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
}  # fmt: skip
_T5 = {**_SEQ2SEQ, "d_ff": 32, "d_kv": 16, "num_layers": 1, "num_heads": 2}
FAMILIES = {
    "llama": ("Llama", "ForCausalLM", _LLAMA),
    "llama tied": ("Llama", "ForCausalLM", {**_LLAMA, "tie_word_embeddings": True}),
    "gpt2": ("GPT2", "LMHeadModel", _GPT2),
    "gemma2": ("Gemma2", "ForCausalLM", {**_LLAMA, "head_dim": 16, "final_logit_softcapping": 2.0}),
    "cohere": ("Cohere", "ForCausalLM", {**_LLAMA, "logit_scale": 0.25}),
    "granite": ("Granite", "ForCausalLM", {**_LLAMA, "logits_scaling": 4.0}),
    "marian": ("Marian", "MTModel", _MARIAN),
    "t5": ("T5", "ForConditionalGeneration", _T5),
}


def tiny_model(name: str, dtype: str = "float32", **changes):
    import torch
    import transformers

    stem, suffix, options = FAMILIES[name]
    torch.manual_seed(3)
    model = getattr(transformers, stem + suffix)(
        getattr(transformers, stem + "Config")(**{**options, **changes})
    ).eval()
    with torch.no_grad():
        # As made, logits of a random model hardly differ; these are as peaked as a real model's.
        head = model.get_output_embeddings()
        head.weight.normal_(std=0.6)
        if name == "marian":
            model.final_logits_bias.normal_()
    model.generation_config.max_length = None
    return model.to(getattr(torch, dtype))


def prompts(batch: int = 1, tokens: int = 5):
    import torch

    return torch.from_numpy(np.random.default_rng(5).integers(3, VOCAB - 1, (batch, tokens)))


def states_of(model, batch: int = 40, tokens: int = 40) -> np.ndarray:
    import torch

    seen = []
    ids = prompts(batch, tokens)
    watching = model.get_output_embeddings().register_forward_hook(lambda module, given, output: seen.append(given[0]))
    with torch.no_grad():
        model(ids, decoder_input_ids=ids) if model.config.is_encoder_decoder else model(ids)
    watching.remove()
    return seen[0].float().reshape(-1, DIM).numpy()


def build_for(model, path: Path, **options) -> Path:
    layer = layer_of(model, head_of(model))
    said = DecoderOptions(recall=0.999, threads=1, clusters=8, degree=16, **options)
    build_decoder(layer, path, calibration=states_of(model), options=said)
    return path


TOKENS = {"max_new_tokens": 8, "return_dict_in_generate": True, "output_logits": True, "output_scores": True}


def generate(model, ids, seed=0, **options):
    import torch

    torch.manual_seed(seed)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **{**TOKENS, **options})


def pair(folder, name="llama", dtype="float32", **options):
    """folder: the fixture decoder_folder. options: for attach()."""
    attached = attach(tiny_model(name, dtype), folder(name, dtype), **{"mode": "walk", **options})
    return tiny_model(name, dtype), attached
