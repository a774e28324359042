"""Folders that transformers itself wrote, of small random models: our logits against the model's own."""

from __future__ import annotations

import numpy as np
import pytest

from decoder.exact import exact_logits
from decoder.output_layer import OutputLayer

torch = pytest.importorskip("torch", reason="the models are torch's")
transformers = pytest.importorskip("transformers", reason="writes the folders")

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": 101,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MARIAN = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 101,
    "pad_token_id": 100,
    "eos_token_id": 0,
    "decoder_start_token_id": 100,
    "max_position_embeddings": 64,
}
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SMALL),
    "llama, tied": ("LlamaForCausalLM", "LlamaConfig", {**SMALL, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**SMALL, "head_dim": 16, "final_logit_softcapping": 0.02}),
    "cohere": ("CohereForCausalLM", "CohereConfig", SMALL),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**SMALL, "logits_scaling": 4.0}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "marian": ("MarianMTModel", "MarianConfig", MARIAN),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype, error", [("float32", 1e-6), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_models_own(tmp_path, name, dtype, error):
    model_class, config_class, options = MODELS[name]
    torch.manual_seed(0)
    model = (
        getattr(transformers, model_class)(getattr(transformers, config_class)(**options))
        .to(getattr(torch, dtype))
        .eval()
    )
    if name == "marian":
        model.final_logits_bias.normal_()
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    ids = torch.tensor([[5, 7, 9]])
    with torch.no_grad():
        logits = (model(ids, decoder_input_ids=ids) if name == "marian" else model(ids)).logits[0]
    model.save_pretrained(tmp_path)
    layer = OutputLayer.load(tmp_path)
    assert layer.dtype == dtype and layer.vocab_size == 101
    np.testing.assert_allclose(exact_logits(layer, seen[0][0]), logits.float().numpy(), atol=error)
