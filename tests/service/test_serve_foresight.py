"""What is refused of a model that completions shall run, before any build: states of another length, no tokenizer."""

from __future__ import annotations

import json
import struct

import pytest

from index.errors import SourceError
from service.errors import MalformedError
from service.jobs.serve_foresight import require_fitting_model


def folder_of(path, config, **files):
    """files: name without suffix -> content of that JSON file."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def gguf_of(path, *, tokens, width):
    """A header of version 3 of a llama with states of that length."""

    def string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    entries = [
        string("general.architecture") + struct.pack("<I", 8) + string("llama"),
        string("llama.embedding_length") + struct.pack("<II", 4, width),
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(string, tokens)),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    return path


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": 4},
        {"d_model": 4},
        {"n_embd": 4},
        {"hidden_size": 9, "text_config": {"hidden_size": 4}},
        {"hidden_size": 9, "word_embed_proj_dim": 4},
        {},
    ],
)
def test_states_as_long_as_the_layer_s_rows_fit(tmp_path, config):
    require_fitting_model(folder_of(tmp_path / "m", config, tokenizer={}), 4)


@pytest.mark.parametrize("config", [{"hidden_size": 9}, {"hidden_size": 4, "text_config": {"d_model": 9}}])
def test_states_of_another_length_are_refused(tmp_path, config):
    with pytest.raises(MalformedError, match="serve names m, whose states have 9 components, the weight's rows have 4"):
        require_fitting_model(folder_of(tmp_path / "m", config, tokenizer={}), 4)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt", "qwen.tiktoken"])
def test_tokenizers_of_other_kinds_are_found(tmp_path, name):
    folder = folder_of(tmp_path / "m", {"hidden_size": 4})
    with pytest.raises(MalformedError, match="without a tokenizer"):
        require_fitting_model(folder, 4)
    (folder / name).write_text("x")
    require_fitting_model(folder, 4)


def test_tokenizers_of_bytes_need_no_file(tmp_path):
    said = {"tokenizer_class": "ByT5Tokenizer"}
    require_fitting_model(folder_of(tmp_path / "m", {"d_model": 4}, tokenizer_config=said), 4)
    other = folder_of(tmp_path / "n", {"d_model": 4}, tokenizer_config={"tokenizer_class": "LlamaTokenizer"})
    with pytest.raises(MalformedError, match="without a tokenizer"):
        require_fitting_model(other, 4)


def test_gguf_files(tmp_path):
    require_fitting_model(gguf_of(tmp_path / "m.gguf", tokens=["a"], width=4), 4)
    with pytest.raises(MalformedError, match=r"m\.gguf, whose states have 4 components, .* have 5"):
        require_fitting_model(tmp_path / "m.gguf", 5)
    with pytest.raises(MalformedError, match="no tokenizer"):
        require_fitting_model(gguf_of(tmp_path / "n.gguf", tokens=[], width=4), 4)


def test_a_configuration_that_does_not_parse_is_named(tmp_path):
    folder = folder_of(tmp_path / "m", [], tokenizer={})
    with pytest.raises(MalformedError, match=r"config\.json is no object"):
        require_fitting_model(folder, 4)
    (folder / "config.json").write_text("{")
    with pytest.raises(SourceError, match=r"config\.json"):
        require_fitting_model(folder, 4)
