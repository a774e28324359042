"""Models and tokenizers from the disk, against transformers itself."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tiny_llama import TEMPLATE, byte_tokenizer, make_model, oracle_of, set_config, spaces_tokenizer

from decoder.output_layer import OutputLayer
from index.errors import MissingExtraError, SourceError
from service.errors import MalformedError
from service.text.detokenize import Detokenizer
from service.text.model import load_text_model
from service.text.tokenizer import TextTokenizer

TEXTS = [
    "the cat and the dog",
    "  two  spaces\n\ttab",
    "naïve 😀 e\u0301 漢字",
    "👩‍👩‍👧‍👦🇩🇪🏳️‍🌈",
    "\u200d\ufeff",
    "0123",
]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    return make_model(tmp_path_factory.mktemp("llama"), tokenizer)


def back(tokenizer, ids):
    text = Detokenizer()
    return "".join(text.push(tokenizer.pieces.of(token_id)) for token_id in ids) + text.finish()


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_joined_are_the_text(text, tokenizer):
    byte_level, spaces = TextTokenizer(tokenizer), TextTokenizer(spaces_tokenizer())
    assert back(byte_level, byte_level.encode(text)) == text
    assert spaces.strips_first_space and back(spaces, spaces.encode(text)) == " " + text
    assert spaces.encode(text)[0] == 1 and spaces.encode(text, special=False)[0] != 1


def test_special_tokens_have_names_and_no_bytes(tokenizer):
    ours = TextTokenizer(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert (ours.pieces.of(end), ours.pieces.name(end), ours.end_ids) == (b"", "<|end|>", {end})
    assert back(ours, ours.encode("a<|end|>b")) == "ab"


def test_chats_go_through_the_template_and_without_one_through_plain_lines(tokenizer):
    messages = [{"role": "user", "content": "the"}]
    ours = TextTokenizer(tokenizer)
    names = [ours.pieces.name(token_id) for token_id in ours.encode_chat(messages)]
    assert names == ["<|user|>", "the", "<|end|>", "<|assistant|>"] and "<|assistant|>" in TEMPLATE
    plain = TextTokenizer(byte_tokenizer(template=None))
    assert back(plain, plain.encode_chat(messages)) == "user: the\nassistant:"


def test_what_a_template_refuses_is_the_client_s_fault():
    refusing = TextTokenizer(byte_tokenizer(template="{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(MalformedError, match="roles must alternate"):
        refusing.encode_chat([{"role": "user", "content": "a"}])


def test_states_are_the_input_of_the_output_layer(folder):
    """Against the logits of transformers, in one piece, in blocks and token by token."""
    import torch

    model, oracle = load_text_model(folder), oracle_of(folder)
    ids = model.tokenizer.encode("the cat and the dog and the naïve 😀")
    with torch.inference_mode():
        logits = oracle(torch.tensor([ids])).logits[0].numpy()
    weight = oracle.get_output_embeddings().weight.detach().numpy()
    assert (model.dim, model.rows, model.context_length) == (32, len(weight), 512)
    for size in (len(ids), 7, 1):
        reading = model.read()
        states = np.concatenate([reading.hidden(ids[at : at + size]) for at in range(0, len(ids), size)])
        assert states.dtype == np.float32 and reading.length == len(ids)
        np.testing.assert_allclose(states @ weight.T, logits, atol=2e-4)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
        (
            "Gemma2Config",
            {"head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 3.0, "tie_word_embeddings": True},
        ),
        (
            "OPTConfig",
            {"word_embed_proj_dim": 16, "ffn_dim": 48, "num_attention_heads": 4, "do_layer_norm_before": False},
        ),
        ("CohereConfig", {"logit_scale": 0.25}),
    ],
)
def test_families_that_do_something_before_or_after_the_layer(tmp_path, tokenizer, family, config):
    import torch

    folder = make_model(tmp_path / family, tokenizer, family=family, **config)
    model, oracle = load_text_model(folder), oracle_of(folder)
    layer = OutputLayer.load(folder)
    ids = model.tokenizer.encode("the cat and the dog and the cat")
    with torch.inference_mode():
        logits = oracle(torch.tensor([ids])).logits[0].numpy()
    reading = model.read()
    states = np.concatenate([reading.hidden(ids[:9]), reading.hidden(ids[9:])])
    assert states.shape[1] == layer.dim == model.dim
    np.testing.assert_allclose(layer.finish(states @ layer.weight.astype(np.float32).T + layer.bias), logits, atol=5e-4)


def test_a_gguf_file_is_the_model_that_it_was_made_from(tmp_path):
    gguf = pytest.importorskip("gguf", reason="GGUF files need the extra hf")
    folder = make_model(tmp_path / "llama", byte_tokenizer())
    file = write_gguf(gguf, folder, tmp_path / "llama.gguf")
    one, two = load_text_model(folder), load_text_model(file)
    ids = one.tokenizer.encode("the cat and the naïve 😀")
    assert two.tokenizer.encode("the cat and the naïve 😀") == ids and two.end_ids == one.end_ids
    assert two.tokenizer.pieces.bytes_of[: one.rows] == one.tokenizer.pieces.bytes_of
    np.testing.assert_allclose(two.read().hidden(ids), one.read().hidden(ids), atol=1e-4)
    assert two.context_length == 512


def test_more_tokens_than_the_context_are_refused(folder):
    model = load_text_model(folder)
    reading = model.read()
    reading.hidden([1] * 510)
    with pytest.raises(MalformedError, match=r"513 tokens.*512"):
        reading.hidden([1, 2, 3])
    assert reading.hidden([1, 2]).shape == (2, 32)


def test_readings_of_several_threads_do_not_mix(folder):
    from concurrent.futures import ThreadPoolExecutor

    model = load_text_model(folder)
    prompts = [[at, at + 1, at + 2] for at in range(12)]
    alone = [model.read().hidden(ids) for ids in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda ids: model.read().hidden(ids), prompts * 4))
    for at, states in enumerate(together):
        np.testing.assert_allclose(states, alone[at % 12], atol=1e-5)


def test_what_is_no_model_is_named(tmp_path, tokenizer):
    for path, reason in ((tmp_path / "nothing", "does not exist"), (tmp_path, "cannot be read")):
        with pytest.raises(SourceError, match=reason) as caught:
            load_text_model(path)
        assert str(path) in str(caught.value)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(SourceError, match="neither a folder"):
        load_text_model(tmp_path / "model.bin")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(SourceError, match=r"broken\.gguf"):
        load_text_model(tmp_path / "broken.gguf")


@pytest.mark.parametrize("content", ["{", "{}", '{"model": 7, "added_tokens": []}'])
def test_a_tokenizer_that_does_not_parse_is_named(tmp_path, tokenizer, content):
    folder = make_model(tmp_path / "mute", tokenizer)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(SourceError, match="mute: its tokenizer cannot be read"):
        load_text_model(folder)


def test_weights_that_are_missing_are_not_made_up(tmp_path, tokenizer):
    folder = make_model(tmp_path / "short", tokenizer)
    set_config(folder, num_hidden_layers=3)
    with pytest.raises(SourceError, match=r"lacks \d+ weights .*layers\.2"):
        load_text_model(folder)


def test_models_that_translate_are_refused(tmp_path, tokenizer):
    set_config(make_model(tmp_path / "t5", tokenizer), model_type="t5", is_encoder_decoder=True)
    with pytest.raises(SourceError, match="causal"):
        load_text_model(tmp_path / "t5")


def test_missing_packages_are_named_with_how_to_install_them(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"fullview\[hf\]"):
        load_text_model(tmp_path)


def write_gguf(gguf, folder, file):
    """As llama.cpp's converter does it for a Llama with a byte-level vocabulary."""
    from safetensors.numpy import load_file
    from transformers import AutoTokenizer

    weights = load_file(folder / "model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    heads = {"q": 4, "k": 2}
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokenizer))
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_ids)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3 if token_id in special else 1 for token_id in range(len(words))])
    import json

    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    writer.add_tensor("output.weight", weights["lm_head.weight"])
    for layer in range(2):
        for name, short in names.items():
            weight = weights[f"model.layers.{layer}.{name}.weight"]
            count = heads.get(short.removeprefix("attn_"))
            if count is not None:  # ggml's order of rotary pairs
                weight = weight.reshape(count, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            writer.add_tensor(f"blk.{layer}.{short}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
