"""scripts/fetch_data.py where packages are missing: it says which and how to install them, and makes the other sets."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_data.py"


@pytest.fixture
def fetch(monkeypatch):
    """The script as a module, in an environment with pip and without torch, gguf and npm."""
    spec = importlib.util.spec_from_file_location("fetch_data", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    there = {"pip", "pyarrow", "tokenizers", "safetensors"}
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object() if name in there else None)
    monkeypatch.setattr(module.shutil, "which", lambda name: None if name == "npm" else "/bin/" + name)
    return module


def test_what_is_missing_and_how_to_install_it(fetch):
    assert fetch.NEEDS.keys() == fetch.MAKE.keys()
    assert fetch.lacking("sift") is None and fetch.lacking("glove") is None
    assert "needs torch, gguf, not there" in fetch.lacking("smollm2")
    said = fetch.lacking("wordnet_minilm")
    assert "needs torch, npm" in said
    assert "pip install torch --index-url" in said and "CPU build" in said and "apt-get install npm" in said


def test_sets_that_need_no_torch_are_made_without_it(fetch, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    made = []
    for name in fetch.MAKE:
        monkeypatch.setitem(fetch.MAKE, name, lambda folder, tmp, args: made.append(folder.name))
    monkeypatch.setattr(sys, "argv", ["fetch_data.py", str(tmp_path), "wordnet_minilm", "sift", "glove"])
    with pytest.raises(SystemExit, match="wordnet_minilm needs torch"):
        fetch.main()
    assert made == ["sift", "glove"]
    assert not (tmp_path / "wordnet_minilm").exists()
    monkeypatch.setattr(sys, "argv", ["fetch_data.py", str(tmp_path), "sift"])
    fetch.main()
    assert made == ["sift", "glove", "sift"]


def test_help_says_what_each_set_needs(fetch, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fetch_data.py", "--help"])
    with pytest.raises(SystemExit):
        fetch.main()
    out = capsys.readouterr().out
    assert "wordnet_minilm  torch, tokenizers, safetensors, pyarrow, npm" in out
    assert "sift            apt-get, dpkg-deb" in out
