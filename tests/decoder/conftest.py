"""What tests of decoders share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tiny_models import build_for, tiny_model


@pytest.fixture(scope="session")
def decoder_folder(tmp_path_factory) -> Callable[..., Path]:
    """(name, dtype="float32") -> the folder of a decoder of that tiny model; each is built once."""
    root = tmp_path_factory.mktemp("decoders")

    @cache
    def built(name: str, dtype: str) -> Path:
        return build_for(tiny_model(name, dtype), root / f"{name} {dtype}")

    return lambda name, dtype="float32": built(name, dtype)
