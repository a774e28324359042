"""A language model from disk, on the CPU: token ids in, the states out that its output layer would get.

load_text_model()   from a transformers folder or a GGUF file; nothing is ever downloaded
TextModel.read()    a new sequence; Reading.hidden() takes it on

The model runs as it is, with one part exchanged: instead of its output layer stands a part that keeps what comes in. So the
states are the layer's own input, whatever a family does between its last block and the layer.

Not here: which token comes next (generate.py); the output layer (decoder/).
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import SourceError
from service.errors import MalformedError
from service.text.extras import library, torch_library, transformers_library
from service.text.tokenizer import TextTokenizer, load_tokenizer

# What a folder or a file may raise on being read as a model, beside being damaged in ways that nobody foresaw.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError)


class TextModel:
    """A causal language model and its tokenizer. Threads: any, each with readings of its own.

    dim: length of a state; rows: how many token ids it can read; context_length: how many tokens fit into a sequence, None
    where nothing limits it; end_ids: tokens that end a text.
    """

    def __init__(self, model: Any, tokenizer: TextTokenizer) -> None:
        """model: a causal language model of transformers; its output layer is taken out."""
        torch = torch_library()
        layer = model.get_output_embeddings()
        if layer is None:
            raise SourceError(f"{type(model).__name__} has no output layer; a causal language model is needed.")
        self.tokenizer = tokenizer
        self.dim = int(layer.weight.shape[1])
        self.rows = int(model.get_input_embeddings().weight.shape[0])
        text_config = model.config.get_text_config()
        length = getattr(text_config, "max_position_embeddings", None)
        self.context_length = int(length) if length else None
        self.end_ids = _end_ids(model.generation_config) | tokenizer.end_ids
        self._torch, self._model = torch, model.eval()
        self._kept = threading.local()
        model.set_output_embeddings(_keeping_part(torch, self._kept))
        # transformers renamed this argument in 5.2x; giving the old name warns.
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        if self.read().hidden([0]).shape != (1, self.dim):
            raise SourceError(f"{type(model).__name__} does not hand its states to its output layer one by one.")

    def read(self) -> Reading:
        """A new, empty sequence."""
        return Reading(self)

    def forward(self, ids: Sequence[int], cache: Any) -> tuple[NDArray[np.float32], Any]:
        """States [n, dim] of new tokens after those in the cache (None: there are none), and the cache with them."""
        torch = self._torch
        named = {} if cache is None else {self._cache_name: cache}
        with torch.inference_mode():
            answer = self._model(input_ids=torch.tensor([list(ids)]), use_cache=True, **named)
            states = self._kept.states[0].float().numpy()
        del self._kept.states
        return np.ascontiguousarray(states, dtype=np.float32), getattr(answer, self._cache_name)


class Reading:
    """One sequence that a model is reading. Threads: one at a time. length: tokens read."""

    def __init__(self, model: TextModel) -> None:
        self._model, self._cache = model, None
        self.length = 0

    def hidden(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Read these tokens; their states, [n, dim]. Raises MalformedError where they no longer fit."""
        limit = self._model.context_length
        if limit is not None and self.length + len(ids) > limit:
            raise MalformedError(
                f"{self.length + len(ids)} tokens are too many for this model: its context has {limit}. Send fewer."
            )
        states, self._cache = self._model.forward(ids, self._cache)
        self.length += len(ids)
        return states


def load_text_model(path: str | Path) -> TextModel:
    """The model of a transformers folder or a GGUF file, in float32 on the CPU. Takes seconds.

    Raises SourceError (naming the path), MissingExtraError.
    """
    path = Path(path)
    if not path.exists():
        raise SourceError(f"{path} does not exist; a transformers folder or a GGUF file is needed.")
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise SourceError(f"{path} is neither a folder nor a .gguf file. Name the folder that config.json lies in.")
    transformers_library()
    torch = torch_library()
    # Other threads of the pool compute at the same time, and threads of one product that wait for each other on busy cores
    # are slower than one: 0.34 s a token with two against 0.09 s with one, on two cores with other work.
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(path)
    try:
        model = _from_folder(path) if path.is_dir() else _from_gguf(path)
    except SourceError:
        raise
    except _UNREADABLE as error:
        raise SourceError(f"{path} cannot be read as a causal language model: {error}") from error
    return TextModel(model, tokenizer)


def _from_folder(folder: Path) -> Any:
    transformers, torch = transformers_library(), torch_library()
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
    _require_causal(config, folder)
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), config=config, local_files_only=True, dtype=torch.float32, output_loading_info=True
    )
    _require_complete(model, found["missing_keys"], folder)
    return model


def _from_gguf(file: Path) -> Any:
    """As from_pretrained(gguf_file=...), which wants `accelerate` for it, though it needs nothing of that package."""
    transformers, torch = transformers_library(), torch_library()
    library("gguf")
    reader = library("transformers.modeling_gguf_pytorch_utils")
    config = transformers.AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
    _require_causal(config, file)
    with torch.device("meta"):
        outline = transformers.AutoModelForCausalLM.from_config(config)
    weights = reader.load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=outline)["tensors"]
    model, found = type(outline).from_pretrained(
        None, config=config, state_dict=weights, dtype=torch.float32, output_loading_info=True
    )
    _require_complete(model, found["missing_keys"], file)
    return model


def _require_causal(config: Any, path: Path) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise SourceError(
            f"{path} is a {config.model_type} model, which reads and writes separately. Name a causal one."
        )


def _require_complete(model: Any, missing: Sequence[str], path: Path) -> None:
    """Missing weights would be random ones. The output layer's are not needed: the decoder has its own."""
    layer = model.get_output_embeddings()
    inside = {f"{name}." for name, module in model.named_modules() if module is layer}
    lost = sorted(name for name in missing if not any(name.startswith(prefix) for prefix in inside))
    if lost:
        raise SourceError(f"{path} lacks {len(lost)} weights of its model, the first is {lost[0]}. Copy it again.")


def _end_ids(generation_config: Any) -> frozenset[int]:
    found = getattr(generation_config, "eos_token_id", None)
    if found is None:
        return frozenset()
    return frozenset(map(int, found if isinstance(found, list) else [found]))


def _keeping_part(torch: Any, kept: threading.local) -> Any:
    """Stands where the output layer stood: keeps its input for the thread, and gives one column on."""

    class Keeping(torch.nn.Module):  # type: ignore[misc]
        def forward(self, states: Any) -> Any:
            kept.states = states
            return states[..., :1]

    return Keeping()
