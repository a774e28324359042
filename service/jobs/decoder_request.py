"""The body of POST /v1/admin/decoders: what it may hold, what is checked at once, what the build's process is told.

check()        everything that can be refused before a job exists, but for what is in the files (decoder_foresight.py)
to_spec()      body -> DecoderSpec, paths resolved again at the moment of the build

Invariant: members that a body leaves out take the defaults of decoder.DecoderOptions, which stand nowhere else.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from decoder.options import DecoderOptions
from service.decoder_words import words_near
from service.decoders import Decoders
from service.errors import ConflictError, MalformedError, OutOfRangeError, UnsupportedError
from service.import_paths import resolve
from service.jobs.messages import DecoderSpec
from service.jobs.request import FileBody, source_file
from service.names import check_name
from service.settings import Settings


class WeightBody(FileBody, forbid_unknown_fields=True, kw_only=True):
    """The output layer: a file of it, or the folder of a model."""

    tensor: str | None = None
    dtype: Literal["bfloat16", "float16"] | None = None
    """What the 16-bit integers of a .npy file hold."""
    model: str | None = None


class DecoderBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/admin/decoders."""

    name: str
    weight: WeightBody
    bias: FileBody | str | None = None
    scale: float | None = None
    softcap: float | None = None
    vocab_size: int | None = None
    calibration: FileBody | None = None
    recall: float | None = None
    seed: int | None = None
    threads: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    serve: str | None = None
    words: FileBody | None = None
    """Words of the tokens; left out, they are looked for beside the weight or in the model's folder."""
    mode: Literal["create", "replace"] = "create"


def check(body: DecoderBody, decoders: Decoders) -> None:
    """Raises what can be known without reading files: name, mode, ranges (DecoderOptionsError), device."""
    check_name(body.name, "decoder")
    if body.mode == "create" and decoders.exists(body.name):
        raise ConflictError(f'Decoder {body.name!r} already exists. mode "replace" replaces it.')
    for member, value in (("scale", body.scale), ("softcap", body.softcap)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise OutOfRangeError(f"{member} is {value}; it must be a finite number above 0.")
    if body.vocab_size is not None and body.vocab_size < 1:
        raise OutOfRangeError(f"vocab_size is {body.vocab_size}; it must be at least 1.")
    DecoderOptions(**_options(body))
    if body.device == "cuda":
        raise UnsupportedError(
            'device "cuda" of a served decoder', "Use auto or cpu; from Python, decoder.gpu answers on a card."
        )


def to_spec(body: DecoderBody, decoders: Decoders, out: Path) -> DecoderSpec:
    """What the build's process is told. Raises as check() does, and for paths."""
    check(body, decoders)
    settings = decoders.settings
    serve = None if body.serve is None else resolve(settings.import_folder, body.serve, member="serve")
    if serve is not None:
        _require_model(Path(serve), str(body.serve))
    weight = _weight(body.weight, settings)
    bias = FileBody(path=body.bias) if isinstance(body.bias, str) else body.bias
    return DecoderSpec(
        out=str(out),
        weight=weight,
        tensor=body.weight.tensor,
        dtype=body.weight.dtype,
        bias=None if bias is None else source_file(bias, settings, member="bias.path"),
        scale=body.scale,
        softcap=body.softcap,
        vocab_size=body.vocab_size,
        calibration=None
        if body.calibration is None
        else source_file(body.calibration, settings, member="calibration.path"),
        serve=serve,
        words=_words(body, weight, serve, settings),
        words_found=body.words is None,
        options=_options(body),
    )


def _options(body: DecoderBody) -> dict[str, Any]:
    given = {"recall": body.recall, "seed": body.seed, "threads": body.threads}
    return {name: value for name, value in given.items() if value is not None}


def _weight(weight: WeightBody, settings: Settings) -> str:
    if weight.model is None:
        if weight.path is None and weight.upload is None:
            raise MalformedError("weight needs path, upload or model. Give one of them.")
        return source_file(weight, settings, member="weight.path")
    if weight.path is not None or weight.upload is not None:
        raise MalformedError("weight has both model and path or upload. Give one of them.")
    return resolve(settings.import_folder, weight.model, member="weight.model")


def _words(body: DecoderBody, weight: str, serve: str | None, settings: Settings) -> str | None:
    """What was named, else what tells the words in the model that is served, else what does beside the weight."""
    if body.words is not None:
        return source_file(body.words, settings, member="words.path")
    for place in (serve, weight if body.weight.upload is None else None):
        near = None if place is None else words_near(Path(place))
        if near is not None:
            # Nobody named this file, so nobody has looked yet whether it leads out of the import root.
            inside = near.relative_to(os.path.realpath(settings.import_folder))
            return resolve(settings.import_folder, str(inside), member="words")
    return None


def _require_model(path: Path, given: str) -> None:
    if not ((path.is_dir() and (path / "config.json").is_file()) or (path.is_file() and path.suffix == ".gguf")):
        raise MalformedError(
            f"serve is {given!r}: it must be the folder of a transformers model (with config.json) or a .gguf file."
        )
