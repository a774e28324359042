"""A decoder's build, inside its process: output layer and states read, words written, decoder.build_decoder called.

build_decoder()   DecoderSpec -> the folder that the registry serves: `head/`, and `words.json` where words are known
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from index.errors import SourceError
from service.decoder_words import lack_of, words_of
from service.jobs.messages import DecoderSpec
from service.served_decoder import HEAD_FOLDER, WORDS_FILE

if TYPE_CHECKING:
    import threading


class BuiltDecoder(msgspec.Struct, frozen=True):
    """What the worker asks of a report."""

    dim: int
    report: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The report."""
        return self.report


def build_decoder(spec: DecoderSpec, *, on_progress: Callable[[Any], None], cancel: threading.Event) -> BuiltDecoder:
    """Everything that one job builds. Raises what decoder.build_decoder raises."""
    from decoder import DecoderOptions, OutputLayer
    from decoder import build_decoder as build

    layer = OutputLayer.load(
        spec.weight,
        tensor=spec.tensor,
        dtype=spec.dtype,
        bias=spec.bias,
        scale=spec.scale,
        softcap=spec.softcap,
        vocab_size=spec.vocab_size,
    )
    out = Path(spec.out)
    out.mkdir()
    warnings = _keep_words(spec, out, vocab_size=layer.vocab_size)
    report = build(
        layer,
        out / HEAD_FOLDER,
        calibration=spec.calibration,
        options=DecoderOptions(**spec.options),
        on_progress=on_progress,
        cancel=cancel,
    ).to_dict()
    return BuiltDecoder(layer.dim, report | {"warnings": [*report.get("warnings", ()), *warnings]})


def _keep_words(spec: DecoderSpec, out: Path, *, vocab_size: int) -> list[str]:
    """Write the words that are known, complete and on the disk; what is odd about them."""
    if spec.words is None:
        return []
    try:
        words = words_of(Path(spec.words), tokens=vocab_size)
    except SourceError as error:
        if not spec.words_found:
            raise
        return [f"The words of the tokens are not known: {error}"]
    with (out / WORDS_FILE).open("wb") as file:
        file.write(msgspec.json.encode(words))
        file.flush()
        os.fsync(file.fileno())
    lack = lack_of(Path(spec.words).name, words, vocab_size)
    return [] if lack is None else [lack]
