"""The packages that models need, imported when a model is loaded and not before.

transformers_library(), torch_library()   the modules; MissingExtraError says how to install them

Invariant: nothing is ever downloaded: the hub's client is told that it is offline before it is imported.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from index.errors import MissingExtraError

_OFFLINE_AND_QUIET = {
    "HF_HUB_OFFLINE": "1",
    # Progress bars of loading would go to the server's log.
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def torch_library() -> Any:
    """torch. Raises MissingExtraError."""
    return library("torch")


def transformers_library() -> Any:
    """transformers. Raises MissingExtraError."""
    for name, value in _OFFLINE_AND_QUIET.items():
        os.environ.setdefault(name, value)
    transformers = library("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers


def library(name: str) -> Any:
    """A module of the extra `hf`. Raises MissingExtraError."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise MissingExtraError(package=package, extra="hf", purpose="a model that completions run") from None
