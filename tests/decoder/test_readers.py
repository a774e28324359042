"""Output layers from files: npy, safetensors, transformers folders, GGUF."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from layer_oracle import DTYPES, random_states, stored
from model_files import bpe_tokenizer, plain, write_gguf, write_model, write_safetensors

from decoder.errors import BadWeightsError, DecoderOptionsError
from decoder.output_layer import OutputLayer
from index.errors import MissingExtraError, SourceError

W = random_states(12, 6, seed=5)
B = np.arange(12, dtype=np.float32)
HEAD = {"lm_head.weight": plain(W, "float16")}


def same(layer: OutputLayer, values: np.ndarray, dtype: str) -> None:
    assert layer.dtype == dtype
    np.testing.assert_array_equal(layer.weight, stored(values, dtype))


# --- any format, any dtype, any shape -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    rows=some.integers(1, 40),
    dim=some.integers(1, 24),
    dtype=some.sampled_from(DTYPES),
    kind=some.sampled_from(["npy", "npy, Fortran order", "safetensors", "folder", "shards", "gguf"]),
    alignment=some.sampled_from([8, 32, 64]),
    seed=some.integers(0, 99),
)
def test_every_format_gives_the_weight_bit_for_bit(rows, dim, dtype, kind, alignment, seed):
    values = random_states(rows, dim, seed)
    weight = stored(values, dtype)
    other = np.zeros((3, dim), np.float32)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        if kind.startswith("npy"):
            path = path / "head.npy"
            np.save(path, np.asfortranarray(weight) if "Fortran" in kind else weight)
        elif kind == "safetensors":
            path = path / "head.safetensors"
            write_safetensors(path, {"norm": plain(B, "float32"), "anything": (dtype, weight)}, {"a": "x" * (seed % 7)})
        elif kind == "gguf":
            path = path / "head.gguf"
            tensors = {"blk.0.x": ("float32", other, other.shape), "token_embd.weight": (dtype, weight, weight.shape)}
            write_gguf(path, {"general.architecture": "llama"}, tensors, alignment)
        else:
            tensors = {"a.weight": plain(other, "float32"), "lm_head.weight": (dtype, weight), "z": plain(B, "float32")}
            path = write_model(path / "model", tensors, shards=3 if kind == "shards" else 1)
        layer = OutputLayer.load(path, dtype="bfloat16" if "npy" in kind and dtype == "bfloat16" else None)
        same(layer, values, dtype)
        assert layer.vocab_size == rows and layer.weights_hash() == OutputLayer(weight, dtype=dtype).weights_hash()


def test_nothing_is_read_into_memory_or_written_back(tmp_path):
    np.save(tmp_path / "head.npy", W)
    before = (tmp_path / "head.npy").read_bytes()
    layer = OutputLayer.load(str(tmp_path / "head.npy"))
    assert not layer.weight.flags.owndata and layer.weight.flags.writeable
    layer.weight[0] = 7
    assert (tmp_path / "head.npy").read_bytes() == before


def test_reading_needs_no_torch(tmp_path):
    write_model(tmp_path / "model", {"lm_head.weight": plain(W, "bfloat16")})
    modules = set(sys.modules)
    OutputLayer.load(tmp_path / "model")
    assert not {
        name for name in set(sys.modules) - modules if name.split(".")[0] in ("torch", "ml_dtypes", "transformers")
    }


def test_a_file_written_by_safetensors_itself(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": B, "lm_head.weight": W.astype(np.float16), "lm_head.bias": B}, tmp_path / "model.safetensors")
    layer = OutputLayer.load(tmp_path / "model.safetensors")
    same(layer, W, "float16")
    assert layer.bias.tolist() == B.tolist()


def test_bfloat16_written_by_torch(tmp_path):
    torch = pytest.importorskip("torch", reason="writes the file")
    from safetensors.torch import save_file

    weight = torch.from_numpy(W).bfloat16()
    save_file({"lm_head.weight": weight}, tmp_path / "model.safetensors")
    layer = OutputLayer.load(tmp_path / "model.safetensors")
    assert layer.dtype == "bfloat16"
    np.testing.assert_array_equal(layer.rows(range(12)), weight.float().numpy())


def test_what_is_said_wins_over_the_file(tmp_path):
    config = {"final_logit_softcapping": 30.0, "logit_scale": 0.5, "vocab_size": 12}
    write_model(tmp_path / "model", {**HEAD, "lm_head.bias": plain(B, "float32")}, config)
    layer = OutputLayer.load(tmp_path / "model", scale=2.0, softcap=9.0, vocab_size=10, bias=B + 1)
    assert (layer.scale, layer.softcap, layer.vocab_size, layer.bias[0]) == (2.0, 9.0, 10, 1.0)


@pytest.mark.parametrize("ending", ["npy", "safetensors"])
def test_a_bias_from_a_file_of_its_own(tmp_path, ending):
    np.save(tmp_path / "head.npy", W)
    np.save(tmp_path / "bias.npy", B)
    write_safetensors(tmp_path / "bias.safetensors", {"b": plain(B, "float32"), "w": plain(W, "float32")})
    layer = OutputLayer.load(tmp_path / "head.npy", bias=tmp_path / f"bias.{ending}")
    assert layer.bias.tolist() == B.tolist()


# --- npy ------------------------------------------------------------------------------------------------------------


def test_bfloat16_saved_as_opaque_bytes(tmp_path):
    np.save(tmp_path / "head.npy", stored(W, "bfloat16").view("V2"))
    same(OutputLayer.load(tmp_path / "head.npy"), W, "bfloat16")


@pytest.mark.parametrize(
    "array, error, said",
    [
        (np.zeros((3, 4), np.uint16), BadWeightsError, 'head.npy.*dtype="bfloat16"'),
        (np.zeros((3, 4), np.int8), BadWeightsError, "head.npy.*int8"),
        (np.zeros(3, np.float32), BadWeightsError, r"head.npy.*shape \(3,\)"),
        (np.array([[None]]), SourceError, "object"),
        (np.full((3, 4), np.nan, np.float32), BadWeightsError, "head.npy.*token ids 0, 1, 2"),
    ],
)
def test_npy_files_of_no_use(tmp_path, array, error, said):
    np.save(tmp_path / "head.npy", array, allow_pickle=True)
    with pytest.raises(error, match=said):
        OutputLayer.load(tmp_path / "head.npy")


@pytest.mark.parametrize("kept", [0, 5, 60, 200])
def test_files_that_were_cut(tmp_path, kept):
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "llama"}, {"output.weight": ("float32", W, W.shape)})
    np.save(tmp_path / "a.npy", W)
    write_safetensors(tmp_path / "a.safetensors", HEAD)
    for path in list(tmp_path.iterdir()):
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(SourceError, match="a\\."):
            OutputLayer.load(path)


@pytest.mark.parametrize("name", ["a.bin", "a.pt", "a", "a.npz"])
def test_other_files(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SourceError, match=r"is not read. What is: .npy, .safetensors, .gguf"):
        OutputLayer.load(tmp_path / name)


def test_nothing_there(tmp_path):
    with pytest.raises(SourceError, match="no such file"):
        OutputLayer.load(tmp_path / "none.npy")
    with pytest.raises(SourceError, match=r"no config\.json"):
        OutputLayer.load(tmp_path)
    np.save(tmp_path / "head.npy", W)
    for bias, said in (("none.npy", "no such file"), ("head.txt", "no such file"), ("head.npy", r"shape \(12, 6\)")):
        with pytest.raises((SourceError, BadWeightsError), match=said):
            OutputLayer.load(tmp_path / "head.npy", bias=tmp_path / bias)
    with pytest.raises(SourceError, match="only safetensors"):
        OutputLayer.load(tmp_path / "head.npy", tensor="x")


# --- safetensors: which tensor --------------------------------------------------------------------------------------


def test_the_tensor_that_is_asked_for(tmp_path):
    write_safetensors(
        tmp_path / "m.safetensors", {**HEAD, "mine": plain(2 * W, "float32"), "mine.bias": plain(B, "float32")}
    )
    layer = OutputLayer.load(tmp_path / "m.safetensors", tensor="mine")
    same(layer, 2 * W, "float32")
    assert layer.bias.tolist() == B.tolist()
    with pytest.raises(SourceError, match=r"no tensor 'other'.*lm_head.weight \[12, 6\], mine \[12, 6\]"):
        OutputLayer.load(tmp_path / "m.safetensors", tensor="other")


def test_no_guess_between_tensors(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"p": plain(W, "float16"), "q": plain(W, "float16")})
    with pytest.raises(SourceError, match=r"no tensor is named like.*tensor=.*p \[12, 6\], q \[12, 6\]"):
        OutputLayer.load(tmp_path / "a.safetensors")
    write_safetensors(
        tmp_path / "b.safetensors", {"a.lm_head.weight": plain(W, "float16"), "b.lm_head.weight": plain(W, "float16")}
    )
    with pytest.raises(SourceError, match=r"a\.lm_head\.weight and b\.lm_head\.weight may each be"):
        OutputLayer.load(tmp_path / "b.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"a": 3}',
        b'{"a": {"dtype": "F32", "shape": [2, 2]}}',
        b'{"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 16]}}',
        b'{"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 15]}}',
        b'{"a": {"dtype": "F32", "shape": [20, 2], "data_offsets": [0, 160]}}',
        b'{"a": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]}}',
    ],
)
def test_damaged_safetensors(tmp_path, header):
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(SourceError, match=r"m\.safetensors"):
        OutputLayer.load(tmp_path / "m.safetensors")


# --- a transformers folder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names, config, chosen",
    [
        (["lm_head.weight", "model.embed_tokens.weight"], {"tie_word_embeddings": False}, "lm_head.weight"),
        (["lm_head.weight", "model.embed_tokens.weight"], {"tie_word_embeddings": True}, "model.embed_tokens.weight"),
        (["lm_head.weight", "model.embed_tokens.weight"], {}, "lm_head.weight"),
        (["model.embed_tokens.weight", "model.layers.0.mlp.weight"], {}, "model.embed_tokens.weight"),
        (["transformer.wte.weight", "transformer.wpe.weight"], {}, "transformer.wte.weight"),
        (["gpt_neox.embed_in.weight", "embed_out.weight"], {"tie_word_embeddings": False}, "embed_out.weight"),
        (["model.shared.weight", "model.encoder.embed_positions.weight"], {}, "model.shared.weight"),
        (
            ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "model.shared.weight"],
            {"tie_word_embeddings": True},
            "model.decoder.embed_tokens.weight",
        ),
        (["model.tok_embeddings.weight", "output.weight", "model.layers.0.output.weight"], {}, "output.weight"),
        (["backbone.embeddings.weight"], {}, "backbone.embeddings.weight"),
        (["language_model.lm_head.weight", "vision_tower.embeddings.weight"], {}, "language_model.lm_head.weight"),
        (["a.llm.embed_tokens.weight", "v.visual.embeddings.weight"], {}, "a.llm.embed_tokens.weight"),
    ],
)  # fmt: skip
def test_which_tensor_is_the_layer(tmp_path, names, config, chosen):
    tensors = {name: plain(W + place, "float32") for place, name in enumerate(names)}
    layer = OutputLayer.load(write_model(tmp_path / "model", tensors, config))
    same(layer, W + names.index(chosen), "float32")


def test_an_untied_model_without_a_head_is_refused(tmp_path):
    folder = write_model(
        tmp_path / "m",
        {"model.embed_tokens.weight": plain(W, "float32"), "x": plain(W, "float32")},
        {"tie_word_embeddings": False},
    )
    with pytest.raises(SourceError, match=r"config\.json says that it is not the embedding"):
        OutputLayer.load(folder)


@pytest.mark.parametrize(
    "name, shape", [("lm_head.bias", (12,)), ("final_logits_bias", (1, 12)), ("embed_out.bias", (12,))]
)
@pytest.mark.parametrize("tied", [True, False])
def test_s59_the_bias_is_found_tied_or_not(tmp_path, name, shape, tied):
    head = "model.shared.weight" if tied else "lm_head.weight"
    tensors = {head: plain(W, "float32"), name: plain(B.reshape(shape), "float32")}
    layer = OutputLayer.load(write_model(tmp_path / "m", tensors, {"tie_word_embeddings": tied}))
    assert layer.bias.tolist() == B.tolist()


@pytest.mark.parametrize(
    "config, scale, softcap",
    [
        ({"final_logit_softcapping": 30.0}, 1.0, 30.0),
        ({"final_logit_softcapping": None}, 1.0, None),
        ({"model_type": "gemma2"}, 1.0, 30.0),
        ({"model_type": "gemma2", "final_logit_softcapping": None}, 1.0, None),
        ({"model_type": "recurrent_gemma", "logits_soft_cap": 20.0}, 1.0, 20.0),
        ({"model_type": "cohere", "logit_scale": 0.0625}, 0.0625, None),
        ({"model_type": "cohere2"}, 0.0625, None),
        ({"model_type": "granite", "logits_scaling": 8.0}, 0.125, None),
        ({"model_type": "hyperclovax", "logits_scaling": 0.125}, 0.125, None),
        ({"model_type": "falcon_h1", "lm_head_multiplier": 0.5}, 0.5, None),
        ({"model_type": "mpt", "logit_scale": "inv_sqrt_d_model", "d_model": 16}, 0.25, None),
        ({"model_type": "mpt", "logit_scale": None}, 1.0, None),
        ({"text_config": {"final_logit_softcapping": 25.0, "vocab_size": 12}}, 1.0, 25.0),
    ],
)
def test_s60_scale_and_soft_cap_by_every_name(tmp_path, config, scale, softcap):
    layer = OutputLayer.load(write_model(tmp_path / "m", HEAD, config))
    assert (layer.scale, layer.softcap) == (scale, softcap)


@pytest.mark.parametrize("value", ["8", 0, True, [1]])
def test_scales_that_are_no_numbers(tmp_path, value):
    folder = write_model(tmp_path / "m", HEAD, {"logits_scaling": value})
    with pytest.raises(SourceError, match="logits_scaling is"):
        OutputLayer.load(folder)


@pytest.mark.parametrize(
    "config, tokenizer, real",
    [
        ({}, None, 12),
        ({"vocab_size": 10}, None, 10),
        ({"vocab_size": 12}, bpe_tokenizer({"a": 0, "b": 1}, {"<s>": 9}), 10),
        ({"vocab_size": 12}, bpe_tokenizer({"a": 0, "sparse": 11}), 12),
        ({"vocab_size": 8}, bpe_tokenizer({"a": 0, "b": 9}), 8),
        ({}, bpe_tokenizer({"a": 0, "b": 500}), 12),
        ({}, {"model": {"type": "Unigram", "vocab": [["a", -1.0]] * 7}, "added_tokens": []}, 7),
        ({"text_config": {"vocab_size": 11}}, None, 11),
        ({}, {"model": {}}, 12),
    ],
)
def test_s58_real_tokens_by_configuration_and_tokenizer(tmp_path, config, tokenizer, real):
    assert OutputLayer.load(write_model(tmp_path / "m", HEAD, config, tokenizer=tokenizer)).vocab_size == real


def test_added_tokens_in_files_of_their_own(tmp_path):
    folder = write_model(tmp_path / "m", HEAD)
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 3}))
    assert OutputLayer.load(folder).vocab_size == 4
    (folder / "added_tokens.json").write_text(json.dumps({"c": 6}))
    assert OutputLayer.load(folder).vocab_size == 7
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"8": {"content": "d"}}}))
    assert OutputLayer.load(folder).vocab_size == 9


def test_a_configuration_of_more_tokens_than_rows(tmp_path):
    with pytest.raises(DecoderOptionsError, match="vocab_size is 13, but the weight has 12 rows"):
        OutputLayer.load(write_model(tmp_path / "m", HEAD, {"vocab_size": 13}))


def test_folders_of_no_use(tmp_path):
    folder = write_model(tmp_path / "m", HEAD, shards=2)
    (folder / "model-00001-of-00002.safetensors").rename(folder / "gone")
    with pytest.raises(SourceError, match=r"model-00001-of-00002\.safetensors is missing"):
        OutputLayer.load(folder)
    index = folder / "model.safetensors.index.json"
    for text, said in (
        ('{"weight_map": {"lm_head.weight": "../x.safetensors"}}', "no plain file name"),
        ('{"weight_map": 3}', "weight_map is missing"),
        ("{", "no JSON"),
    ):
        index.write_text(text)
        with pytest.raises(SourceError, match=said):
            OutputLayer.load(folder)
    index.unlink()
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(SourceError, match="Is this a model's folder"):
        OutputLayer.load(folder)
    (folder / "model.gguf").write_bytes(b"")
    with pytest.raises(SourceError, match="Give the GGUF file itself"):
        OutputLayer.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SourceError, match="save_pretrained"):
        OutputLayer.load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(SourceError, match=r"config\.json"):
        OutputLayer.load(folder)


# --- GGUF -----------------------------------------------------------------------------------------------------------

LLAMA = {"general.architecture": "llama"}


def test_the_head_comes_before_the_embedding_and_has_a_bias(tmp_path):
    tensors = {
        "token_embd.weight": ("float32", W, W.shape),
        "output.weight": ("float16", stored(2 * W, "float16"), W.shape),
        "output.bias": ("float32", B, B.shape),
    }
    write_gguf(tmp_path / "m.gguf", LLAMA, tensors)
    layer = OutputLayer.load(tmp_path / "m.gguf")
    same(layer, 2 * W, "float16")
    assert layer.bias.tolist() == B.tolist()


@pytest.mark.parametrize(
    "family, said, scale, softcap",
    [
        ("gemma2", {"final_logit_softcapping": 25.0}, 1.0, 25.0),
        ("gemma2", {}, 1.0, 30.0),
        ("command-r", {"logit_scale": 0.0625}, 0.0625, None),
        ("granite", {"logit_scale": 8.0}, 0.125, None),
        ("llama", {"logit_scale": 0.0, "final_logit_softcapping": 0.0}, 1.0, None),
    ],
)
def test_s60_gguf_scale_and_soft_cap(tmp_path, family, said, scale, softcap):
    metadata = {"general.architecture": family} | {f"{family}.{key}": value for key, value in said.items()}
    write_gguf(tmp_path / "m.gguf", metadata, {"output.weight": ("float32", W, W.shape)})
    layer = OutputLayer.load(tmp_path / "m.gguf")
    assert (layer.scale, layer.softcap) == (scale, softcap)


@pytest.mark.parametrize(
    "tokens, kinds, real",
    [
        ([f"t{i}" for i in range(9)], [1] * 9, 9),
        ([f"t{i}" for i in range(10)] + ["[PAD10]", "[PAD11]"], [1] * 10 + [5, 5], 10),
        ([f"t{i}" for i in range(10)] + ["[PAD10]", "<unused1>"], [1] * 10 + [5, 5], 12),
        ([f"t{i}" for i in range(20)], [1] * 20, 12),
    ],
)
def test_s58_gguf_real_tokens(tmp_path, tokens, kinds, real):
    metadata = {**LLAMA, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    write_gguf(tmp_path / "m.gguf", metadata, {"output.weight": ("float32", W, W.shape)})
    assert OutputLayer.load(tmp_path / "m.gguf").vocab_size == real


def q8(values: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Q8_0 blocks of 32 with this step, and the numbers that they stand for."""
    levels = np.clip(np.round(values / step), -127, 127).astype(np.int8).reshape(-1, 32)
    blocks = np.zeros((len(levels), 34), np.uint8)
    blocks[:, :2] = np.array([step], np.float16).view(np.uint8)
    blocks[:, 2:] = levels.view(np.uint8)
    return blocks, (levels.astype(np.float32) * np.float32(np.float16(step))).reshape(values.shape)


@pytest.mark.parametrize("step, dtype", [(0.03, "float16"), (1e-7, "float16"), (1000.0, "float32")])
def test_quantised_tensors_are_dequantised(tmp_path, step, dtype):
    pytest.importorskip("gguf", reason="dequantises")
    values = random_states(10, 64, seed=8) * np.float32(50 * step)
    blocks, exact = q8(values, step)
    write_gguf(tmp_path / "m.gguf", LLAMA, {"token_embd.weight": ("Q8_0", blocks, values.shape)})
    layer = OutputLayer.load(tmp_path / "m.gguf")
    assert layer.dtype == dtype
    np.testing.assert_allclose(
        layer.rows(range(10)), exact, atol=np.abs(exact).max() * 2.0**-11 if dtype == "float16" else 0
    )


def test_quantised_tensors_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    write_gguf(tmp_path / "m.gguf", LLAMA, {"token_embd.weight": ("Q8_0", q8(np.ones((2, 32)), 0.1)[0], (2, 32))})
    with pytest.raises(MissingExtraError, match=r"needs gguf.*fullview\[hf\]"):
        OutputLayer.load(tmp_path / "m.gguf")


def test_gguf_files_of_no_use(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, LLAMA, {"blk.0.x": ("float32", W, W.shape)})
    with pytest.raises(SourceError, match=r"neither output\.weight nor token_embd\.weight"):
        OutputLayer.load(path)
    good = path.read_bytes()
    path.write_bytes(b"GGML" + good[4:])
    with pytest.raises(SourceError, match="begins with b'GGUF'"):
        OutputLayer.load(path)
    path.write_bytes(good[:4] + (4).to_bytes(4, "little") + good[8:])
    with pytest.raises(SourceError, match="version 4"):
        OutputLayer.load(path)
    path.write_bytes(good[:8] + (2**60).to_bytes(8, "little") + good[16:])
    with pytest.raises(SourceError, match="cut or damaged"):
        OutputLayer.load(path)
