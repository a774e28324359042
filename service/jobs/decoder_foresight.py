"""What can be said of a decoder's build before it starts: whether weight, bias, calibration states, words and the
served model fit each other.

foresee()   reads headers only; what only a full read can tell (NaN in a weight) is left to the build's process

Unlike a collection's source, a weight that cannot be read is refused at once: nothing could be checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from decoder.calibration import LEAST
from decoder.readers import read_bias, read_layer
from decoder.readers.gguf_file import open_gguf, real_tokens
from index.errors import SourceError
from index.sources import open_source
from service.decoder_words import words_of
from service.errors import MalformedError
from service.jobs.foresight import Foresight
from service.jobs.messages import DecoderSpec
from service.jobs.serve_foresight import require_fitting_model

NO_CALIBRATION = (
    "No calibration states were given: the walk is shaped for no states in particular and scores more rows."
)


def foresee(spec: DecoderSpec) -> Foresight:
    """Raises SourceError for what cannot be read, MalformedError for what does not fit."""
    try:
        weight = _size_of_weight(spec)
        rows, dim = weight.rows, weight.dim
        real = weight.tokens if spec.vocab_size is None else spec.vocab_size
        if real > rows:
            raise MalformedError(f"vocab_size is {real:,}, but the weight has {rows:,} rows. Is it another model's?")
        if spec.bias is not None:
            _require_bias(spec.bias, rows, real)
        if spec.calibration is not None:
            _require_states(spec.calibration, dim)
        if spec.serve is not None:
            require_fitting_model(Path(spec.serve), dim)
        if spec.words is not None and not spec.words_found:
            words_of(Path(spec.words), tokens=real)
    except OSError as error:
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}.") from error
    return Foresight(passes=1, warnings=[NO_CALIBRATION] if spec.calibration is None else [])


@dataclass(frozen=True, slots=True)
class _Size:
    """tokens: rows that are tokens, as far as the weight's own files say."""

    rows: int
    dim: int
    tokens: int


def _size_of_weight(spec: DecoderSpec) -> _Size:
    path = Path(spec.weight)
    tokens = None
    if path.suffix.lower() == ".gguf":
        # read_layer() dequantises.
        file = open_gguf(path)
        tensors = file.tensors
        tensor = tensors.get("output.weight") or tensors.get("token_embd.weight")
        shape = () if tensor is None else tensor.shape
        tokens = real_tokens(file, shape[0]) if shape else None
    else:
        parts = read_layer(path, tensor=spec.tensor)
        shape, tokens = parts.weight.shape, parts.vocab_size
    if len(shape) != 2 or 0 in shape:
        raise MalformedError(f"{path.name}: the weight has shape {list(shape)}, needed [V, d]: one row for each token.")
    return _Size(int(shape[0]), int(shape[1]), int(shape[0] if tokens is None else tokens))


def _require_bias(path: str, rows: int, real: int) -> None:
    shape = read_bias(Path(path)).shape
    if shape not in {(rows,), (real,), (1, rows), (1, real)}:
        raise MalformedError(
            f"{Path(path).name}: the bias has shape {list(shape)}, the weight has {rows:,} rows. Needed one number a token."
        )


def _require_states(path: str, dim: int) -> None:
    source = open_source(path)
    if source.dim != dim:
        raise MalformedError(
            f"{Path(path).name} holds calibration states of {source.dim:,} components, the weight's rows have {dim:,}. "
            "Are they states of another model?"
        )
    if source.n < LEAST:
        raise MalformedError(
            f"{Path(path).name} holds {source.n:,} calibration states, needed at least {LEAST}: a part of them measures "
            "what the decoder promises. Some thousands are best; leave calibration out where there are none."
        )
