"""decoder.huggingface where torch and transformers are missing: it can be imported, and attach() says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from decoder.huggingface import Attached, attach, detach
from decoder.huggingface.calls import Call
from decoder.huggingface.rows import AfterHead
from index.errors import MissingExtraError


def test_importing_it_imports_neither_torch_nor_transformers():
    code = "import sys, decoder.huggingface.attached; print({'torch', 'transformers'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_attach_names_what_is_missing(monkeypatch, package):
    monkeypatch.setitem(sys.modules, "torch", sys)
    monkeypatch.setitem(sys.modules, "transformers", sys)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"needs {package}.*fullview\[hf\]"):
        attach(object(), "nowhere")


def test_names_are_there():
    assert callable(detach)
    assert Attached.__doc__
    assert not Call(reason="all rows").by_decoder
    assert AfterHead().applied(3.0) == 3.0
